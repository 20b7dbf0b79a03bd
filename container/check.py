"""Every node's check: the image was built from the pins of this run, and its checkouts are still at them.

check.py TAG [PINS_JSON]: exits 0 with one line for each source, or 1 with what was expected and found. It needs
the standard library and git only, so that it runs in the image before anything else does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

RECORD = "/etc/inkling-grpo/pins.json"
REBUILD = "recipe container build"


def main(tag: str, record: str = RECORD) -> None:
    """Checks the record against `tag`, and the image against the record."""
    try:
        text = Path(record).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        fail("this image was not built by us", expected="a record of its pins", found=error, where=record)
    found = f"pins-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if found != tag:
        fail("this image was built from other pins", expected=tag, found=found, where=record)
    try:
        pins = json.loads(text)
        checkouts = [(name, one["path"], one["rev"]) for name, one in pins["sources"].items()]
        imports = list(pins["imports"].items())
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        fail("the record can't be read", expected="sources and imports", found=repr(error), where=record)
    for checkout in checkouts:
        check_checkout(*checkout)
    for package, folder in imports:
        check_import(package, folder)


def check_checkout(name: str, path: str, rev: str) -> None:
    """The checkout is at the commit, and no tracked file differs from it (what is compiled is not tracked)."""
    head = git(path, "rev-parse", "HEAD")
    if head != rev:
        fail(f"{name} is at another commit", expected=rev, found=head, where=path)
    changed = git(path, "status", "--porcelain", "--untracked-files=no")
    if changed:
        fail(f"{name} has local changes", expected="the files of the commit", found=changed, where=path)
    print(f"ok  {name} {rev}")


def check_import(package: str, folder: str) -> None:
    """Python would import the package from the folder; nothing is imported, since that can need a GPU."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        fail(f"{package} can't be looked up", expected=folder, found=repr(error), where=sys.executable)
    found = Path(spec.origin).parent.resolve() if spec and spec.origin else None
    if found != Path(folder).resolve():
        fail(f"{package} is imported from elsewhere", expected=folder, found=found, where=sys.executable)
    print(f"ok  {package} from {folder}")


def git(path: str, *arguments: str) -> str:
    """The output of a git command in the checkout."""
    command = ["git", "-C", path, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        fail("git can't be run", expected="git on PATH", found=error, where=path)
    if done.returncode:
        fail("git can't read a checkout", expected="a git checkout", found=done.stderr.strip(), where=path)
    return done.stdout.strip()


def fail(problem: str, *, expected: object, found: object, where: object) -> NoReturn:
    """Ends the program with the form of all our errors."""
    sys.exit(
        f"error: {problem}\n  expected {expected}\n  found    {found}\n  where    {where}\n  run      {REBUILD}"
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        fail("the check can't start", expected="TAG [PINS_JSON]", found=sys.argv[1:], where=sys.argv[0])
    main(*sys.argv[1:])
