"""Where sandboxes run: one table of what each backend needs and can't do; checked before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from recipe.errors import BadInputError
from recipe.programs import ask, last_line
from recipe.settings import Settings
from recipe.tasks import folders

# A daemon that answers does so at once; one of another host has a connection to make.
DOCKER_SECONDS = 20.0
GKE_PROGRAMS = ("gcloud", "gke-gcloud-auth-plugin")
GKE_REQUIRED = ("gke_project_id", "gke_region", "gke_cluster_name", "gke_tools_image")
LOCAL_MEMORY_MB = 64  # below it a sandbox's own processes, a shell and a Python, have no room
DIRECT = "it has to reach nobody: agents run beside the agent server, which runs their commands in it"


@dataclass(frozen=True)
class Backend:
    """`check` yields why no sandbox could start; `credentials` are the settings that the server gets, if set.

    The rest is for people: docs/sandboxes.md is written from it.
    """

    check: Callable[[Settings], Iterator[BadInputError]]
    needs: str
    limits: str
    credentials: tuple[str, ...] = ()
    cannot: str = ""  # besides what its Abilities lack
    reach: str = DIRECT


def check(settings: Settings) -> Iterator[BadInputError]:
    """What is wrong with SANDBOX_BACKEND and its credentials; no secret is shown."""
    yield from given(settings)
    yield from here(settings)


def here(settings: Settings) -> Iterator[BadInputError]:
    """The part of `check` that is about the machine that starts the agent server, and the credentials there."""
    if settings.sandbox_backend in BACKENDS:
        yield from BACKENDS[settings.sandbox_backend].check(settings)


def given(settings: Settings) -> Iterator[BadInputError]:
    """The part of `check` that holds on any machine."""
    backend = settings.sandbox_backend
    if backend == "gke" and (absent := _absent(settings)):
        yield _missing("the backend gke needs to know its cluster", ", ".join(absent))
    if backend == "local" and (settings.sandbox_memory_mb or LOCAL_MEMORY_MB) < LOCAL_MEMORY_MB:
        yield BadInputError(
            "no sandbox of the backend local can work in so little memory",
            expected=f"SANDBOX_MEMORY_MB of at least {LOCAL_MEMORY_MB}",
            found=settings.sandbox_memory_mb,
        )
    if backend == "daytona":
        yield from _daytona_stop(settings)


def credentials(settings: Settings) -> dict[str, str]:
    """Variables of the agent server's environment: those of the chosen backend, and of no other."""
    if settings.sandbox_backend == "gke":
        return {"KUBECONFIG": str(settings.gke_kubeconfig)}
    backend = BACKENDS.get(settings.sandbox_backend)
    values = {name.upper(): getattr(settings, name) for name in backend.credentials} if backend else {}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in values.items()
        if value is not None
    }


def note(settings: Settings) -> str | None:
    """What the user is told of a backend that passes through unchecked."""
    if settings.sandbox_backend in BACKENDS:
        return None
    return (
        f"SANDBOX_BACKEND {settings.sandbox_backend} goes to Harbor as it is: nothing of it was checked, and of its "
        "credentials only files in the home folder reach the agent server"
    )


def auto_stop_minutes(settings: Settings) -> int:
    """When a sandbox that nobody removed is stopped by its backend: the trial's deadline and half an hour."""
    deadline = settings.harbor_agent_call_timeout_sec / 60
    return settings.daytona_auto_stop_min or int(deadline) + 30


def _local(_settings: Settings) -> Iterator[BadInputError]:
    """Bubblewrap's own check comes with the tasks'."""
    yield from ()


def _docker(_settings: Settings) -> Iterator[BadInputError]:
    """Harbor calls the program, so that is what must reach a daemon: at DOCKER_HOST, or of the current context."""
    done = ask(
        ["docker", "version", "--format", "{{.Server.Version}}"], folder=Path("/"), seconds=DOCKER_SECONDS
    )
    if done.returncode:
        yield BadInputError(
            "Docker can't run sandboxes",
            expected="a daemon that this user may reach",
            found=last_line(done.stderr),
            run="docker version",
        )


def _daytona(settings: Settings) -> Iterator[BadInputError]:
    if settings.daytona_api_key is None:
        yield _missing("Daytona needs credentials", "DAYTONA_API_KEY")


def _daytona_stop(settings: Settings) -> Iterator[BadInputError]:
    if auto_stop_minutes(settings) * 60 <= settings.harbor_agent_call_timeout_sec:
        yield BadInputError(
            "Daytona would stop sandboxes of trials that still run",
            expected=f"more than HARBOR_AGENT_CALL_TIMEOUT_SEC={settings.harbor_agent_call_timeout_sec:g} s",
            found=f"DAYTONA_AUTO_STOP_MIN={settings.daytona_auto_stop_min}",
            where=settings.source("daytona_auto_stop_min"),
            run="the same command without DAYTONA_AUTO_STOP_MIN",
        )


def _modal(settings: Settings) -> Iterator[BadInputError]:
    tokens = {"MODAL_TOKEN_ID": settings.modal_token_id, "MODAL_TOKEN_SECRET": settings.modal_token_secret}
    absent = [name for name, value in tokens.items() if value is None]
    file = Path.home() / ".modal.toml"
    # With one of the two, Modal would take neither.
    if len(absent) == 1 or (absent and not file.is_file()):
        yield _missing("Modal needs credentials", " and ".join(absent), f", or neither and a file {file}")


def _absent(settings: Settings) -> list[str]:
    return [name.upper() for name in GKE_REQUIRED if getattr(settings, name) is None]


def _gke(settings: Settings) -> Iterator[BadInputError]:
    if not _absent(settings) and not settings.gke_kubeconfig.is_file():
        yield BadInputError(
            "there are no credentials of the GKE cluster",
            expected="its kubeconfig",
            found="no file",
            where=settings.gke_kubeconfig,
            run="recipe gke credentials",
        )
    if missing := [name for name in GKE_PROGRAMS if shutil.which(name) is None]:
        yield BadInputError(
            "programs of the Google Cloud CLI are missing",
            expected=", ".join(GKE_PROGRAMS),
            found=f"no {', no '.join(missing)} on PATH",
            run="https://cloud.google.com/sdk/docs/install, "
            "then gcloud components install gke-gcloud-auth-plugin",
        )


def _missing(problem: str, names: str, otherwise: str = "") -> BadInputError:
    return BadInputError(
        problem,
        expected=f"{names} in the environment or in .env{otherwise}",
        found="nothing",
        where="SANDBOX_BACKEND",
    )


BACKENDS: Mapping[str, Backend] = {
    "local": Backend(
        _local,
        needs="bubblewrap, user namespaces; for terminus-2 tmux",
        cannot="the engine miles",
        limits="this machine",
    ),
    "docker": Backend(
        _docker,
        needs="`docker` with Compose, and a daemon that it reaches",
        limits="the daemon's machine",
    ),
    "daytona": Backend(
        _daytona,
        needs="an account with a key that may write sandboxes",
        limits="the organisation's CPUs, memory and disk, which `recipe doctor` compares where its key may ask; "
        "often 4 CPUs, 8 GiB and 10 GiB of disk a sandbox",
        credentials=("daytona_api_key", "daytona_api_url"),
    ),
    "modal": Backend(
        _modal,
        needs="a token, in two variables or in ~/.modal.toml",
        cannot="no-network tasks with Docker Compose, sandboxes of more than a day",
        limits="the workspace's containers, which its client does not tell",
        credentials=("modal_token_id", "modal_token_secret"),
    ),
    "gke": Backend(
        _gke,
        needs="a cluster of `recipe gke create`, its kubeconfig and the tools image; gcloud and "
        "gke-gcloud-auth-plugin on PATH",
        limits="the nodes of `recipe gke scale`",
        credentials=GKE_REQUIRED,
        reach="the session servers are at HEAD_IP unless MILES_ROUTER_EXTERNAL_HOST and MILES_HOST_IP say otherwise; "
        "with the network policies no pod reaches them, which matters to an agent that runs in its sandbox alone",
    ),
}

START = "<!-- written from recipe/harbor/backends.py by recipe pins-check --write -->"


def markdown(page: str) -> str:
    """docs/sandboxes.md: `page` up to START, then a row for each backend. Raises BadInputError without that mark."""
    before, start, _ = page.partition(START)
    if not start:
        raise BadInputError("the page has lost its mark", expected=START, where="docs/sandboxes.md")
    lines = [
        "| SANDBOX_BACKEND | needs | credentials | can't run | limits | who reaches the session servers |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in BACKENDS.items():
        variables = ", ".join(setting.upper() for setting in one.credentials) or "-"
        lines.append(f"| {name} | {one.needs} | {variables} | {_cannot(name)} | {one.limits} | {one.reach} |")
    return "\n".join([before + START, "", *lines, ""])


def _cannot(name: str) -> str:
    able = folders.BACKENDS[name]
    parts = {"GPUs": able.gpus, "Docker Compose, images without a Dockerfile": able.containers}
    parts |= {f"network_mode {mode}": mode in able.networks for mode in folders.Abilities().networks}
    lacking = [part for part, has in parts.items() if not has]
    return ", ".join([*lacking, *filter(None, [BACKENDS[name].cannot])]) or "-"
