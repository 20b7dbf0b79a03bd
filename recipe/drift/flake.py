"""flake.lock against flake.nix and the seals of pins/flake.json, without Nix and without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe.drift.lines import Line, compare, drift, ok
from recipe.files import read_text
from recipe.pins import FLAKE, FlakeInput, Pins, line_of

LOCK_VERSION = 7  # what Nix 2.8 to 2.34 write
RELOCK = "nix flake lock"


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """flake.lock is complete, has the inputs of flake.nix, and says what it said when it was sealed."""
    nix, lock = root / "flake.nix", root / "flake.lock"
    missing = [path.name for path in (nix, lock) if not path.is_file()]
    if missing:
        yield drift(
            "flake.nix and flake.lock are there",
            expected="both files",
            found=f"no {' and no '.join(missing)}",
            where=FLAKE,
            run=f"git checkout {' '.join(missing)}",
        )
        return
    text = read_text(lock)
    try:
        data = json.loads(text)
        nodes = data["nodes"]
        inputs = nodes[data["root"]].get("inputs", {})
        yield compare(
            "flake.lock has the known version", LOCK_VERSION, data["version"], where=_at(text), run=RELOCK
        )
        yield from _inputs(declared(read_text(nix)), nodes, inputs, text)
        yield from _nodes(nodes, data["root"], text)
        yield from _seals(pins.flake_inputs, nodes, data["root"], text)
    except (json.JSONDecodeError, RecursionError, LookupError, TypeError, AttributeError) as error:
        # Nix reads this file before anything else: what is wrong with it, Nix says best.
        yield drift(
            "flake.lock can be read",
            expected="what Nix writes",
            found=repr(error),
            where="flake.lock:" + str(getattr(error, "lineno", 1)),
            run=f"git checkout flake.lock, or {RELOCK}",
        )


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
            path.pop()
        elif part.startswith('"'):
            found[".".join(name for name in [*path, word] if name)] = part[1:-1]
        elif part not in "=;":
            word = part
    return {key.removeprefix("inputs."): value for key, value in found.items() if key.startswith("inputs.")}


def _inputs(
    declared: Mapping[str, str], nodes: Mapping[str, Any], inputs: Mapping[str, Any], text: str
) -> Iterator[Line]:
    names = sorted({key.partition(".")[0] for key in declared})
    yield compare(
        "flake.lock has the inputs of flake.nix", names, sorted(inputs), where=_at(text, "nodes"), run=RELOCK
    )
    for name in sorted(set(names) & set(inputs)):
        paths = {key: key.split(".")[1:] for key in declared if key.partition(".")[0] == name}
        node = nodes[inputs[name]]
        yield compare(
            f"flake.lock: {name} is the one of flake.nix",
            ", ".join(f"{key} = {declared[key]}" for key in paths),
            ", ".join(f"{key} = {_in_lock(node, path)}" for key, path in paths.items()),
            where=_at(text, "nodes", inputs[name]),
            run=RELOCK,
        )


def _in_lock(node: Mapping[str, Any], path: list[str]) -> str:
    """What the lock says of an input's `url` or of `inputs.NAME.follows`, written as flake.nix writes it."""
    if path == ["url"]:
        origin = node["original"]
        # A form that is not known here is compared as a whole, and differs.
        if origin.get("type") != "github":
            return json.dumps(origin)
        return f"github:{'/'.join(origin[key] for key in ('owner', 'repo', 'ref') if key in origin)}"
    target = node.get("inputs", {}).get(path[1]) if len(path) == 3 else None
    return "/".join(target) if isinstance(target, list) else str(target)


def _nodes(nodes: Mapping[str, Any], root: str, text: str) -> Iterator[Line]:
    referred = {root}
    for node in nodes.values():
        # A list follows another input and names no node.
        referred |= {target for target in node.get("inputs", {}).values() if isinstance(target, str)}
    yield compare(
        "flake.lock has every node, and no other",
        sorted(referred),
        sorted(nodes),
        where=_at(text, "nodes"),
        run=RELOCK,
    )
    forms = {"rev": r"[0-9a-f]{40}", "narHash": r"sha256-[A-Za-z0-9+/]{43}=", "lastModified": r"[0-9]+"}
    for name in sorted(set(nodes) - {root}):
        locked = nodes[name]["locked"]
        bad = {key: form for key, form in forms.items() if not re.fullmatch(form, str(locked.get(key, "")))}
        for key, form in bad.items():
            yield drift(
                f"flake.lock: {name}.{key}",
                expected=form,
                found=locked.get(key, "nothing"),
                where=_at(text, "nodes", name, "locked", key),
                run=RELOCK,
            )
        if not bad:
            yield ok(f"flake.lock: {name} is complete")


def _seals(seals: Mapping[str, FlakeInput], nodes: Mapping[str, Any], root: str, text: str) -> Iterator[Line]:
    names = sorted(set(nodes) - {root})
    yield compare(
        f"{FLAKE} has the nodes of flake.lock",
        names,
        sorted(seals),
        where=f"{FLAKE}:1",
        run=f"git diff {FLAKE}; a new input needs an entry with a reason",
    )
    for name in names:
        if name in seals:
            yield compare(
                f"flake.lock: {name} is as it was sealed",
                f"what has the seal {seals[name].seal}",
                _sealed(nodes[name]["locked"], seals[name]),
                where=_at(text, "nodes", name, "locked"),
                run=f"git checkout flake.lock, or after `nix flake update`: make pins-bump SOURCE={name}",
            )


def _sealed(locked: Mapping[str, Any], sealed: FlakeInput) -> str:
    seal = FlakeInput.seal_of(locked)
    told = "" if seal == sealed.seal else f" (rev {locked.get('rev')}, {locked.get('narHash')})"
    return f"what has the seal {seal}{told}"


def _at(text: str, *steps: str) -> str:
    return f"flake.lock:{line_of(text, steps)}"
