"""The policy actor's seam between coroutines and its one serving thread."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from recipe.engines.local.actors import PolicyActor, TrainerActor
from recipe.engines.local.types import GenerateRequest
from recipe.errors import BadInputError


def request(index: int, new: int = 5) -> GenerateRequest:
    return GenerateRequest(f"s{index}", [7, 8, 9, 200001], new, (0, 0, index, 0))


def actor(dump: Path | None = None) -> PolicyActor:
    return PolicyActor(max_batch=4, max_length=300, dump=str(dump) if dump else None)


def test_concurrent_requests_are_all_answered_and_dumped(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        policy = actor(tmp_path / "turns.jsonl")
        return await asyncio.gather(*(policy.generate(request(i)) for i in range(9)))

    replies = asyncio.run(run())
    assert [len(reply.ids) for reply in replies] == [5] * 9
    dumped = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert sorted(turn["ids"] for turn in dumped) == sorted(reply.ids for reply in replies)


def test_abort_ends_what_runs_and_nothing_later() -> None:
    async def run() -> list[str]:
        policy = actor()
        running = asyncio.create_task(policy.generate(request(0, new=250)))
        await asyncio.sleep(0.2)
        await policy.abort_all()
        return [(await running).finish, (await policy.generate(request(1))).finish]

    assert asyncio.run(run()) == ["abort", "length"]


def test_a_request_that_cannot_fit_fails_alone() -> None:
    async def run() -> str:
        policy = actor()
        with pytest.raises(ValueError, match="exceeds 300"):
            await policy.generate(request(0, new=400))
        return (await policy.generate(request(1))).finish

    assert asyncio.run(run()) == "length"


def test_weights_are_refused_while_a_request_is_in_flight() -> None:
    async def run() -> None:
        policy = actor()
        running = asyncio.create_task(policy.generate(request(0, new=250)))
        await asyncio.sleep(0.2)
        with pytest.raises(RuntimeError, match="in flight"):
            await policy.load_weights({})
        await policy.abort_all()
        await running

    asyncio.run(run())


def test_a_failing_step_fails_its_requests_and_the_actor_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        policy = actor()
        step = policy._policy.step

        def broken() -> None:
            monkeypatch.setattr(policy._policy, "step", step)
            raise ArithmeticError("nan")

        monkeypatch.setattr(policy._policy, "step", broken)
        with pytest.raises(RuntimeError, match=r"decoding failed.*nan"):
            await policy.generate(request(0))
        return (await policy.generate(request(1))).finish

    assert asyncio.run(run()) == "length"


def test_a_cancelled_call_frees_its_row() -> None:
    async def run() -> bool:
        policy = actor()
        running = asyncio.create_task(policy.generate(request(0, new=250)))
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await policy.close_session("another")  # queued behind the cancelled one's end
        return policy._policy.busy

    assert asyncio.run(run()) is False


def test_the_trainer_says_when_it_has_no_weights(tmp_path: Path) -> None:
    trainer = TrainerActor(1e-3, str(tmp_path / "events.jsonl"))
    with pytest.raises(RuntimeError, match="no weights"):
        trainer.weights()
    with pytest.raises(BadInputError, match="not complete"):
        trainer.load(str(tmp_path))
