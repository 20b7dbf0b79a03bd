"""Checks tasks in the local sandbox: the reference solution must score 1, doing nothing must score 0."""

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

from recipe.errors import BadInputError, InterruptedRunError, RecipeError
from recipe.harbor.trials import TrialRequest, run_trial

AT_ONCE = 2  # tasks; a trial is a few tenths of a second of CPU
ENVIRONMENT = {"import_path": "recipe.harbor.local_env:LocalEnvironment"}


@dataclass(frozen=True)
class TaskCheck:
    """Rewards of the two trials (None: no reward) and what went wrong."""

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


def check_tasks(tasks_dir: Path, names: Sequence[str] = ()) -> list[TaskCheck]:
    """One check per task, in the order of `names` (none: every task of the folder). Raises BadInputError."""
    present = sorted(path.parent.name for path in tasks_dir.glob("*/task.toml"))
    missing = [name for name in names if name not in present]
    if missing or not present:
        raise BadInputError(
            "there is no such task",
            expected=", ".join(missing) or "folders with a task.toml",
            found=", ".join(present) or "none",
            where=tasks_dir,
        )
    return asyncio.run(_check(tasks_dir, names or present))


async def _check(tasks_dir: Path, names: Sequence[str]) -> list[TaskCheck]:
    slots = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="inkling-grpo-selfcheck-") as trials_dir:

        async def check(name: str) -> TaskCheck:
            async with slots:
                start = time.monotonic()
                oracle, nop = [
                    await run_trial(TrialRequest(tasks_dir / name, Path(trials_dir), agent, ENVIRONMENT))
                    for agent in ("oracle", "nop")
                ]
            errors = [
                f"{agent}: {reply.error}"
                for agent, reply in (("oracle", oracle), ("nop", nop))
                if reply.error
            ]
            return TaskCheck(
                name, oracle.reward, nop.reward, "; ".join(errors) or None, time.monotonic() - start
            )

        return list(await asyncio.gather(*map(check, names)))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe.harbor.selfcheck", description=__doc__)
    parser.add_argument("--tasks-dir", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of lines")
    parser.add_argument("names", nargs="*", help="tasks; none: all")
    options = parser.parse_args(argv)
    # Ended from outside, it ends its trials first: asyncio turns SIGINT into their cancellation.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        checks = check_tasks(options.tasks_dir, options.names)
    except KeyboardInterrupt:
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
