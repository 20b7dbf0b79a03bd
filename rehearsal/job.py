"""One job of the local engine in a folder of its own: started, watched, broken, and looked at when it is over.

Every process of the job descends from this one, which is their subreaper: what is left of a job is found by descent,
and only such processes are ever signalled.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe.events import Event, EventReader
from recipe.given import child_environment
from recipe.keeper import become_subreaper, descendants, reap_and_list
from recipe.settings import SECRETS

ROOT = Path(__file__).resolve().parents[1]
SMOKE_TASKS = ROOT / "recipe" / "tasks" / "smoke"
RUN = "run"
# Two rollouts of two groups and a surplus one, a checkpoint after each: half a minute on two cores.
SHAPE = (
    "NUM_ROLLOUT=2",
    "ROLLOUT_BATCH_SIZE=2",
    "OVER_SAMPLING_BATCH_SIZE=3",
    "N_SAMPLES_PER_PROMPT=4",
    "SAVE_INTERVAL=1",
    # A trial takes a second or two; whatever hangs is given up soon: an agent after 15 s, its verifier after 30 s.
    "HARBOR_AGENT_TIMEOUT_MULTIPLIER=0.25",
    "HARBOR_AGENT_CALL_TIMEOUT_SEC=60",
    "ROLLOUT_TIMEOUT_SEC=400",
    "MAX_DROPPED_GROUPS=6",
)
PLANT = "PLANTED"
# Secrets of the forms that their checks take, else a command would stop at the first of them.
PLANTED = {name.upper(): f"{PLANT}{name.replace('_', '')}".ljust(40, "0") for name in SECRETS}
# A job takes half a minute alone on two cores, the warm start as much; this is for a busy machine.
JOB_SECONDS = 900.0
# After SIGKILL of the launcher, each part notices by itself that it is alone.
LEFT_SECONDS = 30.0
END_SECONDS = 120.0


@dataclass
class Job:
    """`settings`: NAME=VALUE words beside SHAPE; `program`: a module that takes the words of `recipe`."""

    settings: list[str] = field(default_factory=list)
    program: str = "recipe"
    environment: dict[str, str] = field(default_factory=dict)
    root: Path = field(default_factory=lambda: new_folder())
    process: subprocess.Popen[bytes] | None = None
    events: list[Event] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)

    @property
    def folder(self) -> Path:
        return self.root / "runs" / RUN

    @property
    def temporary(self) -> Path:
        """The job's own folder of temporary files; its name is short, for the paths of Ray's sockets."""
        return self.root / "t"

    @property
    def output(self) -> str:
        return (self.root / "output").read_text(errors="replace")

    @property
    def code(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    @property
    def tasks(self) -> Path:
        """A copy of the smoke tasks, which the job then uses; call it before `start` at the latest."""
        copy = self.root / "tasks"
        if not copy.exists():
            shutil.copytree(SMOKE_TASKS, copy)
            self.settings.append(f"TASKS_DIR={copy}")
        return copy

    def start(self) -> None:
        """Starts the launcher in a session of its own, so that a signal to it is not one to us."""
        become_subreaper()
        self.temporary.mkdir(exist_ok=True)
        fixed = [f"CACHE_DIR={ROOT / '.cache'}", f"RUNS_ROOT={self.root / 'runs'}", f"RUN_NAME={RUN}"]
        argv = [sys.executable, "-m", self.program, "smoke", *SHAPE, *fixed, *self.settings]
        with (self.root / "output").open("ab") as sink:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                # With a key of Weights & Biases the job would ask for it.
                env=child_environment(
                    **PLANTED | {"WANDB_API_KEY": "", "TMPDIR": str(self.temporary)} | self.environment
                ),
                start_new_session=True,
            )

    def wait(self, until: Callable[[Event], bool] | None = None) -> bool:
        """Until an event holds (True), or the launcher has ended (False). Raises TimeoutError after JOB_SECONDS."""
        reader = self.notes.setdefault("reader", EventReader(self.folder / "events.jsonl"))
        deadline = time.monotonic() + JOB_SECONDS
        while True:
            ended = self.code is not None
            new = list(reader.new())
            self.events += new
            if until and any(map(until, new)):
                return True
            if ended:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"the launcher had not ended after {JOB_SECONDS:g} s")
            time.sleep(0.05)

    def pids(self, pattern: str) -> list[int]:
        """Those of our descendants in whose command line the pattern is found, oldest first."""
        return [pid for pid in sorted(set(descendants())) if re.search(pattern, command_of(pid))]

    def left(self) -> list[str]:
        """The processes that are still there, once they have had LEFT_SECONDS to end; they are killed then."""
        deadline = time.monotonic() + LEFT_SECONDS
        while left := reap_and_list():
            if time.monotonic() > deadline:
                told = [f"{pid} {command_of(pid)[:80]}" for pid in left]
                signal_all(left, signal.SIGKILL)
                return told
            time.sleep(0.1)
        return []

    def end(self) -> None:
        """Ends the launcher if it still runs, undoes what was done for the job, and removes its files."""
        if self.process and self.code is None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.closing.close()
        shutil.rmtree(self.root, ignore_errors=True)


def new_folder() -> Path:
    """A temporary folder that the sandboxes' user may traverse."""
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    folder.chmod(0o755)
    return folder


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signals those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def command_of(pid: int) -> str:
    """The command line of a process, or nothing once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
