"""Two runs side by side: what differs in what they ran with, and how far apart their curves are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from recipe.files import write_whole
from recipe.untrusted import clean
from recipe.watch.curves import draw, mean, svg, titled
from recipe.watch.history import History, manifest_of, read
from recipe.watch.metrics import METRICS, figure

# Rollouts at the end whose mean is compared: one alone is mostly noise.
LAST = 3
# Settings that name a run or what is its own, and facts of a node that pass: they differ between any two runs.
OWN = ("run_name", "runs_root", "prompt_data", "agent_server_url")
PASSING = ("memory_available_mib", "space", "runs_space", "shared", "nonce")
# By kind: the key in a manifest.
TABLES = {"pin": "pins", "data": "prompt_data", "task": "tasks", "version": "packages"}
WIDTH = 160
HEADINGS = ("A first", "B first", "A last", "B last", f"A last {LAST}", f"B last {LAST}", "B - A")
# Of the names that differ, as much stands in one line: the longest setting has as many letters.
NAME_WIDTH = 34

Difference = tuple[str, str, str, str]  # kind, name, the first run's value, the second's
Row = tuple[str, list[float]]  # a metric's title, and its numbers as in HEADINGS


def show(runs: tuple[Path, Path], console: Console, html: Path | None = None) -> None:
    """Prints what differs between two runs, and writes it as a page to `html`."""
    if not console.is_terminal:  # a file or a pipe takes long lines
        console = Console(width=max(WIDTH, console.width), file=console.file)
    found = list(differences(manifest_of(runs[0]), manifest_of(runs[1])))
    sides = [(letter, run, read(run)) for letter, run in zip("AB", runs, strict=True)]
    rows = list(curves(sides[0][2], sides[1][2]))
    for letter, run, history in sides:
        line = f"{letter}  {clean(str(run))}: {len(history.rollouts)} rollouts, {history.status}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    same = "They ran with the same pins, settings, data, nodes and versions."
    console.print("", _facts(found) if found else same, "", _numbers(rows), sep="\n")
    if html:
        from recipe.watch.page import render

        pictures = draw({letter: history.rollouts for letter, _, history in sides})
        page = render(
            "compare.html",
            title=" and ".join(run.resolve().name for run in runs),
            runs=sides,
            differences=found,
            headings=HEADINGS,
            rows=rows,
            pictures=[(meaning, Markup(svg(picture))) for _, meaning, picture in pictures],  # noqa: S704 - ours
        )
        write_whole(html, page)
        console.print(f"page  {html}", soft_wrap=True, markup=False, highlight=False)


def differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    """What two manifests say differently of all that makes a run what it is."""
    facts = [dict(_facts_of(manifest)) for manifest in (first, second)]
    for kind, name in dict.fromkeys([*facts[0], *facts[1]]):
        one, other = (clean(str(of.get((kind, name), "-"))) for of in facts)
        if one != other:
            yield kind, name, one, other


def curves(first: History, second: History) -> Iterator[Row]:
    """Every metric that either run has: in the first rollout, in the last, the mean of the last ones."""
    for metric in METRICS:
        values = [run.values(metric.name) for run in (first, second)]
        if any(values):
            places = (slice(1), slice(-1, None), slice(-LAST, None))
            ends = [mean(run[place]) for place in places for run in values]
            yield titled(metric), [*ends, ends[-1] - ends[-2]]


def _facts_of(manifest: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Value by kind and name. A node's are named by its place, for addresses differ between clusters."""
    yield from ((("version", name), manifest.get(name)) for name in ("commit", "python", "platform"))
    for name, of in (manifest.get("settings") or {}).items():
        if name not in OWN:
            yield ("setting", name.upper()), of["value"]
    for kind, key in TABLES.items():
        for name, value in (manifest.get(key) or {}).items():
            # The path of prompts is the run's own; their hash tells.
            if (kind, name) != ("data", "path"):
                yield (kind, name), value
    for place, node in enumerate(manifest.get("nodes") or (), 1):
        yield from (((f"node {place}", name), value) for name, value in node.items() if name not in PASSING)


def _facts(found: Sequence[Difference]) -> Table:
    width = min(NAME_WIDTH, max(len(name) for _, name, *_ in found))
    columns = (Column("", no_wrap=True), Column("differs", min_width=width, overflow="fold"))
    table = Table(*columns, *(Column(run, overflow="fold") for run in "AB"), box=None, padding=(0, 2, 0, 0))
    for row in found:
        table.add_row(*map(Text, row))
    return table


def _numbers(rows: Sequence[Row]) -> Table:
    columns = (Column(heading, justify="right", no_wrap=True) for heading in HEADINGS)
    table = Table(Column("metric", overflow="fold"), *columns, box=None, padding=(0, 1, 0, 0))
    for title, numbers in rows:
        table.add_row(title, *map(figure, numbers))
    return table
