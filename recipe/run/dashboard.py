"""Finds the Ray that is there: its dashboard, which the Jobs API is part of; or says what is in its place."""

from __future__ import annotations

import httpx

from recipe.errors import BadInputError
from recipe.given import ray_token
from recipe.job import RayAddress
from recipe.process import LOOPBACK
from recipe.settings import Settings

# A dashboard of the same cluster answers in milliseconds, a busy one in seconds.
ANSWER_SECONDS = 10.0
# A head node that is restarted, or a network that is mended, is back within it; the job goes on meanwhile.
PATIENCE_SECONDS = 600.0


def find_ray(settings: Settings) -> RayAddress:
    """Ray at HEAD_IP:RAY_DASHBOARD_PORT. Raises BadInputError that says what answers there instead."""
    port = settings.ray_dashboard_port
    where = f"{settings.head_ip}:{port} (HEAD_IP {settings.source('head_ip')})"
    start = f"ray start --head --dashboard-host 0.0.0.0 --dashboard-port {port}, on the head node"
    try:
        _ask(f"http://{settings.head_ip}:{port}")
    except httpx.ConnectError as error:
        if _answers(f"http://{LOOPBACK}:{port}"):
            raise BadInputError(
                "Ray's dashboard listens on loopback only: the other nodes can't reach it",
                expected="a dashboard on every interface",
                found=f"one at {LOOPBACK}:{port}",
                where=where,
                run=start,
            ) from None
        raise BadInputError(
            "there is no Ray", expected="its dashboard", found=error, where=where, run=start
        ) from None
    except httpx.TimeoutException:
        raise BadInputError(
            "Ray's dashboard does not answer", expected=f"an answer within {ANSWER_SECONDS:g} s", where=where
        ) from None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(
            "what answers is not Ray's dashboard",
            expected="RAY_DASHBOARD_PORT, 8265 by default; 6379 is the port that nodes join at",
            found=error,
            where=where,
        ) from None
    return RayAddress(f"http://{settings.head_ip}:{port}", ray_token(), PATIENCE_SECONDS)


def _ask(url: str) -> None:
    # The cluster is reached directly, whatever proxy leads out of it.
    with httpx.Client(trust_env=False, timeout=ANSWER_SECONDS) as client:
        answer = client.get(f"{url}/api/version", headers=ray_token())
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise BadInputError(
            "what answers asks for a token",
            expected="Ray's, in RAY_AUTH_TOKEN",
            found=f"status {answer.status_code}",
            where=url,
        )
    answer.raise_for_status().json()["ray_version"]


def _answers(url: str) -> bool:
    try:
        _ask(url)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, BadInputError):
        return False
    return True
