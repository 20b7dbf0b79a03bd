"""A repository that stands in for the pinned Harbor, the pins that name it, and settings that use it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipe.harbor.install import _bootstrap
from recipe.pins import Pins, Recipe, load_pins
from recipe.resolve import resolve
from recipe.settings import Settings

CHECKOUT = Path(__file__).parent / "checkout"
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgSign=false")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *IDENTITY, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> str:
    """Makes the repository with its uv.lock, which names the pinned CAMEL; its commit."""
    shutil.copytree(CHECKOUT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__\n")
    lock = ["lock", "--quiet", "--offline", "--python", sys.executable, "--directory", str(folder)]
    subprocess.run([_bootstrap().find_uv(), *lock], check=True)
    with (folder / "uv.lock").open("a") as lock:
        lock.write(f"# {load_pins().recipes['camel'].sources['camel'].rev}\n")
    git(folder.parent, "init", "--quiet", "--initial-branch=main", str(folder))
    return commit(folder, {})


def commit(folder: Path, files: dict[str, str]) -> str:
    """Commits all that is in the folder, and these files; the commit."""
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "work")
    return git(folder, "rev-parse", "HEAD")


def pins_of(url: str | Path, rev: str) -> Pins:
    """The project's pins, with Harbor at this place in both recipes."""
    pins = load_pins()
    address = url if isinstance(url, str) else url.as_uri()
    moved = {}
    for name, recipe in pins.recipes.items():
        source = recipe.sources["harbor"].model_copy(update={"url": address, "rev": rev})
        moved[name] = Recipe.model_construct(root={**recipe.sources, "harbor": source})
    return pins.model_copy(update={"recipes": moved})


def settings_of(folder: Path, **values: Any) -> Settings:
    """Of a Miles run with Docker's sandboxes that keeps its Harbor in `folder`/home."""
    chosen = {"engine": "miles", "sandbox_backend": "docker", "harbor_home": folder / "home"}
    given = {"tasks_dir": folder / "tasks", "head_ip": "127.0.0.1", **chosen, **values}
    return resolve({name: (str(value), "test") for name, value in given.items()})
