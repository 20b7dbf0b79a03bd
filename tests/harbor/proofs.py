"""What is left of a sandbox, as this machine sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.harbor.cgroups import PARENT


def processes_of(command: str) -> list[int]:
    """Pids whose command line is `command`, as this machine sees them, sandboxes included."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace")
            if arguments.rstrip("\0").replace("\0", " ") == command:
                found.append(int(folder.name))
    return found


def processes_naming(path: Path) -> list[int]:
    """Pids of living processes whose command line names `path`, as that of a bwrap names its scratch folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(path) in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def kill_once_it_has_forked(bwrap: int) -> None:
    """In time, most often, to keep it from telling its child to go on, which then waits for ever."""
    name, children = (Path(f"/proc/{bwrap}/{path}") for path in ("comm", f"task/{bwrap}/children"))
    deadline = time.monotonic() + 30
    while name.read_text() != "bwrap\n" or not children.read_bytes():  # before, it is a shell that mounts
        assert time.monotonic() < deadline, "bwrap does not fork"
    os.kill(bwrap, signal.SIGKILL)


def cgroups_of(pattern: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"**/{PARENT}/{pattern}") if path.is_dir()]


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops its uid and makes cgroups")


def exists(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def oom_score_adjustment(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def left_in(scratch_root: Path) -> list[Path]:
    return list(scratch_root.glob("*"))


def found_in(folder: Path, name: str) -> list[Path]:
    return list(folder.rglob(name))


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def root_of(pid: int | None) -> Path:
    """A sandbox's files, as only its user and root see them."""
    return Path(f"/proc/{pid}/root")


def status(pid: int | None) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def wait_until(holds: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
