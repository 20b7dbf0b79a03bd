"""`recipe pins-check`: the three rings, a line for each comparison, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from recipe.drift import checkouts, offline, online
from recipe.pins import Pins
from recipe.settings import Checkouts

Online = Literal["off", "auto", "require"]
COUNTED = {"ok": "ok", "DRIFT": "drifted", "FAIL": "failed", "skip": "skipped"}


def report(root: Path, pins: Pins, chosen: Checkouts, *, network: Online, as_json: bool) -> int:
    """Prints every line as text or as one JSON object. Returns the exit code: 1 after a drift or a failure."""
    # The lines are made as they are read.
    rings = {"offline": offline.check(root, pins)}
    rings[f"checkouts of {chosen.recipe}"] = checkouts.check(root, pins, chosen)
    if network != "off":
        rings["online"] = online.check(root, pins, require=network == "require")
    counts, told = dict.fromkeys(COUNTED, 0), []
    for ring, lines in rings.items():
        if not as_json:
            print(ring)
        for line in lines:
            counts[line.status] += 1
            told.append({"ring": ring.split()[0], "status": line.status, "name": line.name, **line.facts})
            if not as_json:
                print(f"  {line}".replace("\n", "\n  "), flush=True)
    if as_json:
        print(json.dumps({"recipe": chosen.recipe, "counts": counts, "lines": told}, indent=2))
    else:
        print("pins: " + ", ".join(f"{counts[status]} {word}" for status, word in COUNTED.items()))
    return int(counts["DRIFT"] + counts["FAIL"] > 0)
