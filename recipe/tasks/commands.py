"""`recipe dataset`: makes prompt data of task directories; fetches, counts and checks tasks. No logic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from recipe.errors import BadInputError

app = typer.Typer(no_args_is_help=True, help="Make prompt data of task directories; fetch and check tasks.")


def _folder(text: str) -> Path:
    """A folder that is there; an empty path, which a shell may have left, would be the working directory."""
    if text and Path(text).is_dir():
        return Path(text)
    needed, hint = "a folder of Harbor task directories", "recipe dataset fetch --help, to download some"
    raise BadInputError("there is no such folder of tasks", expected=needed, found=repr(text), run=hint)


TasksDir = Annotated[Path, typer.Argument(metavar="TASKS_DIR", help="Folder of tasks.", parser=_folder)]
PromptData = Annotated[Path, typer.Argument(metavar="PROMPT_DATA", help="JSONL of prompts, one row a task.")]
Output = Annotated[Path, typer.Option(dir_okay=False, help="The JSONL to write; what is there is replaced.")]
Agent = Annotated[Literal["camel", "terminus-2"], typer.Option(help="Who solves the tasks.")]
Backend = Annotated[
    Literal["local", "docker", "daytona", "modal", "gke"] | None,
    typer.Option(help="Where the tasks are to run: refuse those that ask for more than it has."),
]
Words = Annotated[list[str] | None, typer.Option(help="May be repeated, or several with commas.")]


@app.command()
def build(tasks_dir: TasksDir, *, output: Output, agent: Agent = "camel", backend: Backend = None) -> None:
    """Write a row for each task, its instruction verbatim; for all of them or for none."""
    from recipe.tasks.folders import fetched, require_outside
    from recipe.tasks.prompts import build_rows, write_prompt_data

    require_outside(tasks_dir, output)
    rows, source = build_rows(tasks_dir, agent, backend), fetched(tasks_dir)
    origin = f", tasks of {source['repository']} at {source['revision']}" if source else ""
    typer.echo(write_prompt_data(rows, output) + origin)


@app.command("filter")
def choose(
    prompt_data: PromptData,
    *,
    output: Output,
    include: Words = None,
    exclude: Words = None,
    match: Annotated[str, typer.Option(help="Regular expression to be found in the label.")] = "",
) -> None:
    """Write the rows that have one of the labels to include, none to exclude, and match; as they are."""
    from recipe.tasks.prompts import filter_prompt_data, write_lines

    typer.echo(write_lines(filter_prompt_data(prompt_data, _words(include), _words(exclude), match), output))


@app.command()
def names(prompt_data: PromptData) -> None:
    """Print the labels, one a line."""
    from recipe.tasks.prompts import read_prompt_data

    typer.echo("\n".join(row.label for row in read_prompt_data(prompt_data)))


@app.command()
def stats(tasks_dir: TasksDir) -> None:
    """Print counts, lengths of instructions, timeouts, resources and network modes."""
    from recipe.tasks import folders

    typer.echo("\n".join(folders.stats(tasks_dir)))


@app.command()
def check(
    tasks_dir: TasksDir,
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Default: all.")] = None,
    *,
    backend: Backend = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Run each: its solution must score 1, doing nothing 0.")
    ] = False,
) -> None:
    """Check every task by Harbor's own models, and with --oracle in the sandbox of the backend local."""
    from recipe.resolve import load_sources
    from recipe.tasks import check as checks
    from recipe.tasks.folders import task_names
    from recipe.tasks.folders import tasks as counted

    if oracle and backend != "local":
        raise BadInputError("--oracle runs in the local sandbox", expected="--backend local", found=backend)
    chosen = tasks or task_names(tasks_dir)
    told = checks.check(tasks_dir, chosen, backend)
    typer.echo(f"{counted(chosen)} can be used, {told}")
    if oracle and checks.run_oracle(tasks_dir, chosen, load_sources().cache_dir, typer.echo):
        raise typer.Exit(1)


@app.command()
def fetch(
    output: Annotated[Path, typer.Argument(metavar="TASKS_DIR", help="New folder for the tasks.")],
    *,
    revision: Annotated[str, typer.Option(help="Commit of the dataset, 40 hex digits.")],
    repository: Annotated[str, typer.Option(help="Dataset on Hugging Face.")] = "camel-ai/SETA-Env",
) -> None:
    """Download the tasks of a dataset at a commit; goes on where an earlier call ended."""
    from recipe.tasks.fetch import fetch as download

    record = download(repository, revision, output)
    typer.echo(f"{record['tasks']} tasks, {record['files']} files, sha256 {record['sha256']}, {output}")


def _words(given: list[str] | None) -> set[str]:
    words = {word for one in given or () for word in re.split(r"[\s,]+", one) if word}
    if given and not words:
        raise BadInputError("--include and --exclude take labels", expected="at least 1", found="none")
    return words
