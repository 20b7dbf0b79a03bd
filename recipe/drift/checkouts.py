"""The ring that needs checkouts: their commits, whether they are clean, and what is relied on in them."""

from __future__ import annotations

import json
import os.path
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from recipe.drift.git import git, last_line
from recipe.drift.lines import Line, compare, drift, ok, skip
from recipe.pins import RELIED_ON, UPSTREAM, Feature, Pins, Source, line_of
from recipe.settings import Checkouts, child_environment

SETTINGS = {"miles": "miles_dir", "sglang": "sglang_dir", "harbor": "harbor_dir"}
# Finds a package without importing it: SGLang's own import takes a GPU's driver and half a minute.
FIND_SGLANG = (
    "import importlib.util, json; spec = importlib.util.find_spec('sglang'); "
    "print(json.dumps(list(spec.submodule_search_locations or []) if spec else []))"
)


def check(root: Path, pins: Pins, chosen: Checkouts) -> Iterator[Line]:
    """Lines for each source of the recipe; a checkout that is not there is skipped, unless it was asked for."""
    upstream = (root / UPSTREAM).read_text()
    for name, setting in SETTINGS.items():
        folder = getattr(chosen, setting)
        lost = _missing(setting, chosen)
        if lost:
            yield lost
            continue
        source = pins.recipes[chosen.recipe].sources[name]
        pinned_at = f"{UPSTREAM}:{line_of(upstream, ['recipes', chosen.recipe, name, 'rev'])}"
        yield from _commit(name, folder, source, pinned_at)
        yield from _features(root, pins, chosen.recipe, name, folder)
    if "camel" in pins.recipes[chosen.recipe].sources and not _missing("harbor_dir", chosen):
        yield _camel(chosen, pins, upstream)
    yield _megatron(chosen)
    yield _imported_sglang(chosen)


def _missing(setting: str, chosen: Checkouts) -> Line | None:
    """Why there is nothing to compare, or None."""
    folder, name = getattr(chosen, setting), f"checkout {setting.rpartition('_')[0]}"
    if folder is None:
        return skip(name, f"{setting.upper()} is not set")
    if folder.is_dir():
        return None
    if chosen.source(setting) == "default":
        return skip(name, f"{folder} (the default of {setting.upper()}) is not there")
    return drift(
        name,
        expected="a folder",
        found="nothing",
        where=f"{folder} ({setting.upper()}, {chosen.source(setting)})",
        run=f"git clone it there, or leave {setting.upper()} out",
    )


def _commit(name: str, folder: Path, source: Source, pinned_at: str) -> Iterator[Line]:
    label = f"checkout {name}: commit"
    fetch = f"git -C {folder} fetch {source.url} {source.rev} && git -C {folder} checkout {source.rev}"
    # Without this, git would answer for a repository around the folder.
    if not (folder / ".git").exists():
        yield drift(
            label,
            expected=source.rev,
            found="no git checkout",
            where=folder,
            run=f"git clone {source.url} {folder}",
        )
        return
    head = git(folder, "rev-parse", "HEAD")
    found = head.stdout.strip() if head.returncode == 0 else last_line(head.stderr)
    yield compare(label, source.rev, found, where=f"{folder} (pinned in {pinned_at})", run=fetch)
    # Caches, builds and virtual environments lie in a checkout as well: only tracked files count.
    status = git(folder, "status", "--porcelain", "--untracked-files=no")
    changed = [line[3:] for line in status.stdout.splitlines()]
    if status.returncode or changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        yield drift(
            f"checkout {name}: clean",
            expected="no local change",
            found=f"{changed[0]} is changed{more}" if changed else last_line(status.stderr),
            where=folder / changed[0] if changed else folder,
            run=f"git -C {folder} diff HEAD; git -C {folder} stash",
        )
    else:
        yield ok(f"checkout {name}: clean")


def _features(root: Path, pins: Pins, recipe: str, name: str, folder: Path) -> Iterator[Line]:
    relied_on = (root / RELIED_ON).read_text()
    for feature in pins.features_of(recipe, name):
        pinned_at = f"{RELIED_ON}:{line_of(relied_on, ['features', pins.features.index(feature), 'name'])}"
        yield _feature(feature, folder, pins.recipes[recipe].sources[name].rev, pinned_at)


def _feature(feature: Feature, folder: Path, rev: str, pinned_at: str) -> Line:
    label, path = f"{feature.source}: {feature.name}", folder / feature.file
    text = path.read_text(errors="replace") if path.is_file() else None
    if text is not None and feature.holds(text):
        return ok(label)
    line = f":{_line(text, feature.absent)}" if text and feature.absent else ""
    return drift(
        label,
        expected=f"{feature.expected} ({feature.why})",
        found="no such file" if text is None else "the text" if feature.absent else "no match in the file",
        where=f"{path}{line} (relied on in {pinned_at})",
        run=f"git -C {folder} checkout {rev}",
    )


def _line(text: str, part: str) -> int:
    return text.count("\n", 0, text.index(part)) + 1


def _camel(chosen: Checkouts, pins: Pins, upstream: str) -> Line:
    """CAMEL has no checkout: Harbor's own lock brings it."""
    assert chosen.harbor_dir is not None
    rev = pins.recipes[chosen.recipe].sources["camel"].rev
    lock = chosen.harbor_dir / "uv.lock"
    text = lock.read_text() if lock.is_file() else ""
    if rev in text:
        return ok("camel: commit, in Harbor's uv.lock")
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if "/camel" in line]
    number, found = lines[0] if lines else (1, "no CAMEL from git")
    pinned_at = f"{UPSTREAM}:{line_of(upstream, ['recipes', chosen.recipe, 'camel', 'rev'])}"
    return drift(
        "camel: commit, in Harbor's uv.lock",
        expected=rev,
        found=found,
        where=f"{lock}:{number} (pinned in {pinned_at})",
        run=f"make pins-bump RECIPE={chosen.recipe} SOURCE=camel REV=<the commit of Harbor's uv.lock>",
    )


def _megatron(chosen: Checkouts) -> Line:
    lost = _missing("megatron_path", chosen)
    if lost:
        return lost
    package = chosen.megatron_path / "megatron" / "core"
    return compare(
        "megatron: a checkout of Megatron-LM (the image's digest pins it)",
        "a folder megatron/core",
        "a folder megatron/core" if package.is_dir() else "no megatron/core",
        where=chosen.megatron_path,
        run="set MEGATRON_PATH, or start in the image",
    )


def _imported_sglang(chosen: Checkouts) -> Line:
    """Whether `import sglang` takes the checkout, in the Python that trains: PATH's, less our own environment."""
    name = "sglang is imported from SGLANG_DIR"
    lost = _missing("sglang_dir", chosen)
    if lost:
        return skip(name, f"{chosen.sglang_dir} is not there")
    environment = child_environment()
    own = os.path.dirname(sys.executable)  # noqa: PTH120 - a link must not be followed
    path = os.pathsep.join(part for part in environment.get("PATH", "").split(os.pathsep) if part != own)
    python = shutil.which("python3", path=path)
    if python is None:
        return skip(name, "there is no python3 on PATH but our own")
    # Started elsewhere: a folder named sglang in the working directory would be taken for the package.
    done = subprocess.run(
        [python, "-c", FIND_SGLANG], cwd="/", env=environment, capture_output=True, text=True, timeout=60
    )
    places = json.loads(done.stdout) if done.returncode == 0 else []
    if not places:
        return skip(name, f"{python} has no sglang")
    return compare(
        name,
        (chosen.sglang_dir / "python" / "sglang").resolve(),
        Path(places[0]).resolve(),
        where=python,
        run=f"{python} -m pip install --no-deps --editable {chosen.sglang_dir}/python",
    )
