"""Daytona's HTTP interface, as far as sandboxes are listed, counted and deleted with it; no key is ever shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from recipe.errors import RecipeError
from recipe.settings import Settings

# Where Harbor's client goes when DAYTONA_API_URL is not set.
ADDRESS = "https://app.daytona.io/api"
ANSWER_SECONDS = (
    30.0  # for the whole of it: httpx bounds each read alone, and a service may send byte by byte
)
LISTING_SECONDS = 300.0  # after which no further page is asked for
PAGE, PAGES = 200, 500  # Daytona's largest page; more sandboxes than any organisation may have
# Between the tries of a request that was one too many, or met a server in trouble.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)


class Daytona:
    """The organisation of DAYTONA_API_KEY; `patient`: a busy service is asked for half a minute.

    Every method raises RecipeError when Daytona does not do as asked.
    """

    def __init__(self, settings: Settings, *, patient: bool = True) -> None:
        self._key = settings.daytona_api_key.get_secret_value() if settings.daytona_api_key else ""
        self._source = f"DAYTONA_API_KEY {settings.source('daytona_api_key')}"
        self._url = (settings.daytona_api_url or ADDRESS).rstrip("/")
        self._patient = patient
        self._tls = httpx.create_ssl_context()

    def sandboxes(self) -> Iterator[dict[str, Any]]:
        """All of them, page by page; older servers answer with one list."""
        parameters: dict[str, Any] = {"limit": PAGE}
        deadline = time.monotonic() + LISTING_SECONDS
        for _ in range(PAGES):
            answer = self.call("GET", "/sandbox", parameters)
            with in_form(f"Daytona ({self._url})"):
                paged = isinstance(answer, dict)
                yield from answer["items"] if paged else answer
                parameters["cursor"] = answer.get("nextCursor") if paged else None
            if not parameters["cursor"]:
                return
            if time.monotonic() > deadline:
                break
        most = f"at most {PAGES} pages in {LISTING_SECONDS:g} s"
        raise RecipeError("Daytona's list of sandboxes has no end", expected=most)

    def quotas(self) -> list[dict[str, Any]]:
        """What the key's organisation may use, and uses, in each region: totalCpuQuota and so on, sizes in GiB."""
        organisation = self.call("GET", "/api-keys/current")["organizationId"]
        return list(self.call("GET", f"/organizations/{organisation}/usage")["regionUsage"])

    def call(self, method: str, path: str, parameters: dict[str, Any] | None = None) -> Any:
        """The JSON that is answered; None where what is to be deleted is gone."""
        for pause in (*PAUSES, 0.0) if self._patient else (0.0,):
            try:
                answer = asyncio.run(self._request(method, self._url + path, parameters))
                if answer.is_success or (method == "DELETE" and answer.status_code == httpx.codes.NOT_FOUND):
                    return answer.json() if method == "GET" else None
                found = f"{answer.status_code} {answer.reason_phrase}"
                if answer.is_client_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    break
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError) as error:
                found = told(error)
            time.sleep(pause)
        raise RecipeError(
            f"Daytona does not {'delete a sandbox' if method == 'DELETE' else 'answer'}",
            expected="200 OK",
            found=found,
            where=f"{self._url}{path} ({self._source})",
            run="another DAYTONA_API_KEY or DAYTONA_API_URL, or a way out of this network",
        )

    async def _request(self, method: str, url: str, parameters: dict[str, Any] | None) -> httpx.Response:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            httpx.AsyncClient(timeout=ANSWER_SECONDS, verify=self._tls) as client,
        ):
            headers = {"Authorization": f"Bearer {self._key}"}
            return await client.request(method, url, params=parameters, headers=headers)


def told(error: Exception) -> str:
    """What went wrong with a request; never the header with the key in it, which some errors quote."""
    quotes = isinstance(error, (httpx.ProtocolError, UnicodeError))
    return type(error).__name__ if quotes or not str(error) else str(error)


@contextmanager
def in_form(who: str) -> Iterator[None]:
    """Whoever reads in an answer of `who` what is not there raises RecipeError."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise RecipeError(f"{who} answers in another form", found=found) from None
