"""flake.lock against flake.nix and the seals of pins/flake.json, without Nix and without a network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict, TypeAdapter, with_config

from recipe.drift.lines import Line, compare, drift
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.json_text import line_of, parse
from recipe.pins import FLAKE, Commit, FlakeInput, NarHash, Pins

LOCK_VERSION = 7  # what Nix 2.8 to 2.34 write
RELOCK = "nix flake lock"


@with_config(ConfigDict(strict=True, extra="allow"))
class Locked(TypedDict):
    """What an input came to."""

    type: Literal["github"]
    owner: str
    repo: str
    rev: Commit
    narHash: NarHash
    lastModified: int


class Node(BaseModel, strict=True):
    """An input, or the flake itself. One of its inputs is a node's name, or a list when it follows another."""

    inputs: dict[str, str | list[str]] = {}
    original: dict[str, str] = {}
    locked: Locked | None = None


class Lock(BaseModel, strict=True):
    """flake.lock, as far as it is read here."""

    nodes: dict[str, Node]
    root: str
    version: int

    @property
    def names(self) -> list[str]:
        """Of each node but the root."""
        return sorted(set(self.nodes) - {self.root})


def read_lock(root: Path) -> Lock:
    """flake.lock below `root`. Raises BadInputError when it is not there or of another shape."""
    path = root / "flake.lock"
    return parse(path, read_text(path), TypeAdapter(Lock))


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """flake.lock is complete, has the inputs of flake.nix, and says what it said when it was sealed."""
    try:
        lock, text = read_lock(root), read_text(root / "flake.lock")
        inputs = declared(read_text(root / "flake.nix"))
    except BadInputError as error:
        run = f"git checkout flake.nix flake.lock, or {RELOCK}"
        yield drift(
            error.problem, **{"expected": "what Nix writes", "found": "nothing", **error.facts, "run": run}
        )
        return
    yield compare("flake.lock has the known version", LOCK_VERSION, lock.version, where=_at(text), run=RELOCK)
    referred = {lock.root} | {
        target for node in lock.nodes.values() for target in node.inputs.values() if isinstance(target, str)
    }
    nodes = compare(
        "flake.lock has every node, and no other",
        sorted(referred),
        sorted(lock.nodes),
        where=_at(text, "nodes"),
        run=RELOCK,
    )
    yield nodes
    if not nodes.bad:
        yield from _inputs(inputs, lock, text)
        yield from _seals(pins.flake_inputs, lock, text)


def declared(nix: str) -> dict[str, str]:
    """The strings set below `inputs` before `outputs` in the text of a flake.nix, by their attribute path."""
    code = re.sub(r"#[^\n]*|/\*.*?\*/", "", nix, flags=re.DOTALL)
    path: list[str] = []
    found: dict[str, str] = {}
    word = ""
    for part in re.findall(r'"[^"]*"|[{}=;]|[\w.-]+', code):
        if part == "outputs":
            break
        if part == "{":
            path.append(word)
            word = ""
        elif part == "}":
            path = path[:-1]
        elif part.startswith('"'):
            found[".".join(name for name in [*path, word] if name)] = part[1:-1]
        elif part not in "=;":
            word = part
    return {key.removeprefix("inputs."): value for key, value in found.items() if key.startswith("inputs.")}


def _inputs(declared: Mapping[str, str], lock: Lock, text: str) -> Iterator[Line]:
    inputs = lock.nodes[lock.root].inputs
    names = sorted({key.partition(".")[0] for key in declared})
    yield compare(
        "flake.lock has the inputs of flake.nix", names, sorted(inputs), where=_at(text, "nodes"), run=RELOCK
    )
    for name in sorted(set(names) & set(inputs)):
        node = str(inputs[name])
        wanted = {key: value for key, value in declared.items() if key.partition(".")[0] == name}
        found = _in_lock(name, lock.nodes[node]) if node in lock.nodes else {}
        keys = sorted(wanted | found)
        yield compare(
            f"flake.lock: {name} is the one of flake.nix",
            ", ".join(f"{key} = {wanted.get(key, 'nothing')}" for key in keys),
            ", ".join(f"{key} = {found.get(key, 'nothing')}" for key in keys),
            where=_at(text, "nodes", node),
            run=RELOCK,
        )


def _in_lock(name: str, node: Node) -> dict[str, str]:
    """What the lock says of an input's `url` and of what its inputs follow, written as flake.nix writes it."""
    url = f"github:{'/'.join(node.original[key] for key in ('owner', 'repo', 'ref') if key in node.original)}"
    follows = {
        f"{name}.inputs.{key}.follows": "/".join(target)
        for key, target in node.inputs.items()
        # One that begins with the input's own name is of the input's own flake.nix.
        if isinstance(target, list) and target[:1] != [name]
    }
    return {f"{name}.url": url, **follows}


def _seals(seals: Mapping[str, FlakeInput], lock: Lock, text: str) -> Iterator[Line]:
    yield compare(
        f"{FLAKE} has the nodes of flake.lock",
        lock.names,
        sorted(seals),
        where=f"{FLAKE}:1",
        run=f"git diff {FLAKE}; a new input needs an entry with a reason",
    )
    for name in sorted(set(lock.names) & set(seals)):
        locked = lock.nodes[name].locked
        yield compare(
            f"flake.lock: {name} is as it was sealed",
            seals[name].seal,
            FlakeInput.seal_of(locked),
            where=f"{_at(text, 'nodes', name, 'locked')} (rev {locked and locked['rev']})",
            run=f"git checkout flake.lock, or after `nix flake update`: make pins-bump SOURCE={shlex.quote(name)}",
        )


def _at(text: str, *steps: str) -> str:
    return f"flake.lock:{line_of(text, steps)}"
