"""Whether the keys that were given are taken, and what they allow: one cheap request, else their form."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx

from recipe.doctor.results import UnaskedError
from recipe.errors import BadInputError, RecipeError
from recipe.given import hub_environment
from recipe.harbor.daytona import Daytona, told
from recipe.harbor.install import installed
from recipe.harbor.leftover_sandboxes import ask_modal
from recipe.pins import load_pins
from recipe.settings import Settings

HUB = "https://huggingface.co"
ANSWER_SECONDS = 10.0
# Forty letters and digits; keys of later servers are longer, and those of one's own server have a prefix.
WANDB_KEY = r"(local-)?[A-Za-z0-9_]{40,}"


def wandb_key(settings: Settings) -> Iterator[BadInputError]:
    """WANDB_API_KEY, when given, has the form of a key."""
    key = settings.wandb_api_key
    if key is not None and not re.fullmatch(WANDB_KEY, key.get_secret_value()):
        yield BadInputError(
            "WANDB_API_KEY is no key",
            expected="40 letters and digits, without quotes or spaces",
            found=f"{len(key.get_secret_value())} characters",
            where=settings.source("wandb_api_key"),
        )


def wandb_key_unasked(settings: Settings) -> str:
    """Why there is nothing to look at, or nothing."""
    return "" if settings.wandb_api_key else "there is no WANDB_API_KEY"


def hub_token(settings: Settings) -> Iterator[BadInputError]:
    """Hugging Face knows whose token HF_TOKEN is."""
    if settings.hf_token is None:
        raise UnaskedError("there is no HF_TOKEN, and the model needs none")
    found, answered = _ask_hub(settings)
    if not answered:
        raise UnaskedError(f"Hugging Face does not answer: {found}")
    if found:
        yield BadInputError(
            "Hugging Face does not take HF_TOKEN",
            found=found,
            where=settings.source("hf_token"),
            run="another HF_TOKEN of https://huggingface.co/settings/tokens, or none: the model itself needs none",
        )


def _ask_hub(settings: Settings) -> tuple[str, bool]:
    """What is wrong with HF_TOKEN, and whether that is Hugging Face's answer."""
    url = f"{hub_environment().get('HF_ENDPOINT', HUB)}/api/whoami-v2"
    token = settings.hf_token.get_secret_value() if settings.hf_token else ""
    try:
        answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        no_header_can_hold_it = isinstance(error, (httpx.LocalProtocolError, UnicodeError))
        return told(error), no_header_can_hold_it
    refusal = f"{answer.status_code} {answer.reason_phrase}"
    return "" if answer.is_success else refusal, not answer.is_server_error


def sandbox_account(settings: Settings) -> Iterator[BadInputError]:
    """The backend's service takes the credentials."""
    try:
        if settings.sandbox_backend == "daytona" and settings.daytona_api_key:
            next(Daytona(settings, patient=False).sandboxes(), None)
        if settings.sandbox_backend == "modal":
            ask_modal(settings, "check")
    except RecipeError as error:
        yield BadInputError(error.problem, **error.facts)


def sandbox_account_unasked(settings: Settings) -> str:
    """Why nobody can be asked, or nothing."""
    if settings.sandbox_backend == "modal":
        return (
            ""
            if installed(settings, load_pins())
            else "Modal's client comes with the pinned Harbor: make harbor"
        )
    if settings.sandbox_backend == "daytona" and settings.daytona_api_key is None:
        return "there is no DAYTONA_API_KEY"
    if settings.sandbox_backend in ("local", "docker"):
        return f"the backend {settings.sandbox_backend} has no account"
    return "" if settings.sandbox_backend == "daytona" else "only Harbor's own client can ask"
