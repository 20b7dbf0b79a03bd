"""A run's folder: RUNS_ROOT/RUN_NAME, never one that was used; files appear in it whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, RecipeError
from recipe.files import write_whole

SUBFOLDERS = ("logs", "trials", "checkpoints", "dump_details", "launcher", "report")


@dataclass(frozen=True)
class RunFolder:
    """The paths that others may rely on; DUMP_DETAILS and the job's own files lie beside them."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Makes the layout. Raises BadInputError when the folder is in use or can't be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            raise BadInputError("the run folder is in use", expected="a new RUN_NAME", found=path) from None
        except OSError as error:
            raise BadInputError("the run folder can't be made", found=error, where=path) from error
        try:
            for name in SUBFOLDERS:
                (path / name).mkdir()
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise BadInputError("the run folder can't be made", found=error, where=path) from error
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else follows this run meanwhile. Raises BadInputError when somebody does."""
        with (self.path / "launcher" / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BadInputError(
                    "another launcher follows this run", found=error, where=lock.name
                ) from None
            yield

    @property
    def train_log(self) -> Path:
        return self.path / "logs" / "train.log"

    @property
    def agent_server_log(self) -> Path:
        return self.path / "logs" / "agent_server.log"

    @property
    def ray_log(self) -> Path:
        return self.path / "logs" / "ray.log"

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def job_file(self) -> Path:
        return self.path / "launcher" / "job.json"


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2) + "\n")


@contextmanager
def full_disk_named(runs_root: Path) -> Iterator[None]:
    """Turns the system's error of a full disk into a RecipeError that tells where and how much is free."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = f"{shutil.disk_usage(existing_part(runs_root)).free:,} bytes free"
        raise RecipeError("the disk is full", found=free, where=f"RUNS_ROOT {runs_root}") from error


def existing_part(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next(part for part in (path, *path.parents) if part.exists())
