"""A directory that one step fills: of which model it is, and a marker, written last, that it is complete."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError
from recipe.files import read_text, write_whole

NOTES = ".prepare"
Files = dict[
    str, dict[str, Any]
]  # by path: size in bytes; of the hub's also sha256, or else blob (git's hash)


@dataclass(frozen=True)
class Target:
    """`setting` names the directory, `model` is repository@revision."""

    setting: str
    directory: Path
    model: str

    @property
    def notes(self) -> Path:
        return self.directory / NOTES

    @property
    def marker(self) -> Path:
        return self.notes / "files.json"

    def complete(self) -> Files | None:
        """What the marker lists; None before the end. Raises BadInputError when another model is there."""
        if not os.path.lexists(self.marker):  # unlike exists(), no error in a folder for others
            return None
        try:
            noted = json.loads(read_text(self.marker))
            model, files = noted["model"], noted["files"] and dict(noted["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise self.refusal(f"a damaged {self.marker.name}: {error!r}") from None
        if model != self.model:
            raise self.refusal(model)
        listed: Files | None = files
        return listed

    def refusal(self, found: object) -> BadInputError:
        """Why the directory is not touched."""
        return BadInputError(
            f"{self.setting} holds something else",
            expected=f"{self.model}, or nothing",
            found=found,
            where=self.directory,
            run=f"another {self.setting}, or: rm -r {self.directory}",
        )

    def mark(self, files: Files | None) -> None:
        """Notes which model is here, and at the end its files."""
        self.notes.mkdir(parents=True, exist_ok=True)
        write_whole(self.marker, json.dumps({"model": self.model, "files": files}, indent=1))

    def paths(self) -> dict[str, Path]:
        """Every file but hidden ones, by its path below the directory."""
        found = {str(path.relative_to(self.directory)): path for path in self.directory.rglob("*")}
        return {name: path for name, path in found.items() if path.is_file() and not name.startswith(".")}
