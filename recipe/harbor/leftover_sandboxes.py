"""The sandboxes that Harbor left at a backend: listed, and deleted where that is asked for.

Only what carries Harbor's marks is ever seen; a run's own are known by its label, or by its trials' names.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recipe.errors import BadInputError, RecipeError
from recipe.gke.calls import kubectl_words
from recipe.harbor import backends, environment_config, scratch
from recipe.harbor.daytona import Daytona, in_form
from recipe.harbor.install import installed
from recipe.pins import load_pins
from recipe.programs import ask, last_line
from recipe.settings import Settings

# Of the pinned Harbor, and of later ones.
DAYTONA_LABELS = {"harbor_owner_uid", "harbor.managed"}
# A list of thousands, or a container that takes its time to stop.
PROGRAM_SECONDS = 120.0
# Deletion may be accepted long before it is done, and some are stuck: a minute in all.
PAUSES = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)
AT_ONCE = 8  # deletions; more would only meet the backends' rate limits
PROJECT, FILES = (f"com.docker.compose.project{suffix}" for suffix in ("", ".config_files"))
# Those of its Compose files that are always in use, in a checkout or as a package.
HARBORS_FILE = re.compile(
    r".*/(src|site-packages)/harbor/environments/docker/docker-compose-(base|build|prebuilt)\.yaml"
).fullmatch
NAME = re.compile(r"\w[\w-]*(\.[\w-]+)*", re.ASCII).fullmatch  # it goes into addresses and command lines
TASK_CHARACTERS = 32  # of a task's name in its trial's


@dataclass(frozen=True)
class Sandbox:
    """`names`: what its trial's name may be; none where the backend knows none; `run`: its run's label, if any."""

    id: str
    state: str
    names: Sequence[str | None]
    run: str | None = None

    def __post_init__(self) -> None:
        if not NAME(self.id):
            raise ValueError(f"{self.id!r} is no name")


class Host(Protocol):
    """A backend: what of Harbor is still there, and the wish that one be gone. Both raise RecipeError."""

    def sandboxes(self) -> Iterator[Sandbox]: ...
    def delete(self, sandbox: Sandbox) -> None: ...


class DaytonaHost:
    def __init__(self, settings: Settings) -> None:
        self._daytona = Daytona(settings)

    def sandboxes(self) -> Iterator[Sandbox]:
        for one in self._daytona.sandboxes():
            labels, state = one.get("labels") or {}, str(one.get("state"))
            if DAYTONA_LABELS & set(labels) and state != "destroyed":
                yield Sandbox(one["id"], state, [one.get("name"), *labels.values()], labels.get("run"))

    def delete(self, sandbox: Sandbox) -> None:
        self._daytona.call("DELETE", f"/sandbox/{sandbox.id}")


@dataclass(frozen=True)
class ModalHost:
    settings: Settings

    def sandboxes(self) -> Iterator[Sandbox]:
        for line in ask_modal(self.settings, "list").splitlines():
            told = json.loads(line)
            tags = told["tags"] or {}
            yield Sandbox(told["id"], "running", [None, *tags.values()], tags.get("run"))

    def delete(self, sandbox: Sandbox) -> None:
        ask_modal(self.settings, "terminate", sandbox.id)


@dataclass(frozen=True)
class GkeHost:
    settings: Settings

    def sandboxes(self) -> Iterator[Sandbox]:
        answer = self._kubectl("get", "pods", "--selector=app=sandbox", "--output=json")
        for pod in json.loads(answer)["items"]:
            facts = pod["metadata"]
            state = "terminating" if "deletionTimestamp" in facts else pod["status"]["phase"].lower()
            yield Sandbox(facts["name"], state, [facts["name"]])

    def delete(self, sandbox: Sandbox) -> None:
        self._kubectl("delete", "pod", sandbox.id, "--ignore-not-found", "--wait=false")

    def _kubectl(self, *words: str) -> str:
        return _output([*kubectl_words(self.settings), *words])


class DockerHost:
    """A sandbox is a project of Compose, with its containers, network and volumes."""

    def __init__(self, _settings: Settings) -> None: ...

    def sandboxes(self) -> Iterator[Sandbox]:
        columns = "\t".join(["{{.State}}", *(f'{{{{.Label "{name}"}}}}' for name in (PROJECT, FILES))])
        shown = _output(["docker", "ps", "--all", f"--filter=label={PROJECT}", f"--format={columns}"])
        rows = [line.split("\t") for line in shown.splitlines()]
        harbors = {name: state for state, name, files in rows if any(map(HARBORS_FILE, files.split(",")))}
        yield from (Sandbox(project, state, [project]) for project, state in harbors.items())

    def delete(self, sandbox: Sandbox) -> None:
        words = ["down", "--volumes", "--remove-orphans", "--timeout=5"]
        _output(["docker", "compose", f"--project-name={sandbox.id}", *words])


class LocalHost:
    """What servers that died left in the folder of temporary files, of whichever run."""

    def __init__(self, _settings: Settings) -> None: ...

    def sandboxes(self) -> Iterator[Sandbox]:
        yield from (Sandbox(name, "left", ()) for name in scratch.left(scratch.default_root()))

    def delete(self, sandbox: Sandbox) -> None:
        if why := scratch.remove_left(scratch.default_root(), sandbox.id).get(sandbox.id):
            raise RecipeError("a sandbox's folder can't be removed", found=why)


HOSTS: Mapping[str, Callable[[Settings], Host]] = {
    "daytona": DaytonaHost,
    "modal": ModalHost,
    "gke": GkeHost,
    "docker": DockerHost,
    "local": LocalHost,
}


def host_of(settings: Settings) -> Host:
    """The backend of SANDBOX_BACKEND. Raises BadInputError for one that can't be asked, or not with these settings."""
    name = settings.sandbox_backend
    if name not in HOSTS:
        raise BadInputError("this backend's sandboxes can't be listed", expected=", ".join(HOSTS), found=name)
    for finding in backends.check(settings):
        raise finding
    return HOSTS[name](settings)


def listed(host: Host) -> list[Sandbox]:
    """All of Harbor's there. Raises RecipeError where the backend does not tell, or in another form."""
    with in_form(type(host).__name__.removesuffix("Host")):
        return list(host.sandboxes())


def of_run(host: Host, run: Path) -> list[Sandbox]:
    """Those of the run in the folder `run`. Raises RecipeError as the backend does."""
    label, found = environment_config.run_label(run / "launcher"), (run / "trials").glob("*/config.json")
    trials = {_plain(path.parent.name) for path in found} - {""}
    return [one for one in listed(host) if _belongs(one, label, trials)]


def _belongs(sandbox: Sandbox, label: str | None, trials: set[str]) -> bool:
    if sandbox.run is not None:
        return sandbox.run == label
    if not sandbox.names:  # a backend without names knows nothing of runs
        return True
    return any(_names(_plain(name).split("-"), trials) for name in sandbox.names if isinstance(name, str))


def _names(words: list[str], trials: set[str]) -> bool:
    """Whether they begin with a trial's name, as Harbor writes it, or with that after its task's."""
    for start in range(len(words)):
        task = "-".join(words[:start])[:TASK_CHARACTERS].strip("-")
        begins = ("-".join(words[start:end]) for end in range(start + 1, len(words) + 1))
        if any(name in trials and name.startswith(task) for name in begins):
            return True
    return False


def _plain(name: str) -> str:
    """As the backends write it that know lower-case letters, digits and single hyphens only."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def delete(host: Host, chosen: Sequence[Sandbox]) -> dict[str, str]:
    """Deletes them, again and again until none is listed; why each that is left is so, by its id."""
    left, why = {one.id: one for one in chosen}, {}
    for pause in PAUSES:
        time.sleep(pause)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            why = dict(zip(left, pool.map(lambda one: _refusal(host, one), left.values()), strict=True))
        with suppress(RecipeError):  # a list that fails tells nothing of what is left
            there = {one.id: one for one in listed(host)}
            left = {name: there[name] for name in left if name in there}
        if not left:
            break
    return {name: why[name] or f"still {one.state}" for name, one in left.items()}


def _refusal(host: Host, sandbox: Sandbox) -> str:
    try:
        host.delete(sandbox)
    except RecipeError as error:
        return f"{error.problem}: {error.facts.get('found', '')}"
    return ""


def ask_modal(settings: Settings, *words: str) -> str:
    """What Modal's client says in the pinned Harbor's environment. Raises RecipeError, BadInputError without that."""
    harbor = installed(settings, load_pins())
    if harbor is None:
        needed = "the pinned Harbor's environment"
        raise BadInputError("Modal's client is not there", expected=needed, found="none", run="make harbor")
    script = Path(__file__).with_name("modal_sandboxes.py")
    return _output([str(harbor.python), "-I", str(script), *words], **backends.credentials(settings))


def _output(command: Sequence[str], **variables: str) -> str:
    done = ask(command, folder=Path("/"), seconds=PROGRAM_SECONDS, **variables)
    if done.returncode:
        name, found = Path(command[0]).name, last_line(done.stderr)
        raise RecipeError(f"{name} failed", found=found, run=shlex.join(command))
    return done.stdout
