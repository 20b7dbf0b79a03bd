"""Two runs side by side: what differs in what they ran with, and how far apart their curves are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recipe.files import write_whole
from recipe.untrusted import clean
from recipe.watch.curves import draw, mean, svg, titled
from recipe.watch.history import History, manifest_of, read
from recipe.watch.metrics import METRICS, number

# Rollouts at the end whose mean is compared: one alone is mostly noise.
LAST = 3
# Settings that name a run or what is its own, and facts of a node that pass: they differ between any two runs.
OWN = ("run_name", "runs_root", "prompt_data", "agent_server_url")
PASSING = ("memory_available_mib", "space", "runs_space", "shared", "nonce")
WIDTH = 160
HEADINGS = ("A first", "B first", "A last", "B last", f"A last {LAST}", f"B last {LAST}", "B - A")

Difference = tuple[str, str, str, str]  # kind, name, the first run's value, the second's
Row = tuple[str, list[float]]  # a metric's title, and its numbers as in HEADINGS


def show(runs: tuple[Path, Path], console: Console, html: Path | None = None) -> None:
    """Prints what differs between two runs, and writes it as a page to `html`."""
    if not console.is_terminal:  # a file or a pipe takes long lines
        console = Console(width=max(WIDTH, console.width), file=console.file)
    histories = read(runs[0]), read(runs[1])
    found = list(differences(manifest_of(runs[0]), manifest_of(runs[1])))
    rows = list(curves(*histories))
    for letter, run, history in zip("AB", runs, histories, strict=True):
        line = f"{letter}  {clean(str(run))}: {len(history.rollouts)} rollouts, {history.status}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(
        _facts(found) if found else "They ran with the same pins, settings, data, nodes and versions."
    )
    console.print(_numbers(rows))
    if html:
        _write(html, runs, histories, found, rows)
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
        of = [[number(one.metrics.get(metric.name)) for one in run.rollouts] for run in (first, second)]
        values = [[value for value in run if math.isfinite(value)] for run in of]
        if any(values):
            ends = [
                mean(run[place])
                for place in (slice(1), slice(-1, None), slice(-LAST, None))
                for run in values
            ]
            yield titled(metric), [*ends, ends[-1] - ends[-2]]


def _facts_of(manifest: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Value by kind and name. A node's are named by its place, for addresses differ between clusters."""
    for name in ("commit", "python", "platform"):
        yield ("version", name), manifest.get(name)
    recorded = manifest.get("settings") or {}
    tables_of = {"setting": {name.upper(): of["value"] for name, of in recorded.items() if name not in OWN}}
    tables = {"pin": "pins", "data": "prompt_data", "task": "tasks", "version": "packages"}
    tables_of |= {kind: manifest.get(key) or {} for kind, key in tables.items()}
    for place, node in enumerate(manifest.get("nodes") or (), 1):
        tables_of[f"node {place}"] = {name: value for name, value in node.items() if name not in PASSING}
    for kind, table in tables_of.items():
        for name, value in table.items():
            # The path of prompts is the run's own; their hash tells.
            if (kind, name) != ("data", "path"):
                yield (kind, name), value


def _facts(found: Sequence[Difference]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "differs", "A", "B"):
        table.add_column(heading, overflow="fold")
    for row in found:
        table.add_row(*(Text(text) for text in row))
    return table


def _numbers(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("metric", *HEADINGS):
        table.add_column(heading, justify="left" if heading == "metric" else "right", overflow="fold")
    for title, numbers in rows:
        table.add_row(title, *("-" if math.isnan(value) else f"{value:.3g}" for value in numbers))
    return table


def _write(
    html: Path, runs: tuple[Path, Path], histories: tuple[History, History],
    found: Sequence[Difference], rows: Sequence[Row],
) -> None:  # fmt: skip
    from recipe.watch.page import render

    both = {letter: history.rollouts for letter, history in zip("AB", histories, strict=True)}
    pictures = [(meaning, Markup(svg(picture))) for _, meaning, picture in draw(both)]  # noqa: S704 - ours
    page = render(
        "compare.html",
        title=" and ".join(run.resolve().name for run in runs),
        runs=list(zip("AB", runs, histories, strict=True)),
        differences=found,
        headings=HEADINGS,
        rows=rows,
        pictures=pictures,
    )
    write_whole(html, page)
