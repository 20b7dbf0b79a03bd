"""`recipe pins-bump`: changes one pin in its file, writes what is rendered from it, and tells what it means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from recipe.drift import rendered
from recipe.drift.checkouts import SETTINGS
from recipe.drift.git import git
from recipe.errors import BadInputError
from recipe.files import read_text
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
    text = replaced(read_text(path), (*steps, "rev"), rev)
    text = replaced(text, (*steps, "narHash"), nar_hash)
    upstream = parse_upstream(path, text)
    pins = pins.model_copy(update={"recipes": upstream.recipes})
    rendered_anew = rendered.stale(root, pins)
    rendered.write({path: text, **rendered_anew})
    yield f"{recipe} {source}: {old} -> {rev}"
    yield f"narHash: {nar_hash or 'null (NAR_HASH=... records one)'}"
    yield f"reason, as before: {sources[source].reason}; edit {UPSTREAM} if it no longer holds"
    yield from (f"written: {path.relative_to(root)}" for path in rendered_anew)
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
        locked = json.loads(read_text(path))["nodes"][name]["locked"]
        rev = locked["rev"]
    except (ValueError, LookupError, TypeError) as error:
        raise BadInputError(
            "flake.lock can't be read", found=repr(error), where=path, run="nix flake lock"
        ) from None
    sealed = replaced(read_text(root / FLAKE), (name, "seal"), FlakeInput.seal_of(locked))
    rendered.write({root / FLAKE: sealed})
    yield f"{name}: {FLAKE} seals {rev} as flake.lock has it"


def _named[T](known: dict[str, T], name: str, word: str) -> T:
    if name not in known:
        raise BadInputError(
            f"{word} is unknown", expected=f"one of {', '.join(known)}", found=name or "nothing"
        )
    return known[name]


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
