"""`recipe` with a wall clock that can be turned: `python -m rehearsal.clock` takes the words of `recipe`.

libfaketime, loaded into every process that is started, adds what a file says to the time; clocks that only go on,
which all waiting here goes by, are left alone as they are when somebody sets a machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from recipe import cli, given
from recipe.harbor import server
from rehearsal.job import Job

LIBRARY = "vendor/libfaketime/src/libfaketime.so.1"
FILE = "FAKETIME_TIMESTAMP_FILE"
SHARED = Path("/dev/shm")  # noqa: S108 (where its files are, one or two for each process)
SECONDS = 3600  # of an hour
# The file is read again each second.
FIXED = {"FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def prepare(job: Job) -> None:
    """The job has a clock of its own, which is right at first."""
    # Importing it would look whether it is loaded here.
    package = find_spec("libfaketime")
    assert package is not None
    assert package.origin is not None
    _sweep()
    job.closing.callback(_sweep)
    file = job.root / "clock"
    file.write_text("+0")
    job.program = "rehearsal.clock"
    job.environment |= FIXED | {
        FILE: str(file),
        "LD_PRELOAD": str(Path(package.origin).parent / LIBRARY),
    }


def _sweep() -> None:
    """Removes what libfaketime left of killed processes: a new one of the same number and another user can't start."""
    for file in SHARED.glob("*faketime_s[eh]m_*"):
        if not Path("/proc", file.name.rpartition("_")[2]).exists():
            with suppress(FileNotFoundError, PermissionError):
                file.unlink()


def jump(hours: int) -> Callable[[Job], None]:
    """Sets the job's clock this many hours forward."""

    def cause(job: Job) -> None:
        Path(job.environment[FILE]).write_text(f"{hours * SECONDS:+d}")

    return cause


def jumped(job: Job) -> Iterator[str]:
    """The job's own events show the jump."""
    times = [event["time"] for event in job.events]
    if not any(abs(later - earlier) > SECONDS / 2 for earlier, later in pairwise(times)):
        yield "no clock has jumped"


if __name__ == "__main__":
    given.PASSED_ON = (*given.PASSED_ON, FILE, *FIXED)
    server.PASSED_ON = (*server.PASSED_ON, "LD_PRELOAD", FILE, *FIXED)
    cli.main()
