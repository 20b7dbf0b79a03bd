"""Memory, CPU and process limits of one sandbox by cgroup, v1 or v2, where we may make one (as root).

Elsewhere a sandbox has its rlimits only: `create` then returns nothing, and nothing fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PARENT = "inkling-grpo"
PERIOD = 100_000  # microseconds, the kernel's own default: a quota is cpus x PERIOD
MINIMUM_QUOTA = 1_000  # microseconds, the kernel's minimum
REMOVE_SECONDS = 5.0  # a group whose processes are gone is removable within milliseconds


def planned(name: str) -> list[Path]:
    """The folders that `create` makes for the sandbox `name`; none where we are not root."""
    if os.geteuid() != 0:
        return []
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT / PARENT / name]
    return [ROOT / kind / PARENT / name for kind in ("memory", "cpu", "pids") if (ROOT / kind).is_dir()]


def create(folders: Iterable[Path], *, memory_mb: int, cpus: float | None, processes: int) -> list[Path]:
    """Makes the groups and sets the limits that each knows; returns those that could be made."""
    limits = {
        "memory.max": f"{memory_mb << 20}",
        "memory.swap.max": "0",  # what v2 does not count as memory; a group's files would go there
        "memory.limit_in_bytes": f"{memory_mb << 20}",
        "memory.memsw.limit_in_bytes": f"{memory_mb << 20}",  # never below the line above
        "pids.max": f"{processes}",
    }
    if cpus is not None:
        quota = max(MINIMUM_QUOTA, int(cpus * PERIOD))
        limits |= {"cpu.max": f"{quota} {PERIOD}", "cpu.cfs_quota_us": f"{quota}"}
    made = []
    for folder in folders:
        with contextlib.suppress(OSError):  # a read-only hierarchy, as in most containers
            folder.parent.mkdir(exist_ok=True)
            _delegate(folder.parent)
            folder.mkdir()
            made.append(folder)
            for name, limit in limits.items():
                if (folder / name).exists():
                    (folder / name).write_text(limit)
    return made


def _delegate(parent: Path) -> None:
    """v2: the hierarchy's root and our parent hand their controllers on to the sandboxes' groups."""
    for switch in (parent.parent / "cgroup.subtree_control", parent / "cgroup.subtree_control"):
        for controller in ("memory", "cpu", "pids"):
            with contextlib.suppress(OSError):  # v1 has no such file; a root in use refuses
                if switch.exists():
                    switch.write_text(f"+{controller}")


def enter(folders: Iterable[Path], pid: int) -> None:
    """Moves the process into the groups; what it starts from now on is born there."""
    for folder in folders:
        (folder / "cgroup.procs").write_text(str(pid))


def remove(folders: Iterable[Path]) -> None:
    """Removes the groups, ending what still runs there. Raises OSError when one can't be removed in time."""
    for folder in folders:
        deadline = time.monotonic() + REMOVE_SECONDS
        while folder.is_dir():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                _kill(folder)
                time.sleep(0.002)


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
