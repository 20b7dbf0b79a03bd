"""The commands and their help; what they do is elsewhere. Help and dry runs import neither torch nor ray."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from recipe.container.commands import app as container
from recipe.errors import BadInputError, RecipeError
from recipe.gke.commands import app as gke
from recipe.harbor.sandboxes_commands import app as sandboxes
from recipe.run.interrupts import Interruption, Interrupts
from recipe.settings import Settings
from recipe.tasks.commands import app as dataset
from recipe.watch import commands as watch

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(container, name="container")
app.add_typer(dataset, name="dataset")
app.add_typer(gke, name="gke")
app.add_typer(sandboxes, name="sandboxes")

Assignments = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings; see `recipe settings`.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would run; start and write nothing.")]
CleanLeftovers = Annotated[
    bool, typer.Option("--clean-leftovers", help="End what earlier runs of ours left on the nodes.")
]
PlanJson = Annotated[bool, typer.Option("--json", help="With a dry run: print one JSON object.")]


STARTS = {
    "smoke": "Run the whole job at its smallest: a tiny model here, or with ENGINE=miles three rollouts of a cluster.",
    "learn": "Run ten rollouts of the tiny model: the mean reward rises.",
    "train-camel": "Train Inkling-Small with the CAMEL agent, on the cluster whose head node this is.",
    "train-terminus2": "Train Inkling-Small with the Terminus-2 agent, on the cluster whose head node this is.",
}


def _starter(command: str) -> Callable[..., None]:
    def start(
        assignments: Assignments = None,
        *,
        clean_leftovers: CleanLeftovers = False,
        dry_run: DryRun = False,
        as_json: PlanJson = False,
    ) -> None:
        options = {"CLEAN_LEFTOVERS=1": clean_leftovers, "DRY_RUN=1": dry_run}
        words = [*(assignments or []), *(word for word, given in options.items() if given)]
        _start(command, words, as_json=as_json)

    return start


for _name, _help in STARTS.items():
    app.command(_name, help=_help)(_starter(_name))


def _path(text: str) -> Path:
    """An argument that make may have left empty, which Path would take for the working directory."""
    if not text:
        hint = "make export RUN=runs/NAME OUT=<a new folder>, or recipe attach runs/NAME"
        raise BadInputError("a path is empty", expected="a folder", run=hint)
    return Path(text)


@app.command()
def attach(
    run: Annotated[Path, typer.Argument(help="The folder of a run on the cluster.", parser=_path)],
) -> None:
    """Follow a run whose launcher is gone, as that would have; Ctrl-C stops the job."""
    with Interrupts() as interrupts:
        with interrupts.held():
            from recipe.run.attach import attach as pick_up
        pick_up(run, Console(), interrupts)


@app.command()
def prepare(
    assignments: Assignments = None,
    *,
    download_only: Annotated[bool, typer.Option(help="Stop after the download.")] = False,
    convert_only: Annotated[bool, typer.Option(help="Convert what was downloaded before.")] = False,
    verify: Annotated[
        Literal["quick", "full"], typer.Option(help="Compare sizes, or also every file's SHA-256.")
    ] = "quick",
    dry_run: DryRun = False,
) -> None:
    """Download the pinned model, and convert it to Megatron's format on this machine's 8 GPUs."""
    from recipe.given import hub_environment
    from recipe.model.prepare import prepare as run
    from recipe.pins import load_pins
    from recipe.resolve import load_sources

    chosen = load_sources([*(assignments or ()), *(["DRY_RUN=1"] if dry_run else [])])
    token = {"HF_TOKEN": chosen.hf_token.get_secret_value()} if chosen.hf_token else {}
    with Interrupts() as interrupts:
        run(
            chosen,
            load_pins().model,
            hub_environment() | token,
            Console(),
            interrupts,
            download_only=download_only,
            convert_only=convert_only,
            verify=verify,
            dry_run=chosen.dry_run,
        )


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a checkpoint.", parser=_path)],
    out: Annotated[
        Path,
        typer.Argument(help="The new folder; a part of it goes on with the same command.", parser=_path),
    ],
    assignments: Assignments = None,
    *,
    iteration: Annotated[int | None, typer.Option(help="Which checkpoint; default: the latest.")] = None,
    push: Annotated[str, typer.Option(help="Also upload it to this repository of Hugging Face.")] = "",
    public: Annotated[bool, typer.Option(help="For everybody; default: private.")] = False,
) -> None:
    """Write a checkpoint in Hugging Face format, as SGLang and transformers load it."""
    from recipe.model import card
    from recipe.model import export as exporting
    from recipe.resolve import load_sources

    chosen = _without_dry_run(load_sources(assignments or ()))
    if push:
        card.require_repository(push)
    exporting.export(exporting.checkpoint_of(run, iteration), out, chosen.model_dir, Console())
    if push:
        token = chosen.hf_token.get_secret_value() if chosen.hf_token else None
        print(f"uploaded to {card.push(out, push, token, private=not public)}")


@app.command()
def harbor(assignments: Assignments = None) -> None:
    """Install the Harbor that the recipe of AGENT pins: a checkout and an environment of its own."""
    from recipe.harbor.install import install
    from recipe.pins import load_pins
    from recipe.resolve import load_sources

    installed = install(_without_dry_run(load_sources(assignments or ())), load_pins(), print)
    print(f"Harbor is at {installed.checkout}, its Python is {installed.python}")


@app.command()
def contract(
    assignments: Assignments = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check by reading that the sources here take every flag, variable and plugin of the job."""
    from recipe.engines.miles.contract import check
    from recipe.engines.miles.environment import environment
    from recipe.engines.miles.flags import flags
    from recipe.resolve import load_sources

    chosen = load_sources(assignments or ())
    variables = environment(chosen, "http://head:11000", chosen.run_dir)
    sys.exit(check.report(chosen, flags(chosen, chosen.run_dir), variables, as_json=as_json))


@app.command()
def doctor(
    assignments: Assignments = None,
    *,
    only: Annotated[list[str] | None, typer.Option(help="Name of a check; may be repeated.")] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Name of a check to leave out; may be repeated.")
    ] = None,
    cluster: Annotated[bool, typer.Option(help="Ask Ray and the nodes as well.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check all that a launch would, and change nothing: one table of checks, one of the nodes."""
    from recipe.doctor.report import report as report_checks
    from recipe.resolve import NOT_NEEDED, load_sources

    chosen = load_sources(assignments or ())
    if cluster and chosen.source("head_ip") == NOT_NEEDED:
        raise BadInputError(
            "HEAD_IP is not set", expected="the head node's address, or --no-cluster", where="recipe doctor"
        )
    left_out = [*chosen.skipped_checks, *(skip or ())]
    sys.exit(report_checks(chosen, only or (), left_out, as_json=as_json, cluster=cluster))


@app.command()
def plan(
    assignments: Assignments = None,
    *,
    assume: Annotated[
        list[str] | None, typer.Option(help="NAME=NUMBER, of the assumptions that it shows.")
    ] = None,
    nodes_json: Annotated[
        Path | None, typer.Option(help="What nodes have: a run_manifest.json, or its list of nodes.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Compare with what this run measured.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Work out memory, disk, time and sandbox-hours of a run, each figure with its formula and source."""
    from recipe.doctor import plan_report
    from recipe.resolve import load_sources

    chosen = load_sources(assignments or ())
    sys.exit(
        plan_report.report(
            chosen, Console(), assume=assume or (), nodes_json=nodes_json, run=run, as_json=as_json
        )
    )


@app.command("report-env")
def report_env(assignments: Assignments = None) -> None:
    """Print what a bug report needs: versions, machine, settings, pins, the last run; no secret."""
    from recipe.doctor.report_env import text
    from recipe.resolve import load_sources

    chosen: Settings | BadInputError
    try:
        chosen = load_sources(assignments or ())
    except BadInputError as error:
        chosen = error
    print(text(chosen))


for _command in (watch.status, watch.alarms, watch.report, watch.compare):
    app.command()(_command)


@app.command()
def settings(
    *, write: Annotated[bool, typer.Option(help="Write docs/settings.md and .env.example.")] = False
) -> None:
    """List every setting: name, type, default, unit, agent, meaning."""
    from recipe import settings_tables

    if write:
        for path, text in settings_tables.files().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    else:
        Console().print(settings_tables.overview())


@app.command("pins-check")
def pins_check(
    assignments: Assignments = None,
    *,
    online: Annotated[
        Literal["off", "auto", "require"],
        typer.Option(help="Ask the network: not at all, skip what is unreachable, or fail on it."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    write: Annotated[bool, typer.Option(help="First write anew what is rendered from pins.")] = False,
) -> None:
    """Compare the pins with this repository, with checkouts and with the network."""
    from recipe.drift import check, rendered
    from recipe.pins import PROJECT_ROOT, load_pins
    from recipe.resolve import load_checkouts

    chosen, pins = load_checkouts(assignments or ()), load_pins()
    if write:
        rendered.write(rendered.stale(PROJECT_ROOT, pins))
    sys.exit(check.report(PROJECT_ROOT, pins, chosen, network=online, as_json=as_json))


@app.command("pins-bump")
def pins_bump(
    assignments: Assignments = None,
    *,
    source: Annotated[str, typer.Option(help="miles, sglang, harbor, camel, or an input of flake.nix.")],
    recipe: Annotated[str, typer.Option(help="camel or terminus2.")] = "",
    rev: Annotated[str, typer.Option(help="The commit, 40 hex digits.")] = "",
    nar_hash: Annotated[str, typer.Option(help="Its hash as Nix computes it, where known.")] = "",
) -> None:
    """Change a pin and what is rendered from it; without a recipe, seal an input of flake.lock as it is now."""
    from recipe.drift import bump
    from recipe.engines.miles.contract.compare import flags_of
    from recipe.pins import PROJECT_ROOT
    from recipe.resolve import load_checkouts, load_sources

    if recipe or rev:
        chosen = load_checkouts(assignments or ())
        # The recipe's name is its agent's, less the hyphen.
        agent = {"terminus2": "terminus-2"}.get(recipe, "camel")
        job = load_sources([*(assignments or ()), f"AGENT={agent}"])
        told = bump.bump_source(PROJECT_ROOT, recipe, source, rev, nar_hash or None, chosen, [flags_of(job)])
    else:
        told = bump.bump_flake_input(PROJECT_ROOT, source)
    for line in told:
        print(line)


def main() -> None:
    """Runs the command line and exits: 0 fine, 1 failed, 2 bad input or a refused start, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # What a terminal or a log can't show is no reason to end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with _interruptions_told(), Interrupts():
            _check_working_directory()
            app()
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and error.filename is None:
            raise
        problem = "the disk is full" if full else f"a file can't be used: {error.strerror}"
        print(f"error: {problem}\n  where    {error.filename or 'the run folder'}", file=sys.stderr)
        sys.exit(1 if full else BadInputError.exit_code)


@contextmanager
def _interruptions_told() -> Iterator[None]:
    try:
        yield
    except Interruption as interruption:
        raise interruption.error() from None


def _check_working_directory() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise BadInputError("the working directory is gone", found=error, run='cd "$HOME"') from error


def _without_dry_run(settings: Settings) -> Settings:
    """Of a command that has no dry run. Raises BadInputError when one was asked for."""
    if settings.dry_run:
        raise BadInputError("this command has no dry run", where=settings.source("dry_run"))
    return settings


def _start(command: str, words: list[str], *, as_json: bool) -> None:
    from recipe.resolve import load

    chosen = load(command, words)
    if chosen.dry_run:
        from recipe.run.dry import show_plan

        show_plan(chosen, Console(), as_json=as_json)
        return
    from recipe.run.folder import full_disk_named
    from recipe.watch.report import show

    with full_disk_named(chosen.runs_root):
        try:
            with Interrupts() as interrupts:
                # The modules of others, Ray's above all, may swallow or misread whatever is raised in them.
                with interrupts.held():
                    from recipe.run.launch import launch
                launch(chosen, sys.argv, Console(), interrupts)
        except RecipeError as error:
            # A run that failed, or that an alarm stopped, is looked at more closely than one that went well.
            if error.exit_code == RecipeError.exit_code:
                with contextlib.suppress(OSError, RecipeError):
                    show(chosen.run_dir, Console())
            raise
        show(chosen.run_dir, Console())
