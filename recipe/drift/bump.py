"""`recipe pins-bump`: changes one pin in its file, writes what is rendered from it, and tells what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recipe.drift import flake, rendered
from recipe.drift.checkouts import SETTINGS, is_checkout
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.json_text import replaced
from recipe.pins import FLAKE, UPSTREAM, Feature, FlakeInput, load_pins, parse_upstream
from recipe.programs import git
from recipe.settings import Checkouts

# Of a source's name, its checkout, and the old and the new commit in it: lines that say what becomes of something.
Compared = Callable[[str, Path, str, str], Iterator[str]]


def bump_source(
    root: Path,
    recipe: str,
    source: str,
    rev: str,
    nar_hash: str | None,
    chosen: Checkouts,
    compared: Sequence[Compared] = (),
) -> Iterator[str]:
    """Pins `source` of `recipe` at `rev`; yields lines that say what changed; `compared` may add to them.

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
    setting = SETTINGS.get(source, "harbor_dir")  # CAMEL comes with Harbor
    folder = getattr(chosen, setting)
    if folder is None or not is_checkout(folder):
        yield f"what becomes of what is relied on in {source}: a checkout as {setting.upper()} shows it"
    elif lacking := [
        one for one in (old, rev) if git(folder, "cat-file", "-e", f"{one}^{{commit}}").returncode
    ]:
        yield f"what becomes of what is relied on in {source}: unknown, {folder} lacks {' and '.join(lacking)}"
    else:
        for feature in pins.features_of(recipe, source):
            before, after = (_state(feature, folder, one) for one in (old, rev))
            yield f"relied on in {source}: {feature.name}: {before} -> {after} ({feature.file})"
        for tell in compared:
            yield from tell(source, folder, old, rev)


def bump_flake_input(root: Path, name: str) -> Iterator[str]:
    """Seals what flake.lock says of the input `name` now. Raises BadInputError."""
    known = load_pins(root).flake_inputs
    if name not in known:
        raise BadInputError(
            "without RECIPE and REV only an input of flake.nix can be sealed",
            expected=f"RECIPE, SOURCE and REV; or SOURCE alone, one of {', '.join(known)}",
            found=f"SOURCE={name}",
        )
    locked = _named(flake.read_lock(root).nodes, name, "SOURCE in flake.lock").locked
    sealed = replaced(read_text(root / FLAKE), (name, "seal"), FlakeInput.seal_of(locked))
    rendered.write({root / FLAKE: sealed})
    yield f"{name}: {FLAKE} seals {locked.get('rev')} as flake.lock has it"


def _named[T](known: dict[str, T], name: str, word: str) -> T:
    if name not in known:
        raise BadInputError(
            f"{word} is unknown", expected=f"one of {', '.join(known)}", found=name or "nothing"
        )
    return known[name]


def _state(feature: Feature, folder: Path, rev: str) -> str:
    """What holds of the feature at a commit."""
    shown = git(folder, "show", f"{rev}:{feature.file}")
    if shown.returncode:
        return "MISSING, no such file"
    return "there" if feature.holds(shown.stdout) else "MISSING"
