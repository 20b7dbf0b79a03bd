"""`recipe pins-bump`: changes one pin in its file, writes what is rendered from it, and tells what it means."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from recipe.drift import rendered
from recipe.drift.checkouts import SETTINGS
from recipe.drift.git import git
from recipe.errors import BadInputError
from recipe.pins import FLAKE, UPSTREAM, Feature, FlakeInput, Pins, load_pins, parse_upstream, replaced
from recipe.settings import Checkouts


def bump_source(
    root: Path, recipe: str, source: str, rev: str, nar_hash: str | None, chosen: Checkouts
) -> Iterator[str]:
    """Pins `source` of `recipe` at `rev`; yields lines that say what changed.

    Raises BadInputError for an unknown name or a malformed value; then nothing is written.
    """
    pins = load_pins(root)
    sources = _named(pins.recipes, recipe, "RECIPE").sources
    old = _named(sources, source, "SOURCE").rev
    path, steps = root / UPSTREAM, ("recipes", recipe, source)
    text = replaced(path.read_text(), (*steps, "rev"), rev)
    text = replaced(text, (*steps, "narHash"), nar_hash)
    parse_upstream(path, text)
    _write(path, text)
    pins = load_pins(root)
    yield f"{recipe} {source}: {old} -> {rev}"
    yield f"narHash: {nar_hash or 'null (NAR_HASH=... records one)'}"
    yield f"reason, as before: {sources[source].reason}; edit {UPSTREAM} if it no longer holds"
    yield from (f"written: {name}" for name in rendered.write(root, pins))
    yield from _relied_on(pins, recipe, source, (old, rev), chosen)


def bump_flake_input(root: Path, name: str) -> Iterator[str]:
    """Seals what flake.lock says of the input `name` now. Raises BadInputError."""
    known = load_pins(root).flake_inputs
    if name not in known:
        raise BadInputError(
            "without RECIPE and REV only an input of flake.nix can be sealed",
            expected=f"RECIPE, SOURCE and REV; or SOURCE alone, one of {', '.join(known)}",
            found=f"SOURCE={name}",
        )
    path = root / "flake.lock"
    try:
        lock = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise BadInputError(
            "flake.lock can't be read", found=error, where=path, run="nix flake lock"
        ) from None
    locked = _named(lock["nodes"], name, "SOURCE")["locked"]
    _write(root / FLAKE, replaced((root / FLAKE).read_text(), (name, "seal"), FlakeInput.seal_of(locked)))
    yield f"{name}: {FLAKE} seals {locked['rev']} as flake.lock has it"


def _named[T](known: dict[str, T], name: str, word: str) -> T:
    if name not in known:
        raise BadInputError(
            f"{word} is unknown", expected=f"one of {', '.join(known)}", found=name or "nothing"
        )
    return known[name]


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also when we are killed meanwhile."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, path.stat().st_mode)  # noqa: PTH101
    os.replace(file.name, path)  # noqa: PTH105


def _relied_on(
    pins: Pins, recipe: str, source: str, revs: tuple[str, str], chosen: Checkouts
) -> Iterator[str]:
    """What holds of the relied-on features at the old and at the new commit, read from the checkout."""
    features = pins.features_of(recipe, source)
    setting = SETTINGS.get(source, "harbor_dir")  # CAMEL comes with Harbor
    folder = getattr(chosen, setting)
    if not features:
        yield f"relied on in {source}: nothing"
    elif folder is None or not (folder / ".git").exists():
        yield f"relied on in {source}: {len(features)} features; a checkout as {setting.upper()} shows them"
    else:
        for feature in features:
            before, after = (_state(feature, folder, rev) for rev in revs)
            yield f"relied on in {source}: {feature.name}: {before} -> {after} ({feature.file})"


def _state(feature: Feature, folder: Path, rev: str) -> str:
    if git(folder, "cat-file", "-e", f"{rev}^{{commit}}").returncode:
        return f"unknown, {folder} lacks the commit"
    shown = git(folder, "show", f"{rev}:{feature.file}")
    if shown.returncode:
        return "MISSING, no such file"
    return "there" if feature.holds(shown.stdout) else "MISSING"
