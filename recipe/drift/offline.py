"""The ring that needs this repository only: references, literals, flake.lock and rendered files."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from recipe.drift import flake, rendered
from recipe.drift.lines import Line, compare, drift, ok, place, skip
from recipe.files import read_text
from recipe.pins import IMAGE_PATHS, PINS, RELIED_ON, TOOLS, UPSTREAM, Pins
from recipe.programs import git, last_line
from recipe.settings import Checkouts

CONTAINERFILE, WORKFLOWS = "container/Containerfile", ".github/workflows"
# A commit of git, a SHA-256 as of an image's digest, and a hash as Nix writes it.
LITERAL = re.compile(
    r"(?<![0-9a-fA-F])(?:[0-9a-fA-F]{64}|[0-9a-fA-F]{40})(?![0-9a-fA-F])|sha256-[A-Za-z0-9+/]{43}="
)


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """Every line of the ring."""
    yield ok(f"{PINS}/*.json have their schema and forms")
    yield from references(root, pins)
    yield from flake.check(root, pins)
    yield from repeated(root, pins)
    yield from literals(root, pins)
    yield from rendered.check(root, pins)


def references(root: Path, pins: Pins) -> Iterator[Line]:
    """What is relied on is relied on in a source that the recipe has; the settings know the image's paths."""
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
            where=place(root, RELIED_ON, "features", index, "source"),
            run=f"git diff {RELIED_ON}",
        )
    if not lost:
        yield ok(f"{RELIED_ON} names sources that the recipes have")
    for name, setting in IMAGE_PATHS.items():
        yield compare(
            f"the image's path of {name} is the default of {setting.upper()}",
            str(Checkouts.model_fields[setting].default),
            pins.image.paths[name],
            where=place(root, UPSTREAM, "image", "paths", name),
            run=f"git diff {UPSTREAM} recipe/settings.py",
        )


def repeated(root: Path, pins: Pins) -> Iterator[Line]:
    """A drift for each line that has a pin of its own, of the files that can't read pins/.

    The Containerfile takes every pin as an argument, a workflow repeats its actions' commits.
    """
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
