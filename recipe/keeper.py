"""Runs one program; when it ends or we are told to stop, none of its descendants nor its scratch is left.

Process groups are not enough for programs whose children lead sessions of their own, as Ray's do. The keeper
is a subreaper: whatever loses its parent becomes the keeper's child, so that all descendants are found by
descent, never by name. Standard library only: `python -S keeper.py SCRATCH PROGRAM ...` starts at once. It makes
its scratch itself, once it listens to signals, so that none is left when it is told to stop at any earlier moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_SECONDS = 1.0  # nothing that a program does at its end matters to us: its scratch goes as well
KILL_SECONDS = 8.0  # a killed process goes at once, unless it hangs in the kernel


class _StopError(Exception):
    """A stop signal came."""


def become_subreaper() -> None:
    """From now on, a descendant that loses its parent becomes a child of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """The process ids of all living processes below this one; ended ones that wait to be reaped count too."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold spaces; state and parent follow the last one.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def end_descendants() -> bool:
    """SIGTERM to every descendant, SIGKILL to what is left after GRACE_SECONDS. Whether none is left."""
    start = time.monotonic()
    asked: set[int] = set()
    while remaining := reap_and_list():
        waited = time.monotonic() - start
        if waited > GRACE_SECONDS + KILL_SECONDS:
            return False
        for pid in remaining:
            if waited > GRACE_SECONDS or pid not in asked:
                asked.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if waited > GRACE_SECONDS else signal.SIGTERM)
        time.sleep(0.05)
    return True


def reap_and_list() -> list[int]:
    """The descendants that are left, once those that have ended are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def _wait_for(pid: int) -> int:
    """Reaps orphans until `pid` ends; its exit code, 128 + N when signal N ended it."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _stop(_number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    raise _StopError


def _ignore_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main(scratch: str, argv: list[str]) -> int:
    """Runs `argv` beside the new folder `scratch`, which it removes. The exit code: `argv`'s; 0 when told to stop;
    1 when a descendant could not be ended.
    """
    try:
        for number in STOP_SIGNALS:
            signal.signal(number, _stop)
        become_subreaper()
        Path(scratch).mkdir(mode=0o700)
        program = subprocess.Popen(argv)
        code = _wait_for(program.pid)
        _ignore_signals()
    except _StopError:
        code = 0
    all_ended = end_descendants()
    shutil.rmtree(scratch, ignore_errors=True)
    return code if all_ended else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
