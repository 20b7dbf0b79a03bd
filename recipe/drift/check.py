"""`recipe pins-check`: the three rings, a line for each comparison, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from recipe.drift import checkouts, offline, online
from recipe.drift.lines import Line
from recipe.drift.online import Endpoints
from recipe.errors import BadInputError
from recipe.pins import Pins
from recipe.settings import Checkouts

Online = Literal["off", "auto", "require"]
COUNTED = {"ok": "ok", "DRIFT": "drifted", "FAIL": "failed", "skip": "skipped"}


def rings(
    root: Path, pins: Pins, chosen: Checkouts, *, network: Online, endpoints: Endpoints | None = None
) -> Iterator[tuple[str, Iterator[Line]]]:
    """Each ring's name and its lines, which are made as they are read."""
    yield "offline", offline.check(root, pins)
    yield f"checkouts of {chosen.recipe}", checkouts.check(root, pins, chosen)
    if network != "off":
        yield "online", online.check(root, pins, require=network == "require", endpoints=endpoints)


def report(
    root: Path,
    pins: Pins,
    chosen: Checkouts,
    *,
    network: Online,
    as_json: bool,
    endpoints: Endpoints | None = None,
) -> int:
    """Prints every line as text or as one JSON object. Returns the exit code: 1 after a drift or a failure.

    Raises BadInputError for what may not be read.
    """
    try:
        return _report(
            rings(root, pins, chosen, network=network, endpoints=endpoints), chosen.recipe, as_json
        )
    except PermissionError as error:
        raise BadInputError(
            "the comparison can't go on",
            expected="permission to read it",
            found=error.strerror,
            where=error.filename,
        ) from None


def _report(told_by: Iterator[tuple[str, Iterator[Line]]], recipe: str, as_json: bool) -> int:
    counts = dict.fromkeys(COUNTED, 0)
    told = []
    for ring, lines in told_by:
        if not as_json:
            print(ring)
        for line in lines:
            counts[line.status] += 1
            told.append({"ring": ring.split()[0], "status": line.status, "name": line.name, **line.facts})
            if not as_json:
                print(f"  {line}".replace("\n", "\n  "), flush=True)
    if as_json:
        print(json.dumps({"recipe": recipe, "counts": counts, "lines": told}, indent=2))
    else:
        print("pins: " + ", ".join(f"{counts[status]} {word}" for status, word in COUNTED.items()))
    return int(counts["DRIFT"] + counts["FAIL"] > 0)
