"""What a comparison says: one line that is ok, a drift with all its facts, a failure, or a skip with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recipe.files import read_text
from recipe.json_text import Step, line_of


@dataclass(frozen=True)
class Line:
    """`facts` of a drift: expected, found, where, run. Of a failure or a skip: reason."""

    status: Literal["ok", "DRIFT", "FAIL", "skip"]
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        return self.status in ("DRIFT", "FAIL")

    def __str__(self) -> str:
        if set(self.facts) <= {"reason"}:
            return f"{self.status:<7}{': '.join([self.name, *self.facts.values()])}"
        return "\n".join(
            [f"{self.status:<7}{self.name}", *(f"         {key:<9}{v}" for key, v in self.facts.items())]
        )


def ok(name: str) -> Line:
    return Line("ok", name)


def skip(name: str, reason: object) -> Line:
    """Nothing could be compared, and `reason` says why."""
    return Line("skip", name, {"reason": str(reason)})


def drift(name: str, *, expected: object, found: object, where: object, run: str) -> Line:
    """`where` is a file, with its line where there is one; `run` is the command that mends it."""
    return Line(
        "DRIFT", name, {"expected": str(expected), "found": str(found), "where": str(where), "run": run}
    )


def compare(name: str, expected: object, found: object, *, where: object, run: str) -> Line:
    """Ok when both are equal, else a drift."""
    if expected == found:
        return ok(name)
    return drift(name, expected=expected, found=found, where=where, run=run)


def place(root: Path, file: Path, *steps: Step) -> str:
    """Where the value at `steps` is in a JSON file below `root`: FILE:LINE."""
    return f"{file}:{line_of(read_text(root / file), steps)}"
