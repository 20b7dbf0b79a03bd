"""Whether the keys that were given are taken, and what they allow: one cheap request, else their form.

And whether the sandboxes that run at once fit what the backend's account may have: more are refused in mid-run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import httpx

from recipe.doctor.results import UnaskedError
from recipe.errors import BadInputError, RecipeError
from recipe.given import hub_environment
from recipe.harbor.daytona import Daytona, told
from recipe.harbor.install import installed
from recipe.harbor.leftover_sandboxes import ask_modal
from recipe.pins import load_pins
from recipe.settings import Settings
from recipe.tasks.folders import task_settings

HUB = "https://huggingface.co"
ANSWER_SECONDS = 10.0
# Forty letters and digits; keys of later servers are longer, and those of one's own server have a prefix.
WANDB_KEY = r"(local-)?[A-Za-z0-9_]{40,}"
SIZES = ("Cpu", "Memory", "Disk")
MIB_PER_GIB = 1024

Sizes = tuple[float, ...]  # CPUs, GiB of memory, GiB of disk
UNSAID = (1.0, 1.0, 3.0)  # of a sandbox whose task does not say, as Daytona gives them


def wandb_key(settings: Settings, *_: object) -> Iterator[BadInputError]:
    """WANDB_API_KEY, when given, has the form of a key."""
    if settings.wandb_api_key is None:
        raise UnaskedError("there is no WANDB_API_KEY")
    key = settings.wandb_api_key.get_secret_value()
    if not re.fullmatch(WANDB_KEY, key):
        yield BadInputError(
            "WANDB_API_KEY is no key",
            expected="40 letters and digits, without quotes or spaces",
            found=f"{len(key)} characters",
            where=settings.source("wandb_api_key"),
        )


def hub_token(settings: Settings, *_: object) -> Iterator[BadInputError]:
    """Hugging Face knows whose token HF_TOKEN is."""
    if settings.hf_token is None:
        raise UnaskedError("there is no HF_TOKEN, and the model needs none")
    url = f"{hub_environment().get('HF_ENDPOINT', HUB)}/api/whoami-v2"
    bearer = {"Authorization": f"Bearer {settings.hf_token.get_secret_value()}"}
    try:
        answer = httpx.get(url, headers=bearer, timeout=ANSWER_SECONDS)
        found = "" if answer.is_success else f"{answer.status_code} {answer.reason_phrase}"
        answered = not answer.is_server_error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        # That no header can hold the token is an answer too.
        found, answered = told(error), isinstance(error, httpx.LocalProtocolError | UnicodeError)
    if not answered:
        raise UnaskedError(f"Hugging Face does not answer: {found}")
    if found:
        yield BadInputError(
            "Hugging Face does not take HF_TOKEN",
            found=found,
            where=settings.source("hf_token"),
            run="another HF_TOKEN of https://huggingface.co/settings/tokens, or none: the model itself needs none",
        )


def sandbox_account(settings: Settings, *_: object) -> Iterator[BadInputError]:
    """The backend's service takes the credentials."""
    backend = settings.sandbox_backend
    if backend in ("local", "docker"):
        raise UnaskedError(f"the backend {backend} has no account")
    if backend not in ("daytona", "modal"):
        raise UnaskedError("only Harbor's own client can ask")
    if backend == "daytona" and settings.daytona_api_key is None:
        raise UnaskedError("there is no DAYTONA_API_KEY")
    if backend == "modal" and not installed(settings, load_pins()):
        raise UnaskedError("Modal's client comes with the pinned Harbor: make harbor")
    try:
        if backend == "modal":
            ask_modal(settings, "check")
        else:
            next(Daytona(settings, patient=False).sandboxes(), None)
    except RecipeError as error:
        yield BadInputError(error.problem, **error.facts)


def shortages(settings: Settings, tasks: Collection[Path]) -> Iterator[BadInputError]:
    """One when no region has room for AGENT_MAX_CONCURRENT sandboxes, were their tasks mixed evenly, and the largest.

    Raises UnaskedError where nobody tells what there is.
    """
    count, sizes = settings.agent_max_concurrent, [_sizes(settings, task) for task in tasks]
    together = tuple(count * sum(column) / len(tasks) for column in zip(*sizes, strict=True))
    largest = tuple(map(max, zip(*sizes, strict=True)))
    asked = f"{count} sandboxes ask for {_text(together)} together, the largest for {_text(largest)}"
    rooms = _rooms(settings)
    if not rooms:
        raise UnaskedError(f"{settings.sandbox_backend} does not tell its limits here: {asked}")
    all_fit, each_fits, left, cap = max(
        ((_share(left, together), _share(cap, largest), left, cap) for left, cap in rooms),
        key=lambda region: (min(region[:2]) >= 1, region),
    )
    if min(all_fit, each_fits) < 1:
        smaller = "SANDBOX_CPUS, SANDBOX_MEMORY_MB, SANDBOX_STORAGE_MB, or without the largest tasks"
        fewer = f"AGENT_MAX_CONCURRENT={int(count * all_fit)}, or `recipe sandboxes list --all`: what holds the rest"
        yield BadInputError(
            "the sandboxes don't fit Daytona's limits",
            expected=asked,
            found=f"at most {_text(left)} left, and {_text(cap)} for one sandbox",
            run=smaller if each_fits < 1 else fewer,
        )


def _rooms(settings: Settings) -> list[tuple[Sizes, Sizes]]:
    """For each region what Daytona's account may still have, and one sandbox of it; empty where nobody tells."""
    if settings.sandbox_backend != "daytona" or settings.daytona_api_key is None:
        return []
    try:
        return [
            (
                tuple(row[f"total{name}Quota"] - row[f"current{name}Usage"] for name in SIZES),
                tuple(row.get(f"max{name}PerSandbox") or float("inf") for name in SIZES),
            )
            for row in Daytona(settings, patient=False).quotas()
        ]
    except (RecipeError, KeyError, TypeError):  # a key without the right to ask, an older server
        return []


def _sizes(settings: Settings, task: Path) -> Sizes:
    asked = task_settings(task).environment
    memory = (settings.sandbox_memory_mb or asked.memory_mb or 0) / MIB_PER_GIB
    storage = (settings.sandbox_storage_mb or asked.storage_mb or 0) / MIB_PER_GIB
    said = (settings.sandbox_cpus or asked.cpus, memory, storage)
    return tuple(size or unsaid for size, unsaid in zip(said, UNSAID, strict=True))


def _share(given: Sizes, wanted: Sizes) -> float:
    """How many times `given` holds what is wanted."""
    return max(0.0, min(limit / one for limit, one in zip(given, wanted, strict=True)))


def _text(of: Sizes) -> str:
    return f"{of[0]:g} CPUs, {of[1]:g} GiB of memory, {of[2]:g} GiB of disk"
