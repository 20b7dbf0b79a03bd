"""The files that are written from pins and settings: one list; a file that differs from its source is a drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from recipe import settings_tables
from recipe.doctor import symptoms
from recipe.drift.lines import Line, drift, ok
from recipe.errors import BadInputError, RecipeError
from recipe.files import read_text, write_whole
from recipe.harbor import backends
from recipe.pins import NEEDED, Pins, Source
from recipe.watch import alarms

START, END = "<!-- written by recipe pins-check --write -->", "<!-- end -->"
WRITE = "recipe pins-check --write"


def versions(pins: Pins, readme: str) -> str:
    """README.md with its table of versions: all that is pinned, each with a link to it."""
    lines = ["", "| what | CAMEL's recipe | Terminus-2's recipe |", "|---|---|---|"]
    image = f"`{pins.image.reference}`"
    model = _link(
        f"{pins.model.repository} {pins.model.revision[:12]}",
        f"https://huggingface.co/{pins.model.repository}/tree/{pins.model.revision}",
    )
    for name in dict.fromkeys(name for names in NEEDED.values() for name in names):
        cells = [_source(recipe.sources.get(name)) for recipe in (pins.recipes[key] for key in NEEDED)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [f"| model | {model} | the same |", f"| image | {image} | the same |", ""]
    before, after = _around(readme)
    return "".join([before, START, "\n".join(["", *lines, ""]).rstrip("\n"), "\n\n", END, after])


def _around(readme: str) -> tuple[str, str]:
    """What stands before and after the table. Raises BadInputError where its marks are not there once, in order."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end) or START in rest or END in before + after:
        raise BadInputError(
            "README.md has lost the marks of its table of versions, so nothing was written",
            expected=f"{START} and later {END}, once each",
            where="README.md",
            run="git checkout README.md",
        )
    return before, after


# Each file below the project's root, and what its text must be, given the pins and its present text. Whoever adds a
# file that is written from the pins adds it here.
RENDERED: dict[str, Callable[[Pins, str], str]] = {
    "docs/settings.md": lambda _pins, _text: settings_tables.markdown(),
    "docs/symptoms.md": lambda _pins, text: symptoms.markdown(text),
    "docs/sandboxes.md": lambda _pins, text: backends.markdown(text),
    "docs/alarms.md": lambda _pins, _text: alarms.markdown(),
    ".env.example": lambda _pins, _text: settings_tables.env_example(),
    "README.md": versions,
}


def check(root: Path, pins: Pins) -> Iterator[Line]:
    """A line for each rendered file; a drift names the first line that differs."""
    wrong = stale(root, pins)
    for file in RENDERED:
        name, path = f"{file} is as its source writes it", root / file
        yield _first_difference(file, name, wrong[path], _read(path)) if path in wrong else ok(name)


def stale(root: Path, pins: Pins) -> dict[Path, str]:
    """The files that differ from their source, and what they must be."""
    rendered = {root / file: render(pins, _read(root / file)) for file, render in RENDERED.items()}
    return {path: text for path, text in rendered.items() if text != _read(path)}


def write(files: Mapping[Path, str]) -> None:
    """Writes each file whole. Raises RecipeError for the first that can't be written."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise RecipeError("a file can't be written", found=error, where=path) from None


def _first_difference(path: str, name: str, expected: str, found: str) -> Line:
    pairs = zip_longest(expected.splitlines(), found.splitlines(), fillvalue="(end of the file)")
    number, (wanted, there) = next(
        ((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1]), (1, ("", ""))
    )
    return drift(name, expected=wanted, found=there, where=f"{path}:{number}", run=WRITE)


def _read(path: Path) -> str:
    return read_text(path) if path.exists() else ""


def _source(source: Source | None) -> str:
    if source is None:
        return "-"
    page = source.url.removesuffix(".git")
    owner_and_name = page.removeprefix("https://").partition("/")[2]
    return _link(f"{owner_and_name} {source.rev[:12]}", f"{page}/commit/{source.rev}")


def _link(text: str, url: str) -> str:
    return f"[{text}]({url})"
