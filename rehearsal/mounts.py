"""A small file system under a job's folder, for disks that get full; needs root and the right to mount."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from rehearsal.job import Job

# What the doctor asks for, and a little more.
MEGABYTES = 1100
FILL_SECONDS = 0.01  # sooner than a sandbox starts


def small(name: str) -> Callable[[Job], None]:
    """Mounts a tmpfs at the job's folder `name`, which has room for a start."""

    def prepare(job: Job) -> None:
        folder = job.root / name
        folder.mkdir()
        _mount(folder, MEGABYTES)
        job.closing.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)

    return prepare


def fill(name: str) -> Callable[[Job], None]:
    """Fills the folder `name` to the last byte, and again whatever is freed there, until the job has ended."""

    def cause(job: Job) -> None:
        job.notes["full"] = job.root / name / "full"
        file = job.closing.enter_context(job.notes["full"].open("wb", buffering=0))
        _to_the_last_byte(file)
        thread = Thread(target=_keep_full, args=(job, file))
        thread.start()
        job.closing.callback(thread.join)

    return cause


def _keep_full(job: Job, file: FileIO) -> None:
    while job.code is None:
        _to_the_last_byte(file)
        time.sleep(FILL_SECONDS)


def _to_the_last_byte(file: FileIO) -> None:
    with suppress(OSError):
        while True:
            file.write(bytes(1_000_000))


def why_not() -> str | None:
    """Why nothing can be mounted here, or None."""
    with TemporaryDirectory() as name:
        try:
            _mount(Path(name), MEGABYTES)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"mounting needs root and the right to: {error}"
        subprocess.run(["umount", name], check=True)
    return None


def _mount(folder: Path, megabytes: int) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    subprocess.run(command, capture_output=True, check=True)
