"""flake.lock against the seals of pins/flake.json, without Nix and without a network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from recipe.drift.lines import Line, compare, drift, place
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.json_text import parse
from recipe.pins import FLAKE, FlakeInput, Pins

LOCK = Path("flake.lock")


class Node(BaseModel, strict=True):
    """An input, or the flake itself."""

    locked: dict[str, str | int] = {}


class Lock(BaseModel, strict=True):
    """flake.lock, as far as it is read here."""

    nodes: dict[str, Node]
    root: str


def read_lock(root: Path) -> Lock:
    """flake.lock below `root`. Raises BadInputError when it is not there or of another shape."""
    return parse(root / LOCK, read_text(root / LOCK), TypeAdapter(Lock))


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """flake.lock can be read, and says what it said when it was sealed; `make flake-check` has Nix look at the rest."""
    try:
        lock = read_lock(root)
    except BadInputError as error:
        run = "git checkout flake.lock, or nix flake lock"
        yield drift(
            error.problem, **{"expected": "what Nix writes", "found": "nothing", **error.facts, "run": run}
        )
        return
    names, seals = sorted(set(lock.nodes) - {lock.root}), pins.flake_inputs
    yield compare(
        f"{FLAKE} has the nodes of flake.lock",
        names,
        sorted(seals),
        where=f"{FLAKE}:1",
        run=f"git diff {FLAKE}; a new input needs an entry with a reason",
    )
    for name in sorted(set(names) & set(seals)):
        locked = lock.nodes[name].locked
        yield compare(
            f"flake.lock: {name} is as it was sealed",
            seals[name].seal,
            FlakeInput.seal_of(locked),
            where=f"{place(root, LOCK, 'nodes', name, 'locked')} (rev {locked.get('rev')})",
            run=f"git checkout flake.lock, or after `nix flake update`: make pins-bump SOURCE={shlex.quote(name)}",
        )
