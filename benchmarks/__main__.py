"""Runs the benchmarks and prints one table.

Exit code 1 when one could not run; a goal that is missed changes nothing, since machines differ.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Findings, Row
from recipe.engines.local.job import OFFLINE, SPEED
from recipe.errors import RecipeError
from recipe.given import child_environment

BENCHMARKS = ("generate", "train", "session_calls", "sandboxes", "trials", "memory", "load", "endurance")
ENVIRONMENT = {**SPEED, **OFFLINE, "TRL_EXPERIMENTAL_SILENCE": "1"}


def main() -> int:
    """Reads the command line, runs what was asked for, prints the table and its notes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The local engine's speed.")
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="may be given several times")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: half the time")
    options = parser.parse_args()
    _restart_with_the_engines_environment()
    console = Console()
    found, failed = [], False
    for name in options.only or BENCHMARKS:
        start = time.monotonic()
        try:
            found.append(importlib.import_module(f"benchmarks.{name}").run(quick=options.quick))
        except RecipeError as error:
            found.append(Findings(name, notes=[f"not run: {error}"]))
            failed = True
        console.print(f"[dim]{name}: {time.monotonic() - start:.0f} s[/dim]", highlight=False)
    console.print(_table(found))
    for findings in found:
        console.print(f"[bold]{findings.title}[/bold]")
        for note in findings.notes:
            console.print(f"- {note}", highlight=False, markup=False)
    return int(failed)


def _restart_with_the_engines_environment() -> None:
    """OpenMP and the allocator read theirs when the process starts, so that it has to start anew."""
    wanted = child_environment(**ENVIRONMENT)
    if not ENVIRONMENT.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], wanted)  # noqa: S606


def _table(found: list[Findings]) -> Table:
    table = Table(box=SIMPLE, title="The local engine; beside a library, both in turns")
    for heading in ("what", "unit", "ours", "the other", "better", "goal"):
        table.add_column(heading, justify="right" if heading in {"ours", "better"} else "left")
    for findings in found:
        for row in findings.rows:
            table.add_row(*_cells(row, findings.against))
        table.add_section()
    return table


def _cells(row: Row, against: str) -> tuple[str, ...]:
    met = {None: "", True: "[green]met[/green]", False: "[red]missed[/red]"}[row.met]
    return (
        row.subject,
        row.unit,
        _number(row.ours),
        "" if row.other is None else f"{_number(row.other)} {against}",
        "" if row.ratio is None else f"{row.ratio:.1f}x",
        f"{row.goal} {met}".strip(),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
