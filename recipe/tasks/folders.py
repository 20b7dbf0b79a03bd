"""Task directories: which there are, what they ask for, and why one of them can't be used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from recipe.errors import BadInputError

# A name that stays inside the folder it is joined to, on every file system and in every shell.
SAFE_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]*")
SAFE_FORM = "letters, digits and . _ - only, starting with a letter or a digit, without .."
BOM = "\ufeff"  # a byte order mark, which some editors write
BOM_NAMED = "a byte order mark (BOM) at its start"
Network = Literal["public", "no-network", "allowlist"]
Count = Annotated[int, Field(le=2**53)]  # a float can hold it


class Phase(BaseModel):
    timeout_sec: float | None = None


class Environment(BaseModel):
    """The sandbox's; None where the task leaves it to the backend."""

    cpus: float | None = None
    memory_mb: Count | None = None
    storage_mb: Count | None = None
    gpus: Count | None = None
    docker_image: str | None = None
    network_mode: Network = "public"

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("allow_internet"), bool):
            return {"network_mode": "public" if table["allow_internet"] else "no-network"} | table
        return table


class TaskSettings(BaseModel):
    """What this package reads of a task.toml; whatever else it says is Harbor's."""

    agent: Phase = Field(default_factory=Phase)
    verifier: Phase = Field(default_factory=Phase)
    environment: Environment = Field(default_factory=Environment)


@dataclass(frozen=True)
class Abilities:
    """What tasks may ask of a backend; `containers`: Docker Compose, and images without a Dockerfile."""

    gpus: bool = True
    containers: bool = True
    networks: tuple[Network, ...] = ("public", "no-network", "allowlist")


# As Harbor 0.25.0 declares them, less the GPUs that a run has not: docker's are the cluster's own, which train, and
# on gke a run has nodes of CPUs.
BACKENDS = {
    "local": Abilities(gpus=False, containers=False, networks=("no-network",)),
    "docker": Abilities(gpus=False),
    "daytona": Abilities(),
    "modal": Abilities(),
    "gke": Abilities(gpus=False, networks=("public", "no-network")),
}


def task_names(tasks_dir: Path) -> list[str]:
    """The folders in `tasks_dir`, sorted, hidden ones left out: each is to be a task. Raises BadInputError."""
    try:
        found = [entry for entry in os.scandir(tasks_dir) if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInputError("there is no such folder of tasks", found=error, where=tasks_dir) from None
    # A link that leads nowhere is a task that is missing.
    names = sorted(entry.name for entry in found if entry.is_symlink() or entry.is_dir())
    if not names:
        raise BadInputError("there are no tasks", expected="task directories", found="none", where=tasks_dir)
    return names


def require_usable(tasks_dir: Path, names: Iterable[str], backend: str | None = None) -> None:
    """Raises BadInputError listing all that keeps tasks from use, on `backend` if that is one of BACKENDS."""
    root, able = os.path.realpath(tasks_dir), BACKENDS.get(backend or "", Abilities())
    refuse(tasks_dir, [f"{name}: {problem}" for name in names for problem in _problems(root, name, able)])


def refuse(tasks_dir: Path, problems: list[str]) -> None:
    """Raises BadInputError listing the `problems`, each after its task's name, if there are any."""
    if problems:
        raise BadInputError(
            f"{tasks({problem.partition(':')[0] for problem in problems})} can't be used",
            expected="<task>/ with task.toml, instruction.md and tests/",
            found="\n".join(problems),
            where=tasks_dir,
        )


def tasks(names: Collection[str]) -> str:
    """How many they are, for people."""
    return f"{len(names)} task{'s' * (len(names) != 1)}"


def require_outside(tasks_dir: Path, output: Path) -> None:
    """Raises BadInputError when the file `output` would lie in a folder of `tasks_dir`: each is a task."""
    root, folder = (Path(os.path.realpath(path)) for path in (tasks_dir, output.absolute().parent))
    if folder != root and folder.is_relative_to(root):
        raise BadInputError("the output would lie in a task", expected="another folder", found=output)


def read_verbatim(path: Path) -> str:
    """A file's text with its line ends and its byte order mark. Raises BadInputError when it is no UTF-8 text."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("it is no regular file" if path.exists() else "no such file")
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path.name} could not be read"
        raise BadInputError(problem, expected="UTF-8 text", found=error, where=path) from None


def task_settings(task: Path) -> TaskSettings:
    """What `task`/task.toml says. Raises BadInputError."""
    path = task / "task.toml"
    text = read_verbatim(path)
    try:
        return TaskSettings.model_validate(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        found = first_problem(error) if isinstance(error, ValidationError) else error
        found = BOM_NAMED if text.startswith(BOM) else found
        problem = "a task's settings can't be read"
        raise BadInputError(problem, expected="TOML", found=found, where=path) from None


def first_problem(error: ValidationError) -> str:
    """Where it is and what is wrong."""
    problem = error.errors(include_url=False)[0]
    place = "".join(f"{part}: " for part in problem["loc"])
    return place + problem["msg"].removeprefix("Value error, ")


def fetched(tasks_dir: Path) -> dict[str, Any] | None:
    """What `fetch` recorded: repository, revision, tasks, files, sha256 of the list of files and git hashes.

    None for tasks that it did not make. Raises BadInputError for a damaged record.
    """
    path = tasks_dir / "fetched.json"
    if not path.exists():
        return None
    try:
        record = json.loads(read_verbatim(path))
        return {name: record[name] for name in ("repository", "revision", "tasks", "files", "sha256")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInputError("a record of fetched tasks is damaged", found=repr(error), where=path) from None


def entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, at any depth; links are not followed."""
    with os.scandir(folder) as found:
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from entries(entry.path)


def content_hash(task: Path) -> str:
    """SHA-256 over the names, the modes' execute bits and the bytes of every file of a task."""
    digest = hashlib.sha256()
    for file in sorted(path for path in task.rglob("*") if path.is_file()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(task)}\0{bool(file.stat().st_mode & 0o100)}\0{content}\n".encode())
    return digest.hexdigest()


def stats(tasks_dir: Path) -> list[str]:
    """What the tasks are like, a line a fact. Raises BadInputError listing those that can't be used."""
    names = task_names(tasks_dir)
    require_usable(tasks_dir, names)
    settings = [task_settings(tasks_dir / name) for name in names]
    asked = [one.environment for one in settings]
    lengths = [len(read_verbatim(tasks_dir / name / "instruction.md")) for name in names]
    return [
        f"{'tasks':<24}{len(names)}",
        _spread("instruction, characters", lengths),
        _spread("agent timeout, s", [one.agent.timeout_sec for one in settings]),
        _spread("verifier timeout, s", [one.verifier.timeout_sec for one in settings]),
        _spread("CPUs", [one.cpus for one in asked]),
        _spread("memory, MiB", [one.memory_mb for one in asked]),
        _spread("storage, MiB", [one.storage_mb for one in asked]),
        _spread("GPUs", [one.gpus for one in asked]),
        f"{'Docker Compose tasks':<24}{sum(_needs_compose(tasks_dir / name) for name in names)}",
        *(f"network {mode:<16}{n} tasks" for mode, n in Counter(one.network_mode for one in asked).items()),
    ]


def _spread(what: str, values: Sequence[float | None]) -> str:
    said = sorted(value for value in values if value is not None)
    spread = f"{said[0]:g} to {said[-1]:g}, median {median(said):g}, " if said else ""
    return f"{what:<24}{spread}said by {len(said)} tasks"


def _needs_compose(task: Path) -> bool:
    return (task / "environment" / "docker-compose.yaml").exists()


def _problems(root: str, name: str, able: Abilities) -> Iterator[str]:
    task = Path(os.path.realpath(f"{root}/{name}"))
    try:
        if not SAFE_NAME.fullmatch(name):
            yield f"the name is not safe ({SAFE_FORM})"
        elif not task.is_relative_to(root) or task == Path(root):
            yield f"a link to {task}, outside the folder of tasks"
        elif not task.is_dir():
            yield f"no directory {name}"
        else:
            yield from _problems_inside(task, able)
    except OSError as error:
        yield f"it could not be read: {error}"


def _problems_inside(task: Path, able: Abilities) -> Iterator[str]:
    if not (task / "tests").is_dir():
        yield "it lacks tests/"
    for link in (entry.path for entry in entries(task) if entry.is_symlink()):
        if not (target := os.path.realpath(link)).startswith(f"{task}/"):
            yield f"{link.removeprefix(f'{task}/')} is a link to {target}, outside the task"
    try:
        if not read_verbatim(task / "instruction.md").removeprefix(BOM).strip():
            yield "instruction.md is empty"
    except BadInputError as error:
        yield f"{error.problem}: {error.facts['found']}"
    try:
        yield from _asked_too_much(task, task_settings(task).environment, able)
    except BadInputError as error:
        yield f"{error.problem}: {error.facts['found']}"


def _asked_too_much(task: Path, asked: Environment, able: Abilities) -> Iterator[str]:
    if asked.gpus and not able.gpus:
        yield f"it asks for {asked.gpus} GPUs, the backend has none"
    if _needs_compose(task) and not able.containers:
        yield "it needs Docker Compose, the backend has none"
    if asked.docker_image and not able.containers and not (task / "environment" / "Dockerfile").exists():
        yield f"it needs the image {asked.docker_image}, the backend runs none"
    if asked.network_mode not in able.networks:
        yield f"network_mode {asked.network_mode}, the backend has {', '.join(able.networks)}"
