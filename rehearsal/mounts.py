"""A small file system under a job's folder, for disks that get full; needs root and the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rehearsal.job import Job

# What the doctor asks for, and a little more.
MEGABYTES = 1100


def small(name: str) -> Callable[[Job], None]:
    """Mounts a tmpfs at the job's folder `name`, which has room for a start."""

    def prepare(job: Job) -> None:
        folder = job.root / name
        folder.mkdir()
        _mount(folder, MEGABYTES)
        job.closing.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)

    return prepare


def fill(name: str) -> Callable[[Job], None]:
    """Fills the folder `name` to the last byte."""

    def cause(job: Job) -> None:
        job.notes["full"] = job.root / name / "full"
        with suppress(OSError), (job.root / name / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1_000_000))

    return cause


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
