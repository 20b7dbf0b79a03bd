"""The ring that needs checkouts: their commits, whether they are clean, and what is relied on in them."""

from __future__ import annotations

import os.path
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from recipe.drift.lines import Line, compare, drift, ok, place, skip
from recipe.files import read_text
from recipe.given import child_environment
from recipe.pins import RELIED_ON, UPSTREAM, Feature, Pins, Source
from recipe.programs import ask, git, git_line, last_line
from recipe.settings import Checkouts

SETTINGS = {"miles": "miles_dir", "sglang": "sglang_dir", "harbor": "harbor_dir"}
UNCHANGED = "no local change"
# Finds a package without importing it: SGLang's own import takes a GPU's driver and half a minute.
FIND = """
import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print("", "found:", *(spec.submodule_search_locations or () if spec else ()), "", sep="\\n")
"""
PYTHON_SECONDS = 60  # a cold start from network storage


def check(root: Path, pins: Pins, chosen: Checkouts) -> Iterator[Line]:
    """Lines for each source of the recipe; a checkout that is not there is skipped, unless it was asked for."""
    for name, setting in SETTINGS.items():
        folder, lost = getattr(chosen, setting), _missing(setting, chosen)
        if lost:
            yield lost
            continue
        source = pins.recipes[chosen.recipe].sources[name]
        yield from _commit(name, folder, source, place(root, UPSTREAM, "recipes", chosen.recipe, name, "rev"))
        for feature in pins.features_of(chosen.recipe, name):
            pinned_at = place(root, RELIED_ON, "features", pins.features.index(feature), "name")
            yield _feature(feature, folder, source.rev, pinned_at)
    if "camel" in pins.recipes[chosen.recipe].sources and not _missing("harbor_dir", chosen):
        yield _camel(root, chosen, pins)
    yield _megatron(chosen)
    yield _imported_sglang(chosen)


def _missing(setting: str, chosen: Checkouts) -> Line | None:
    """Why there is nothing to compare, or None."""
    folder, name = getattr(chosen, setting), f"checkout {setting.rpartition('_')[0]}"
    if folder is None:
        return skip(name, f"{setting.upper()} is not set")
    # Path.is_dir raises where os.path says no: /root is closed to other users.
    if os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK):  # noqa: PTH112
        return None
    if chosen.source(setting) == "default":
        return skip(name, f"{folder} (the default of {setting.upper()}) is not there or not readable")
    return drift(
        name,
        expected="a folder that can be read",
        found="nothing",
        where=f"{folder} ({setting.upper()}, {chosen.source(setting)})",
        run=f"git clone it there, or leave {setting.upper()} out",
    )


def is_checkout(folder: Path) -> bool:
    """Whether `folder` itself is one; git would also answer for a repository around it."""
    return os.path.exists(folder / ".git")  # noqa: PTH110 - no, where Path.exists raises


def _commit(name: str, folder: Path, source: Source, pinned_at: str) -> Iterator[Line]:
    label = f"checkout {name}: commit"
    fetch = (
        f"{git_line(folder, 'fetch', source.url, source.rev)} && {git_line(folder, 'checkout', source.rev)}"
    )
    if not is_checkout(folder):
        yield drift(
            label,
            expected=source.rev,
            found="no git checkout",
            where=folder,
            run=shlex.join(["git", "clone", source.url, str(folder)]),
        )
        return
    head = git(folder, "rev-parse", "HEAD")
    found = head.stdout.strip() if head.returncode == 0 else last_line(head.stderr)
    yield compare(label, source.rev, found, where=f"{folder} (pinned in {pinned_at})", run=fetch)
    # Caches, builds and virtual environments lie in a checkout as well: only tracked files count.
    status = git(folder, "status", "--porcelain", "--untracked-files=no")
    changed = [line[3:] for line in status.stdout.splitlines()]
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    found = f"{changed[0]} is changed{more}" if changed else last_line(status.stderr)
    yield compare(
        f"checkout {name}: clean",
        UNCHANGED,
        found if status.returncode or changed else UNCHANGED,
        where=folder / changed[0] if changed else folder,
        run=f"{git_line(folder, 'diff', 'HEAD')}; {git_line(folder, 'stash')}",
    )


def _feature(feature: Feature, folder: Path, rev: str, pinned_at: str) -> Line:
    label, path = f"{feature.source}: {feature.name}", folder / feature.file
    text = read_text(path) if path.is_file() else None
    if text is not None and feature.holds(text):
        return ok(label)
    line = f":{text.count('\n', 0, text.index(feature.absent)) + 1}" if text and feature.absent else ""
    return drift(
        label,
        expected=f"{feature.expected} ({feature.why})",
        found="no such file" if text is None else "the text" if feature.absent else "no match in the file",
        where=f"{path}{line} (relied on in {pinned_at})",
        run=git_line(folder, "checkout", rev),
    )


def _camel(root: Path, chosen: Checkouts, pins: Pins) -> Line:
    """CAMEL has no checkout: Harbor's own lock brings it."""
    assert chosen.harbor_dir is not None
    rev = pins.recipes[chosen.recipe].sources["camel"].rev
    lock = chosen.harbor_dir / "uv.lock"
    text = read_text(lock) if lock.is_file() else ""
    if rev in text:
        return ok("camel: commit, in Harbor's uv.lock")
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if "/camel" in line]
    number, found = lines[0] if lines else (1, "no CAMEL from git")
    pinned_at = place(root, UPSTREAM, "recipes", chosen.recipe, "camel", "rev")
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


def imported(package: str) -> tuple[Path | None, str]:
    """The folder of a package for the Python that trains (PATH's, less our own environment), and that Python.

    None without one, and the reason.
    """
    own = os.path.dirname(sys.executable)  # noqa: PTH120 - a link must not be followed
    folders = child_environment().get("PATH", "").split(os.pathsep)
    python = shutil.which("python3", path=os.pathsep.join(one for one in folders if one != own))
    if python is None:
        return None, "there is no python3 on PATH but our own"
    # Started elsewhere: a folder of that name in the working directory would be taken for the package.
    done = ask([python, "-c", FIND, package], folder=Path("/"), seconds=PYTHON_SECONDS)
    _, answer, places = done.stdout.rpartition("\nfound:\n")
    if done.returncode or not answer:
        said = last_line(done.stderr or done.stdout)
        return None, f"{python} can't tell: exit code {done.returncode}, {said}"
    if not places.strip():
        return None, f"{python} has no {package}"
    return Path(places.splitlines()[0]), python


def _imported_sglang(chosen: Checkouts) -> Line:
    """Whether `import sglang` takes the checkout."""
    name = "sglang is imported from SGLANG_DIR"
    if _missing("sglang_dir", chosen):
        return skip(name, f"{chosen.sglang_dir} is not there")
    folder, python = imported("sglang")
    if folder is None:
        return skip(name, python)
    return compare(
        name,
        (chosen.sglang_dir / "python" / "sglang").resolve(),
        folder.resolve(),
        where=python,
        run=shlex.join([python, "-m", "pip", "install", "--no-deps", "-e", f"{chosen.sglang_dir}/python"]),
    )
