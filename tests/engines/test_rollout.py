"""The rollout loop: which groups are kept, what is aborted, and that it always ends.

A stand-in agent server answers over real HTTP: it makes one model call on the trial's session, and then does what
`Script` says of the trial.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from recipe.engines.local.rollout import Rollout, RolloutLoop
from recipe.engines.local.samples import PromptSource
from recipe.engines.local.session_server import SessionServer, _Server
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.vocabulary import STOP_ID
from recipe.errors import RecipeError
from recipe.events import repeatable
from recipe.plugins import filters
from recipe.process import free_port
from recipe.resolve import load
from recipe.settings import Settings
from recipe.tasks.prompts import Row

Script = Callable[[int], dict[str, Any]]
GOOD = {"exit_status": "Submitted", "reward": 1.0}


class OneTokenEngine:
    """Answers each turn with the stop token; remembers that it was told to abort."""

    def __init__(self) -> None:
        self.aborted = 0
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        return GenerateReply([STOP_ID], [-0.5], None, "stop")

    async def close_session(self, session_id: str) -> None:
        pass

    async def abort_all(self) -> None:
        self.aborted += 1

    def sequence(self, session_id: str) -> list[int]:
        return []

    async def failure(self) -> BaseException:
        return await self._failure

    def die(self) -> None:
        self._failure.set_result(RuntimeError("actor died"))


@dataclass
class StandIn:
    """The stand-in agent server; a trial of which `script(n)` (the n-th to arrive) has "hang" waits for a flush."""

    script: Script
    arrived: int = 0
    flushes: int = 0
    flushed: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/run")
        async def run(body: dict[str, Any]) -> dict[str, Any]:
            outcome = self.script(self.arrived)
            self.arrived += 1
            message = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            async with httpx.AsyncClient() as client:
                await client.post(f"{body['base_url']}/chat/completions", json=message)
            if outcome.get("hang"):
                await self.flushed.wait()
                return {"exit_status": "Flushed", "reward": None}
            return outcome

        @app.post("/flush")
        async def flush(_: dict[str, Any]) -> dict[str, int]:
            self.flushes += 1
            self.flushed.set()
            return {"cancelled": 1}

        return app


@dataclass
class Stage:
    loop: RolloutLoop
    engine: OneTokenEngine
    server: StandIn
    sessions: SessionServer


def play(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    act: Callable[[Stage], Awaitable[Any]],
    **changed: Any,
) -> Any:
    """Runs `act` on a loop over four prompts whose trials follow `script`."""
    port = free_port()
    settings = Settings(
        **(load("smoke").public() | {"rollout_batch_size": 2, "over_sampling_batch_size": 3} | changed)
    )
    for name, value in {
        "AGENT_SERVER_URL": f"http://127.0.0.1:{port}",
        "AGENT_MODEL_NAME": "m",
        "HARBOR_AGENT_NAME": "camel",
        "HARBOR_AGENT_MAX_ITERATIONS": "4",
        "HARBOR_MAX_SEQ_LEN": "1000",
        "HARBOR_AGENT_CALL_TIMEOUT_SEC": "30",
        "MAX_DROPPED_GROUPS": "7",
        "RUN_JOURNAL": str(tmp_path / "events.jsonl"),
    }.items():
        monkeypatch.setenv(name, value)
    filters._dropped.clear()

    async def run() -> Any:
        server = StandIn(script)
        http = _Server(
            uvicorn.Config(server.app(), port=port, log_level="warning", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        engine = OneTokenEngine()
        sessions = SessionServer(SessionStore(engine, max_context=500))
        await sessions.start(port=0)
        rows = [Row(f"t{i}", [{"role": "user", "content": "x"}], {"instance_id": f"t{i}"}) for i in range(4)]
        source = PromptSource(rows, settings.n_samples_per_prompt, settings.seed)
        loop = RolloutLoop(settings, source, sessions, engine)
        try:
            return await act(Stage(loop, engine, server, sessions))
        finally:
            await sessions.stop()
            http.should_exit = True
            await serving

    return asyncio.run(run())


def generate(stage: Stage) -> Awaitable[Rollout]:
    return stage.loop.generate(0)


def indices(rollout: Rollout) -> list[int]:
    return [group[0].group_index for group in rollout.groups]


def test_complete_groups_are_kept_and_the_surplus_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> tuple[Rollout, Stage]:
        return await stage.loop.generate(0), stage

    # Trials arrive in order: those of the third group hang until they are flushed.
    rollout, stage = play(
        tmp_path, monkeypatch, lambda n: {"hang": True} if n >= 8 else GOOD, act, n_samples_per_prompt=4
    )
    assert (len(rollout.groups), rollout.surplus, rollout.dropped) == (2, 1, {})
    assert (stage.engine.aborted, stage.server.flushes) == (1, 1)
    assert len(stage.sessions.store) == 0
    assert [sample.reward for sample in rollout.samples] == [1.0] * 8
    assert all(sample.tokens[-1] == STOP_ID and sample.loss_mask[-1] == 1 for sample in rollout.samples)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    states = Counter(event["state"] for event in events if event["kind"] == "trial")
    assert states == {"started": 12, "done": 12}
    groups = [event for event in events if event["kind"] == "group"]
    assert [(group["rollout"], group["kept"], len(group["trials"])) for group in groups] == [(0, True, 4)] * 2


def test_nothing_is_aborted_when_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> tuple[Rollout, int]:
        return await stage.loop.generate(0), stage.engine.aborted

    rollout, aborted = play(tmp_path, monkeypatch, lambda _: GOOD, act, over_sampling_batch_size=2)
    assert (rollout.surplus, aborted) == (0, 0)


@pytest.mark.parametrize("status", ["AgentError", "Flushed", "Unknown"])
def test_a_group_with_an_infrastructure_failure_is_dropped_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    failed = {"exit_status": status, "reward": None, "error": "sandbox died"}
    rollout = play(tmp_path, monkeypatch, lambda n: failed if n == 1 else GOOD, generate, deterministic=True)
    assert sum(rollout.dropped.values()) == 1
    assert len(rollout.groups) == 2
    assert all(sample.metadata["exit_status"] == "Submitted" for sample in rollout.samples)


def test_a_deterministic_run_keeps_the_groups_that_were_drawn_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = iter([0.3, 0.0, 0.0])

    async def act(stage: Stage) -> list[int]:
        original = stage.loop._run_group

        async def slowed(rollout: int, group: Any) -> Any:
            await asyncio.sleep(next(late, 0.0))
            return await original(rollout, group)

        stage.loop._run_group = slowed  # type: ignore[method-assign]
        return indices(await stage.loop.generate(0))

    assert play(tmp_path, monkeypatch, lambda _: GOOD, act, deterministic=True) == [0, 1]
    late = iter([0.3, 0.0, 0.0])
    assert play(tmp_path, monkeypatch, lambda _: GOOD, act) == [1, 2]


def test_one_seed_gives_one_stream_of_events_and_another_seed_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(name: str, seed: int) -> bytes:
        (tmp_path / name).mkdir()
        script = {1: {"exit_status": "AgentError", "reward": None, "error": "no sandbox"}}
        play(
            tmp_path / name,
            monkeypatch,
            lambda n: script.get(n, GOOD),
            generate,
            seed=seed,
            deterministic=True,
        )
        return repeatable(tmp_path / name)

    first = stream("first", 1)
    assert first == stream("again", 1)
    assert first != stream("other", 2)


def test_the_surplus_of_a_deterministic_run_plays_to_its_end_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = play(tmp_path, monkeypatch, lambda _: GOOD, generate, deterministic=True)
    assert (len(rollout.groups), rollout.surplus) == (2, 1)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    trials = [event for event in events if event["kind"] == "trial"]
    samples = rollout.surplus + len(rollout.groups)
    assert [event["state"] for event in trials] == ["started", "done"] * len(trials[::2])
    assert [event["trial"] for event in trials[::2]] == [event["trial"] for event in trials[1::2]]
    assert len(trials[::2]) == samples * len(rollout.groups[0])
    assert {event["exit_status"] for event in trials[1::2]} == {"Submitted"}


def test_no_trial_of_a_deterministic_run_begins_once_it_is_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> int:
        with pytest.raises(RecipeError, match="not complete in time"):
            await stage.loop.generate(0)
        return stage.server.arrived

    hang = {"deterministic": True, "rollout_timeout_sec": 1.5}
    assert play(tmp_path, monkeypatch, lambda _: {"hang": True}, act, **hang) == 1


def test_too_many_dropped_groups_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"exit_status": "AgentError", "reward": None, "error": "no sandbox"}
    with pytest.raises(filters.TooManyDroppedGroupsError, match=r"7 groups in a row.*no sandbox"):
        play(tmp_path, monkeypatch, lambda _: broken, generate)


def test_a_prompt_that_is_too_long_is_named_when_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = {"exit_status": "SequenceLengthLimitExceeded", "reward": 0.0}
    with pytest.raises(filters.TooManyDroppedGroupsError, match=r"'aborted': 7.*fits into MAX_SEQ_LEN=3"):
        play(tmp_path, monkeypatch, lambda _: cut, generate, max_seq_len=3)


def test_a_rollout_that_takes_too_long_ends_the_job_and_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> int:
        with pytest.raises(RecipeError, match="not complete in time"):
            await stage.loop.generate(0)
        return stage.server.flushes

    assert play(tmp_path, monkeypatch, lambda _: {"hang": True}, act, rollout_timeout_sec=1.5) == 1


def test_a_dead_policy_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        asyncio.get_running_loop().call_later(0.3, stage.engine.die)
        with pytest.raises(RecipeError, match="policy actor died"):
            await stage.loop.generate(0)

    play(tmp_path, monkeypatch, lambda _: {"hang": True}, act)


def failing_abort(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise RecipeError("no flush")

    monkeypatch.setattr(stage.engine, "abort_all", fail)


def test_the_first_failure_is_told_when_the_abort_fails_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> None:
        failing_abort(stage, monkeypatch)
        with pytest.raises(RecipeError, match="not complete in time"):
            await stage.loop.generate(0)

    play(tmp_path, monkeypatch, lambda _: {"hang": True}, act, rollout_timeout_sec=1.5)


def test_an_abort_that_fails_alone_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(stage: Stage) -> None:
        failing_abort(stage, monkeypatch)
        with pytest.raises(RecipeError, match="no flush"):
            await stage.loop.generate(0)

    play(tmp_path, monkeypatch, lambda n: {"hang": True} if n >= 8 else GOOD, act, n_samples_per_prompt=4)


def test_prompts_are_shuffled_by_the_seed_and_each_comes_once_an_epoch() -> None:
    rows = [Row(str(i), [], {}) for i in range(5)]

    def labels(seed: int) -> list[str]:
        return [group[0].label for group in PromptSource(rows, 1, seed).draw(10)]

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)
    assert sorted(labels(1)[:5]) == sorted(labels(1)[5:]) == [row.label for row in rows]
