"""A run's folder: RUNS_ROOT/RUN_NAME, never one that was used; files appear in it whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError

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
        for name in SUBFOLDERS:
            (path / name).mkdir()
        return cls(path)

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


def write_whole(path: Path, text: str) -> None:
    """Writes a file that a reader never sees half-written."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2) + "\n")
