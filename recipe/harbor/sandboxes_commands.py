"""`recipe sandboxes`: what Harbor left at the backend, of one run or of all; deleted only when that is asked for."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from recipe.errors import BadInputError
from recipe.given import env_file, environment
from recipe.harbor.ledger import BROKEN
from recipe.resolve import load_sources, restore
from recipe.run.folder import RunFolder
from recipe.settings import NAMES, Settings
from recipe.watch.history import latest_run

app = typer.Typer(no_args_is_help=True, help="The sandboxes that runs left at their backend.")

Run = Annotated[str, typer.Option(help="A run's name in RUNS_ROOT, or its folder; default: the newest.")]
All = Annotated[bool, typer.Option("--all", help="All of Harbor's, those of others and of living runs too.")]
Backend = Annotated[str, typer.Option(help="Another one than the run's, or than SANDBOX_BACKEND.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Delete = Annotated[bool, typer.Option("--delete", help="Really delete; else only say what would go.")]


@app.command("list")
def show(*, run: Run = "", everything: All = False, backend: Backend = "", as_json: AsJson = False) -> None:
    """List them, and change nothing."""
    clean(run=run, everything=everything, backend=backend, as_json=as_json)


@app.command()
def clean(
    *,
    run: Run = "",
    everything: All = False,
    backend: Backend = "",
    delete: Delete = False,
    as_json: AsJson = False,
) -> None:
    """Delete them; exit code 1 when some could not be."""
    from recipe.harbor import leftover_sandboxes

    settings, folder = _chosen(run, backend, everything=everything)
    try:
        host, left = leftover_sandboxes.host_of(settings), {}
    except BadInputError as error:
        error.facts["where"] = f"the backend {settings.sandbox_backend}"
        others = ", ".join(leftover_sandboxes.HOSTS)
        error.facts.setdefault("run", f"the same command with that set, or with another --backend: {others}")
        raise
    found = leftover_sandboxes.of_run(host, folder) if folder else leftover_sandboxes.listed(host)
    if delete:
        # A run that somebody still follows needs its sandboxes.
        with RunFolder(folder).locked() if folder else contextlib.nullcontext():
            left = leftover_sandboxes.delete(host, found) if found else {}
    if as_json:
        rows = [{"id": one.id, "state": one.state, "error": left.get(one.id)} for one in found]
        facts = {"backend": settings.sandbox_backend, "run": folder and folder.name, "deleted": delete}
        print(json.dumps({**facts, "sandboxes": rows}, indent=2))
    else:
        for one in found:
            deleted = f"NOT deleted: {left[one.id]}" if one.id in left else "deleted"
            print(f"{one.id:<48} {deleted if delete else one.state}")
        done = f", {len(left)} could not be deleted" if delete and found else "; nothing was deleted"
        owner = folder.name if folder else "Harbor"
        print(f"{len(found)} sandboxes of {owner} at {settings.sandbox_backend}{done}")
    sys.exit(int(bool(left)))


def _as_started(folder: Path, settings: Settings, backend: str) -> Settings:
    """The run's settings, with the secrets of now; `settings` for one that never got a job, and so no sandbox."""
    path = folder / "launcher" / "job.json"
    try:
        return restore(json.loads(path.read_text())["settings"])
    except FileNotFoundError:
        return settings
    except (BadInputError, OSError, *BROKEN) as error:
        if backend:
            return settings
        found = error.problem if isinstance(error, BadInputError) else type(error).__name__
        problem = "the run's job file can't be read, so nobody knows where its sandboxes were"
        hint = "the same command with --backend"
        raise BadInputError(problem, expected="its settings", found=found, where=path, run=hint) from None


def _chosen(run: str, backend: str, *, everything: bool) -> tuple[Settings, Path | None]:
    """The settings, and the run's folder unless it is about all. Raises BadInputError when there is no such run."""
    if run and everything:
        raise BadInputError("--run and --all exclude each other")
    settings, folder = load_sources(), None
    if everything and not backend and settings.source("sandbox_backend") == "default":
        found = env_file(str(settings.env_file), NAMES, required=False) | environment(NAMES)
        backend = "local" if found.get("engine", ("",))[0] == "local" else ""
    elif not everything:
        named = Path(run).absolute() if "/" in run else settings.runs_root / run
        folder = named if run else latest_run(settings.runs_root)
        if not (folder / "run_manifest.json").is_file() or not (folder / "launcher").is_dir():
            needed = "a run's name or folder, with run_manifest.json and launcher/"
            raise BadInputError("there is no such run", expected=needed, found=folder)
        settings = _as_started(folder, settings, backend)
    return settings.model_copy(update={"sandbox_backend": backend} if backend else {}), folder
