"""The rollout function over a stand-in of Miles' class: metrics, deadline, and trials ended on every failure."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from small_agent_server import AgentServer, answering, serving

from recipe.plugins import agent
from recipe.plugins.audit import StrictMismatchError
from recipe.plugins.environment import PluginSettingError

COMMON = "miles.rollout.inference_rollout.inference_rollout_common"


class InferenceRolloutFn:
    """As Miles': a state with arguments, and `_call_train`, which here does what the test says."""

    def __init__(self, given: Any) -> None:
        self.state = SimpleNamespace(args=given.args, aborted=False)
        self.generate = given.data_source

    async def __call__(self, given: Any) -> Any:
        return await self._call_train(given)

    async def _call_train(self, given: Any) -> Any:
        return await self.generate()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    parts = COMMON.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    sys.modules[COMMON].InferenceRolloutFn = InferenceRolloutFn
    monkeypatch.setenv("ROLLOUT_TIMEOUT_SEC", "10")
    monkeypatch.setenv("AUDIT_MAX_STRICT", "0.2")
    yield importlib.import_module("recipe.plugins.rollout")
    del sys.modules["recipe.plugins.rollout"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentServer]:
    with serving(answering(cancelled=1)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        yield server


def rollout_function(module: ModuleType, generate: Callable[[], Awaitable[Any]]) -> Any:
    args = SimpleNamespace(session_server_instance_ids={30000: "a", 30001: "b"})
    return module.RolloutFn(SimpleNamespace(args=args, data_source=generate))


def call(function: Any) -> Any:
    return asyncio.run(function(SimpleNamespace(rollout_id=7)))


def flushed(server: AgentServer) -> list[str]:
    assert {path for path, _ in server.requests} <= {"/flush"}
    return sorted(body["session_server_instance_id"] for _, body in server.requests)


@pytest.mark.parametrize("metrics", [None, {"rollout/dynamic_filter/drop_flushed": 2}])
def test_our_metrics_stand_beside_those_of_miles(module, server, metrics):
    def sample(turns: int) -> SimpleNamespace:
        metadata = {"exit_status": "Submitted", "agent_metrics": {"turns": turns}}
        return SimpleNamespace(metadata=metadata | {"tito_session_mismatch": []}, tokens=[1], loss_mask=[1])

    async def generate() -> SimpleNamespace:
        return SimpleNamespace(samples=[[sample(1), sample(2)], [sample(6)]], metrics=metrics)

    output = call(rollout_function(module, generate))
    assert output.metrics == (metrics or {}) | {
        "agent/exit_status/Submitted": 3.0,
        "agent/turns_mean": 3.0,
        "agent/turns_sum": 9.0,
        "agent/turns_max": 6.0,
        "agent/turns_min": 1.0,
        "audit/exact": 3.0,
        "audit/strict_ratio": 0.0,
    }
    assert flushed(server) == []


def test_a_rollout_whose_tokens_nobody_sampled_ends_the_job_and_its_trials(module, server):
    async def generate() -> SimpleNamespace:
        metadata = {"tito_session_mismatch": [], "accumulated_token_ids": [1, 2]}
        sample = SimpleNamespace(metadata=metadata, tokens=[1, 3], loss_mask=[1])
        return SimpleNamespace(samples=[[sample]], metrics=None)

    with pytest.raises(StrictMismatchError, match="wrong_ids"):
        call(rollout_function(module, generate))


def test_a_rollout_past_its_deadline_ends_with_its_trials_and_names_the_setting(module, server, monkeypatch):
    monkeypatch.setenv("ROLLOUT_TIMEOUT_SEC", "0.05")
    agent.recent_errors.append("ConnectError: refused")
    function = rollout_function(module, asyncio.Event().wait)
    with pytest.raises(module.RolloutTimeoutError, match=r"rollout 7 .*ROLLOUT_TIMEOUT_SEC.*ConnectError"):
        call(function)
    assert flushed(server) == ["a", "b"]
    assert function.state.aborted


@pytest.mark.parametrize("failure", [ValueError("too many dropped"), TimeoutError("of something else")])
def test_another_failure_ends_the_trials_and_stays_itself(module, server, failure):
    async def generate() -> None:
        raise failure

    with pytest.raises(type(failure), match=str(failure)):
        call(rollout_function(module, generate))
    assert flushed(server) == ["a", "b"]


def test_trials_that_cannot_be_cancelled_do_not_hide_why_the_rollout_failed(module, monkeypatch, caplog):
    async def generate() -> None:
        raise ValueError("the reason")

    with serving(lambda *_: (500, b"stuck")) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        with pytest.raises(ValueError, match="the reason"):
            call(rollout_function(module, generate))
    assert "stuck" in caplog.text


def test_a_rollout_without_a_deadline_is_refused_before_anything_is_loaded(module, monkeypatch):
    monkeypatch.delenv("ROLLOUT_TIMEOUT_SEC")
    with pytest.raises(PluginSettingError, match="ROLLOUT_TIMEOUT_SEC"):
        rollout_function(module, asyncio.Event().wait)
