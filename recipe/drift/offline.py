"""The ring that needs this repository only: references, literals, locks and rendered files."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from recipe.drift import flake, readers, rendered
from recipe.drift.lines import Line, compare, drift, ok, skip
from recipe.files import read_text
from recipe.given import child_environment
from recipe.json_text import line_of
from recipe.pins import IMAGE_PATHS, PINS, RELIED_ON, UPSTREAM, Pins
from recipe.programs import TIMED_OUT, ask, git, last_line
from recipe.settings import Checkouts

# A commit of git, a SHA-256 as of an image's digest, and a hash as Nix writes it.
LITERAL = re.compile(
    r"(?<![0-9a-fA-F])(?:[0-9a-fA-F]{64}|[0-9a-fA-F]{40})(?![0-9a-fA-F])|sha256-[A-Za-z0-9+/]{43}="
)


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """Every line of the ring."""
    yield ok(f"{PINS}/*.json have their schema and forms")
    yield from references(root, pins)
    yield from flake.check(root, pins)
    yield uv_lock(root, pins)
    yield from readers.check(root, pins)
    yield from literals(root, pins)
    yield from rendered.check(root, pins)


def references(root: Path, pins: Pins) -> Iterator[Line]:
    """What is relied on is relied on in a source that the recipe has; the settings know the image's paths."""
    relied_on = read_text(root / RELIED_ON)
    lost = [
        (index, feature, recipe)
        for index, feature in enumerate(pins.features)
        for recipe in feature.recipes
        if feature.source not in pins.recipes[recipe].sources
    ]
    for index, feature, recipe in lost:
        yield drift(
            f"{RELIED_ON}: {feature.name}",
            expected=f"one of {', '.join(pins.recipes[recipe].sources)}, the sources of {recipe}",
            found=feature.source,
            where=f"{RELIED_ON}:{line_of(relied_on, ['features', index, 'source'])}",
            run=f"git diff {RELIED_ON}",
        )
    if not lost:
        yield ok(f"{RELIED_ON} names sources that the recipes have")
    upstream = read_text(root / UPSTREAM)
    for name, setting in IMAGE_PATHS.items():
        yield compare(
            f"the image's path of {name} is the default of {setting.upper()}",
            str(Checkouts.model_fields[setting].default),
            pins.image.paths[name],
            where=f"{UPSTREAM}:{line_of(upstream, ['image', 'paths', name])}",
            run=f"git diff {UPSTREAM} recipe/settings.py",
        )


def literals(root: Path, pins: Pins) -> Iterator[Line]:
    """Every commit or SHA-256 in a tracked text outside pins/, tests/ and locks is a pinned one."""
    listed = git(root, "ls-files", "-z")
    if listed.returncode:
        yield skip("literals of tracked files", last_line(listed.stderr))
        return
    names = [name for name in listed.stdout.split("\0") if name and _is_searched(name)]
    known = _pinned(pins)
    bad = 0
    for name in names:
        for number, literal in _literals(root / name):
            if literal not in known:
                bad += 1
                nearest = difflib.get_close_matches(literal, known, n=1, cutoff=0.8)
                yield drift(
                    f"{name} has a commit or hash that is not pinned",
                    expected=nearest[0] if nearest else f"a value of {PINS}/",
                    found=literal,
                    where=f"{name}:{number}",
                    run=f"git checkout {shlex.quote(name)}, or pin it in {PINS}/ and read it from there",
                )
    if not bad:
        yield ok(f"commits and hashes in {len(names)} tracked files are pinned ones")


def uv_lock(root: Path, pins: Pins) -> Line:
    """uv.lock fits pyproject.toml. A lock that does is confirmed without a network, an empty cache included."""
    name = "uv.lock fits pyproject.toml"
    uv = find_uv(root, pins.tools["uv"].version)
    if uv is None:
        return skip(name, "uv is neither on PATH nor in .tools; any other make target installs it")
    command = [uv, "lock", "--check", "--offline", "--python", sys.executable, "--no-progress"]
    done = ask(command, folder=root)
    if done.returncode == TIMED_OUT:
        return skip(name, last_line(done.stderr))
    if done.returncode == 0:
        return ok(name)
    return drift(
        name,
        expected="a lock of these dependencies",
        found=last_line(done.stderr),
        where="uv.lock:1",
        run="uv lock, then commit uv.lock",
    )


def find_uv(root: Path, version: str) -> str | None:
    """The uv that tools/bootstrap.py takes: on PATH, else the one that it installed."""
    path = child_environment().get("PATH")
    own = [root / ".tools" / folder / "bin" for folder in (f"uv-{version}", f"uv-{version}-target")]
    return shutil.which("uv", path=path) or next(
        (str(folder / "uv") for folder in own if (folder / "uv").is_file()), None
    )


def _is_searched(name: str) -> bool:
    return not name.startswith((f"{PINS}/", "tests/")) and not name.endswith(".lock")


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    # What a link leads to is tracked itself, or not ours; a tracked file can be gone.
    if path.is_symlink() or not path.is_file():
        return
    text = path.read_bytes().decode(errors="replace")
    for match in LITERAL.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def _pinned(pins: Pins) -> set[str]:
    sources = [source for recipe in pins.recipes.values() for source in recipe.sources.values()]
    values = [pins.image.digest.removeprefix("sha256:"), pins.model.revision]
    values += [value for source in sources for value in (source.rev, source.nar_hash) if value]
    return set(values + [tool.rev for tool in pins.tools.values() if tool.rev])
