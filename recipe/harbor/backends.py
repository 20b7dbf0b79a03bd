"""Where sandboxes run: which credentials each backend needs, and whether they are there before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from recipe.drift.programs import ask, last_line
from recipe.errors import BadInputError
from recipe.settings import Settings

# A daemon that answers does so at once; one of another host has a connection to make.
DOCKER_SECONDS = 20.0


@dataclass(frozen=True)
class Backend:
    """`check` yields why no sandbox could start; `credentials` are the settings that the server gets, if set."""

    check: Callable[[Settings], Iterator[BadInputError]]
    credentials: tuple[str, ...] = ()


def check(settings: Settings) -> Iterator[BadInputError]:
    """What is wrong with SANDBOX_BACKEND and its credentials; no secret is shown."""
    if settings.sandbox_backend in BACKENDS:
        yield from BACKENDS[settings.sandbox_backend].check(settings)


def credentials(settings: Settings) -> dict[str, str]:
    """Variables of the agent server's environment: those of the chosen backend, and of no other."""
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
        yield _missing("Daytona", "DAYTONA_API_KEY")


def _modal(settings: Settings) -> Iterator[BadInputError]:
    tokens = {"MODAL_TOKEN_ID": settings.modal_token_id, "MODAL_TOKEN_SECRET": settings.modal_token_secret}
    absent = [name for name, value in tokens.items() if value is None]
    file = Path.home() / ".modal.toml"
    # With one of the two, Modal would take neither.
    if len(absent) == 1 or (absent and not file.is_file()):
        yield _missing("Modal", " and ".join(absent), f", or neither and a file {file}")


def _missing(backend: str, names: str, otherwise: str = "") -> BadInputError:
    return BadInputError(
        f"{backend} needs credentials",
        expected=f"{names} in the environment or in .env{otherwise}",
        found="nothing",
        where="SANDBOX_BACKEND",
    )


def _gke(_settings: Settings) -> Iterator[BadInputError]:
    yield BadInputError(
        "SANDBOX_BACKEND gke can't be used yet", found="its environment config is not written yet"
    )


BACKENDS: Mapping[str, Backend] = {
    "local": Backend(_local),
    "docker": Backend(_docker),
    "daytona": Backend(_daytona, ("daytona_api_key", "daytona_api_url")),
    "modal": Backend(_modal, ("modal_token_id", "modal_token_secret")),
    "gke": Backend(_gke),
}
