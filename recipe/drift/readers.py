"""What can't read pins/: the Containerfile takes every pin as an argument, a workflow repeats its actions' commits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from recipe.drift.lines import Line, compare, drift, ok
from recipe.files import read_text
from recipe.pins import TOOLS, Pins

CONTAINERFILE, WORKFLOWS = "container/Containerfile", ".github/workflows"


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """A drift for each line of these files that has a pin of its own."""
    bases = re.findall(r"^\s*FROM\b.*", read_text(root / CONTAINERFILE), re.MULTILINE | re.IGNORECASE)
    yield compare(
        f"{CONTAINERFILE} starts from the image that it is given",
        "FROM ${BASE}",
        "; ".join(bases),
        where=f"{CONTAINERFILE}:1",
        run=f"git diff {CONTAINERFILE}",
    )
    yield from _only(root, CONTAINERFILE, r"\s*ARG\b", r"ARG \w+", "ARG without a default")
    actions = [f"uses: {name}@{tool.rev} # {tool.version}" for name, tool in pins.tools.items() if tool.rev]
    allowed = "|".join(rf"(- )?{re.escape(action)}" for action in actions)
    for path in sorted((root / WORKFLOWS).glob("*.y*ml")):
        expected = f"{' or '.join(actions)}, of {TOOLS}"
        yield from _only(root, f"{WORKFLOWS}/{path.name}", r"[^#]*\buses\b[^#]*:", allowed, expected)


def _only(root: Path, file: str, picked: str, allowed: str, expected: str) -> Iterator[Line]:
    """A drift for each line that begins with `picked` and is not `allowed`."""
    lines = enumerate(read_text(root / file).splitlines(), 1)
    wrong = [
        (number, line)
        for number, line in lines
        if re.match(picked, line, re.IGNORECASE) and not re.fullmatch(allowed, line.strip())
    ]
    name, run = f"{file} has no pin of its own", f"git diff {shlex.quote(file)}"
    for number, line in wrong:
        yield drift(name, expected=expected, found=line.strip(), where=f"{file}:{number}", run=run)
    if not wrong:
        yield ok(name)
