"""Checks tasks in the local sandbox: the reference solution must score 1, doing nothing must score 0.

For the agent terminus-2 it also opens a terminal in one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, InterruptedRunError, RecipeError
from recipe.harbor.sandbox import probe
from recipe.harbor.trials import TrialRequest, run_trial

# Both end the check, once: a second one would cut short the end of the sandboxes, which is bounded by itself.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
AT_ONCE = 2  # tasks; a trial is a few tenths of a second of CPU
ENVIRONMENT = {"import_path": "recipe.harbor.local_env:LocalEnvironment"}


@dataclass(frozen=True)
class TaskCheck:
    """Rewards of the two trials (None: no reward) and what they ended by, if not by themselves."""

    name: str
    oracle: float | None
    nop: float | None
    error: str | None
    seconds: float

    @property
    def passed(self) -> bool:
        return self.oracle == 1 and self.nop == 0

    def __str__(self) -> str:
        verdict = "ok    " if self.passed else "FAILED"
        rewards = f"oracle {self.oracle} (expected 1)  nop {self.nop} (expected 0)"
        return f"{verdict} {self.name:<32} {rewards} {self.seconds:5.1f} s" + (
            f"  {self.error}" if self.error else ""
        )


class Interruption:
    """A signal handler: cancels the task that it watches, or the next one that it is to watch."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._happened = False

    def __call__(self, *_: object) -> None:
        if not self._happened:
            self._happened = True
            if self._task is not None and not self._task.get_loop().is_closed():
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)  # also wakes the loop up

    def watch(self) -> None:
        """Watches the running task. Raises CancelledError when the signal has come before."""
        self._task = asyncio.current_task()
        if self._happened:
            raise asyncio.CancelledError


def check_tasks(
    tasks_dir: Path,
    names: Sequence[str] = (),
    interruption: Interruption | None = None,
    *,
    tmux: bool = False,
) -> list[TaskCheck]:
    """One check per task, in the order of `names` (none: every task of the folder); `tmux`: see `probe`.

    Raises BadInputError for an unknown task and for a machine that can't run a sandbox, CancelledError when
    interrupted. Nothing is left of the trials then.
    """
    present = sorted(path.parent.name for path in tasks_dir.glob("*/task.toml"))
    missing = [name for name in names if name not in present]
    if missing or not present:
        raise BadInputError(
            "there is no such task",
            expected=", ".join(missing) or "folders with a task.toml",
            found=", ".join(present) or "none",
            where=tasks_dir,
        )
    # Removed after the event loop's end: until then, something of a trial may still write to it.
    with tempfile.TemporaryDirectory(prefix="inkling-grpo-selfcheck-") as trials_dir:
        return asyncio.run(_check(tasks_dir, names or present, Path(trials_dir), interruption, tmux=tmux))


async def _check(
    tasks_dir: Path,
    names: Sequence[str],
    trials_dir: Path,
    interruption: Interruption | None,
    *,
    tmux: bool,
) -> list[TaskCheck]:
    if interruption is not None:
        interruption.watch()
    await probe(tmux=tmux)
    slots = asyncio.Semaphore(AT_ONCE)

    async def check(name: str) -> TaskCheck:
        async with slots:
            start = time.monotonic()
            oracle, nop = [
                await run_trial(TrialRequest(tasks_dir / name, trials_dir, agent, ENVIRONMENT))
                for agent in ("oracle", "nop")
            ]
        reasons = [
            f"{agent}: {reply.error or reply.exit_status}"
            for agent, reply in (("oracle", oracle), ("nop", nop))
            if reply.error or reply.exit_status != "Submitted"
        ]
        return TaskCheck(
            name, oracle.reward, nop.reward, "; ".join(reasons) or None, time.monotonic() - start
        )

    async with asyncio.TaskGroup() as group:  # waits for every trial's end, also when cancelled
        checks = [group.create_task(check(name)) for name in names]
    return [task.result() for task in checks]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe.harbor.selfcheck", description=__doc__)
    parser.add_argument("--tasks-dir", type=Path, required=True)
    parser.add_argument("--agent", choices=("camel", "terminus-2"), default="camel")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of lines")
    parser.add_argument("names", nargs="*", help="tasks; none: all")
    options = parser.parse_args(argv)
    interruption = Interruption()
    for number in SIGNALS:
        signal.signal(number, interruption)
    try:
        checks = check_tasks(
            options.tasks_dir, options.names, interruption, tmux=options.agent == "terminus-2"
        )
    except asyncio.CancelledError:
        return InterruptedRunError.exit_code
    except RecipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        print("\n".join(map(str, checks)))
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
