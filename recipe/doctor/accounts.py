"""Whether the keys that were given are taken: one cheap request where a service is plain HTTP, else their form."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx

from recipe.errors import BadInputError
from recipe.settings import Settings

# Where Harbor's client goes when DAYTONA_API_URL is not set.
DAYTONA = "https://app.daytona.io/api"
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


def sandbox_account(settings: Settings) -> Iterator[BadInputError]:
    """Daytona lists its sandboxes with DAYTONA_API_KEY."""
    if settings.sandbox_backend != "daytona" or settings.daytona_api_key is None:
        return
    url = (settings.daytona_api_url or DAYTONA).rstrip("/") + "/sandbox"
    try:
        headers = {"Authorization": f"Bearer {settings.daytona_api_key.get_secret_value()}"}
        answer = httpx.get(url, headers=headers, timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: not ASCII
        found = str(error) or type(error).__name__
    else:
        if answer.is_success:
            return
        found = f"{answer.status_code} {answer.reason_phrase}"
    yield BadInputError(
        "Daytona does not list its sandboxes",
        expected="200 OK",
        found=found,
        where=f"{url} (DAYTONA_API_KEY {settings.source('daytona_api_key')})",
        run="another DAYTONA_API_KEY or DAYTONA_API_URL, or a way out of this network",
    )
