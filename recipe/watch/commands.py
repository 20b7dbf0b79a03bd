"""The commands that look at a run, finished or not: status, alarms, report, compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console

from recipe.errors import BadInputError, InterruptedRunError
from recipe.resolve import load_sources
from recipe.untrusted import clean
from recipe.watch.history import latest_run, require_run

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
    from recipe.run.interrupts import Interruption
    from recipe.watch import history, status

    if follow and as_json:
        raise BadInputError("--follow shows text", expected="one of --follow and --json", found="both")
    folder = _folder(run)
    if as_json:
        _print_json(status.facts(folder, history.read(folder)))
        return
    try:
        status.show(folder, Console(), follow=follow)
    except Interruption:
        print("no longer watched; the run goes on")
        sys.exit(InterruptedRunError.exit_code)


def alarms(run: RunArgument = "", *, as_json: AsJson = False) -> None:
    """Judge a run's events once more by the limits of docs/alarms.md; exit code 1 when an alarm is raised."""
    from recipe.events import EventReader
    from recipe.watch import history, live
    from recipe.watch.alarms import NAMES, named

    folder = _folder(run)
    events = list(EventReader(folder / "events.jsonl").new())
    manifest = history.manifest_of(folder)
    settings, within = history.recorded(manifest), history.window(manifest)
    if unknown := set(named(settings)) - {*NAMES, "none"}:
        names = clean(", ".join(sorted(unknown)))
        print(f"note: STOP_ON names what is no alarm of this version: {names}", file=sys.stderr)
    raised = live.replay(events, settings, within)
    if as_json:
        _print_json(raised)
    elif raised:
        Console().print(live.table(raised))
    else:
        print("no alarm" if events else "no event yet, so nothing to judge")
    sys.exit(1 if raised else 0)


def report(run: RunArgument = "") -> None:
    """Show once more what a run came to, and write its report again."""
    from recipe.watch.report import show

    show(_folder(run), Console())


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's folder.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another run's.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as a page too.")] = None,
) -> None:
    """Show what differs between two runs: pins, settings, data, nodes, versions, and their curves."""
    from recipe.watch.compare import show

    if not (first and second):  # what make has no value for is empty, and would be the working directory
        raise BadInputError(
            "a run's folder is missing", expected="two", run="make compare RUN=runs/A OTHER=runs/B"
        )
    show((_folder(first), _folder(second)), Console(), html)


def _folder(run: str) -> Path:
    """The run's folder. Raises BadInputError when it is none."""
    roots = load_sources(()).runs_root
    if not run:
        return latest_run(roots)
    # A path, or the name of a run in RUNS_ROOT.
    return require_run(Path(run) if "/" in run or Path(run).exists() else roots / run)


def _print_json(found: object) -> None:
    """In ASCII: what a run wrote must not reach a terminal as control codes."""
    print(json.dumps(json.loads(to_json(found, inf_nan_mode="null")), indent=2))
