"""A bwrap and what it has forked: one session, that ends as a whole even if its first process is killed.

bwrap lets its child go on only once it has set the child's user namespace up. Killed before that, it leaves a
child that waits for ever, as nothing has bound it to its parent yet. All are in bwrap's session until then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recipe.errors import RecipeError

FILE = "session"  # of a sandbox's scratch folder: the session's number
# The number is on disk before bwrap runs: there is no moment at which its starter's death would lose it.
RECORD = 'echo $$ > "$0" && exec "$@"'
POLL_SECONDS = 0.002
KILL_SECONDS = 10.0  # as long as the kernel may take to end a killed process


def recorded(scratch: Path, command: Sequence[str]) -> list[str]:
    """`command`, to be started as the leader of a session that `scratch` then knows."""
    return ["/bin/sh", "-c", RECORD, str(scratch / FILE), *command]


def end(leader: subprocess.Popen[bytes], kills: Sequence[Callable[[], None]], seconds: float) -> bool:
    """Waits `seconds` for the leader's own end, and again after each of `kills`; false when it still lives.

    Then kills what is left of its process group. `leader` must not have been waited for.
    """
    # Threads that look every few milliseconds, one for each sandbox of a flush, would hold up the event loop.
    ended, poll = os.pidfd_open(leader.pid), select.poll()
    poll.register(ended, select.POLLIN)
    try:
        for kill in (lambda: None, *kills):
            with contextlib.suppress(ProcessLookupError):
                kill()
            if poll.poll(seconds * 1e3):
                # Not reaped yet, the leader keeps the group's number from being anyone else's.
                os.killpg(leader.pid, signal.SIGKILL)
                leader.wait()
                return True
    finally:
        os.close(ended)
    return False


def end_recorded(scratch: Path) -> None:
    """Kills what a dead owner's session has left. Raises RecipeError when that does not end in time.

    The number may be someone else's by now; but only its own processes name the scratch folder in their command.
    """
    try:
        session = int((scratch / FILE).read_text())
    except (FileNotFoundError, ValueError):  # its bwrap has not run
        return
    deadline = time.monotonic() + KILL_SECONDS
    while pids := [pid for pid in _members(session) if os.fsencode(scratch) in _read(pid, "cmdline")]:
        if time.monotonic() > deadline:
            raise RecipeError("a dead run's sandbox does not end", where=f"processes {pids}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def _members(session: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _read(int(folder.name), "stat").rpartition(b")")[2].split()  # state, parent, group, session
        if fields[3:4] == [b"%d" % session]:
            yield int(folder.name)


def _read(pid: int, name: str) -> bytes:
    """Of a process that has ended: nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
