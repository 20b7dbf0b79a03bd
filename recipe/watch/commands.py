"""The commands that look at a run, finished or not: status, alarms, report, compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console

from recipe.errors import BadInputError
from recipe.resolve import load_sources

RUN_HELP = "A run's folder; default: the newest in RUNS_ROOT."
RunArgument = Annotated[str, typer.Argument(metavar="[RUN]", help=RUN_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def status(
    run: RunArgument = "",
    *,
    follow: Annotated[bool, typer.Option(help="Show it anew until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a run is: phase, time left, reward, groups, sandboxes, alarms; whatever state it is in."""
    from recipe.watch import history, status

    folder = _folder(run)
    if as_json:
        print(to_json(status.facts(folder, history.read(folder)), indent=2, inf_nan_mode="null").decode())
    else:
        status.show(folder, Console(), follow=follow)


def alarms(run: RunArgument = "", *, as_json: AsJson = False) -> None:
    """Judge a run's events once more by the limits of docs/alarms.md; exit code 1 when an alarm is raised."""
    from recipe.events import EventReader
    from recipe.watch import history, live

    folder = _folder(run)
    raised = live.replay(EventReader(folder / "events.jsonl").new(), history.settings_of(folder))
    if as_json:
        print(to_json(raised, indent=2, inf_nan_mode="null").decode())
    else:
        Console().print(live.table(raised) if raised else "no alarm")
    sys.exit(1 if raised else 0)


def report(run: RunArgument = "") -> None:
    """Show once more what a run came to, and write its report again."""
    from recipe.watch.report import show

    show(_folder(run), Console())


def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run's folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another run's.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as a page too.")] = None,
) -> None:
    """Show what differs between two runs: pins, settings, data, nodes, versions, and their curves."""
    from recipe.watch.compare import show

    show((first, second), Console(), html)


def _folder(run: str) -> Path:
    """The run's folder. Raises BadInputError when there is none."""
    if run:
        folder = Path(run)
    else:
        from recipe.watch.history import latest_run

        folder = latest_run(load_sources(()).runs_root)
    if not folder.is_dir():
        raise BadInputError("there is no such run", expected="a run's folder", found=folder)
    return folder
