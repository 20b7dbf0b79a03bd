"""Trials in Docker's sandboxes by our own agent server's backend, where a daemon answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from standin.harbor_checkout import settings_of

from recipe.errors import BadInputError
from recipe.harbor import backends, leftover_sandboxes
from recipe.harbor.agent_server import BACKENDS
from recipe.harbor.trials import TrialRequest, run_trial

SETTINGS = settings_of(Path("/none"), sandbox_backend="docker")
REFUSALS = list(backends.check(SETTINGS))
with_docker = pytest.mark.skipif(
    bool(REFUSALS), reason=f"no Docker: {[one.facts['found'] for one in REFUSALS]}"
)


@with_docker
def test_the_reference_solution_is_rewarded_and_no_container_is_left(
    tmp_path: Path, make_task: Callable[..., Path]
) -> None:
    task = make_task(
        dockerfile="FROM debian:stable-slim\nWORKDIR /app\n",
        solution="echo done > /app/done",
        test="test -f /app/done && echo 1 > /logs/verifier/reward.txt",
    )
    reply = asyncio.run(
        run_trial(TrialRequest(task, tmp_path / "trials", "oracle", BACKENDS["docker"].environment))
    )
    assert (reply.error, reply.reward) == (None, 1.0)
    host = leftover_sandboxes.host_of(SETTINGS)
    assert leftover_sandboxes.of_run(host, tmp_path) == []


def test_a_server_without_a_daemon_refuses_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="Docker can't run sandboxes"):
        BACKENDS["docker"].prepare("camel")
