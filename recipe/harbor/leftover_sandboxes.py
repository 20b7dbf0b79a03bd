"""The sandboxes that Harbor left at a backend: listed, and deleted where that is asked for.

Only what carries Harbor's marks is ever seen; a run's own are known by its label, or by its trials' names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Protocol

from recipe.drift.programs import ask, last_line
from recipe.errors import BadInputError, RecipeError
from recipe.harbor import backends
from recipe.harbor.daytona import Daytona
from recipe.harbor.install import installed
from recipe.harbor.scratch import default_root, sweep
from recipe.pins import load_pins
from recipe.settings import Settings

# Of the pinned Harbor, and of later ones.
DAYTONA_LABELS = {"harbor_owner_uid", "harbor.managed"}
# A list of thousands, or a container that takes its time to stop.
PROGRAM_SECONDS = 120.0
# Deletion may be accepted long before it is done, and some are stuck: a minute in all.
PAUSES = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)
AT_ONCE = 8  # deletions; more would only meet the backends' rate limits
PROJECT, FILES = (f"com.docker.compose.project{suffix}" for suffix in ("", ".config_files"))
HARBORS_FILES = "/harbor/environments/docker/"  # where its Compose files lie in any installation


@dataclass(frozen=True)
class Sandbox:
    """`names`: what a trial's name may stand in; `run`: its run's label, where it has one."""

    id: str
    state: str
    names: Sequence[str]
    run: str | None = None


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
                yield Sandbox(one["id"], state, [str(one.get("name")), *labels.values()], labels.get("run"))

    def delete(self, sandbox: Sandbox) -> None:
        self._daytona.call("DELETE", f"/sandbox/{sandbox.id}")


@dataclass(frozen=True)
class ModalHost:
    settings: Settings

    def sandboxes(self) -> Iterator[Sandbox]:
        for line in ask_modal(self.settings, "list").splitlines():
            told = json.loads(line)
            yield Sandbox(told["id"], "running", [*told["tags"].values()], told["tags"].get("run"))

    def delete(self, sandbox: Sandbox) -> None:
        ask_modal(self.settings, "terminate", sandbox.id)


@dataclass(frozen=True)
class GkeHost:
    settings: Settings

    def sandboxes(self) -> Iterator[Sandbox]:
        for pod in json.loads(self._kubectl("get", "pods", "--selector=app=sandbox", "--output=json"))[
            "items"
        ]:
            facts = pod["metadata"]
            state = "terminating" if "deletionTimestamp" in facts else pod["status"]["phase"].lower()
            yield Sandbox(facts["name"], state, [facts["name"]])

    def delete(self, sandbox: Sandbox) -> None:
        self._kubectl("delete", "pod", sandbox.id, "--ignore-not-found", "--wait=false")

    def _kubectl(self, *words: str) -> str:
        place = [f"--kubeconfig={self.settings.gke_kubeconfig}", f"--namespace={self.settings.gke_namespace}"]
        return _output(["kubectl", *place, *words])


class DockerHost:
    """A sandbox is a project of Compose, with its containers, network and volumes."""

    def __init__(self, _settings: Settings) -> None: ...

    def sandboxes(self) -> Iterator[Sandbox]:
        columns = "\t".join(["{{.State}}", *(f'{{{{.Label "{name}"}}}}' for name in (PROJECT, FILES))])
        shown = _output(["docker", "ps", "--all", f"--filter=label={PROJECT}", f"--format={columns}"])
        rows = [line.split("\t") for line in shown.splitlines()]
        for project, state in {name: state for state, name, files in rows if HARBORS_FILES in files}.items():
            yield Sandbox(project, state, [project])

    def delete(self, sandbox: Sandbox) -> None:
        words = ["down", "--volumes", "--remove-orphans", "--timeout=5"]
        _output(["docker", "compose", f"--project-name={sandbox.id}", *words])


class LocalHost:
    """What servers that died left in the folder of temporary files, of whichever run."""

    def __init__(self, _settings: Settings) -> None: ...

    def sandboxes(self) -> Iterator[Sandbox]:
        root = default_root()
        for folder in root.iterdir() if root.is_dir() else ():
            with suppress(OSError):  # it goes, or its owner lives and holds the lock
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    flock(descriptor, LOCK_EX | LOCK_NB)
                finally:
                    os.close(descriptor)
                yield Sandbox(folder.name, "left", ())

    def delete(self, sandbox: Sandbox) -> None:  # noqa: ARG002 - all go at once
        sweep(default_root())


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


def of_run(host: Host, run: Path) -> list[Sandbox]:
    """Those of the run in the folder `run`. Raises RecipeError as the backend does."""
    trials = run / "trials"
    names = {_plain(entry.name) for entry in (os.scandir(trials) if trials.is_dir() else ())}
    return [one for one in host.sandboxes() if _belongs(one, run.name, names)]


def _belongs(sandbox: Sandbox, run_name: str, trials: set[str]) -> bool:
    if sandbox.run is not None or not sandbox.names:  # a backend without names knows nothing of runs
        return sandbox.run in (run_name, None)
    words = [_plain(name).split("-") for name in sandbox.names]
    parts = ("-".join(of[i:j]) for of in words for j in range(1, len(of) + 1) for i in range(j))
    return any(part in trials for part in parts)


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
            there = {one.id: one for one in host.sandboxes()}
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
