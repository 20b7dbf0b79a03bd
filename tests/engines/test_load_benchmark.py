"""The benchmark of many trials at once fails on one that is lost, doubled or ungraded, and on a flush that hangs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import load
from recipe.errors import RecipeError

NAMES = ["one", "two"]


def answer(name: str, reward: float | None = 1.0, turns: int = load.CHECKS + 2) -> dict[str, Any]:
    return {"trial_name": name, "reward": reward, "agent_metrics": {"turns": turns}}


@pytest.mark.parametrize(
    ("answers", "finished", "told"),
    [
        ([answer("one"), answer("two")], 2, ""),
        ([answer("one")], 2, "two: 0 answers"),
        ([answer("one"), answer("two")], 1, "the server ran 1 trials for 2 requests"),
        ([answer("one"), answer("two"), answer("two")], 2, "two: 2 answers"),
        ([answer("one"), answer("two")], 3, "the server ran 3 trials for 2 requests"),
        ([answer("one"), answer("two", reward=None)], 2, "two: {'trial_name': 'two', 'reward': None"),
        ([answer("one"), answer("two", turns=1)], 2, "two: {'trial_name': 'two', 'reward': 1.0"),
    ],
)
def test_each_trial_is_graded_once(tmp_path: Path, answers, finished, told):
    for name in NAMES:
        (tmp_path / name).mkdir()
    wrong = load.misgraded(tmp_path, NAMES, answers, finished)
    assert len(wrong) == bool(told)
    assert "".join(wrong).startswith(told)
    (tmp_path / "one").rmdir()
    assert "one: no folder" in load.misgraded(tmp_path, NAMES, answers, finished)


def test_each_call_of_the_engine_has_its_reply():
    assert load.added([2.5, 1.25], [2.0, 1.0], "one") == [500.0, 250.0]
    with pytest.raises(RecipeError, match="calls without a reply"):
        load.added([2.5], [2.0, 1.0], "one")


@pytest.mark.parametrize(
    ("limit", "told"), [("BEGIN_SECONDS", "the start of the trials for /flush"), ("FLUSH_SECONDS", "/flush")]
)
def test_a_flush_that_hangs_is_told(tmp_path: Path, monkeypatch, limit, told):
    monkeypatch.setattr(load, "AT_ONCE", 1)
    monkeypatch.setattr(load, limit, 0.1)
    seconds: dict[str, list[float]] = {}

    async def hang(name: str, _: object) -> None:
        if limit == "FLUSH_SECONDS":
            seconds[name] = [1.0]
        await asyncio.Event().wait()

    one: Any = SimpleNamespace(
        process=SimpleNamespace(leader=SimpleNamespace(pid=os.getpid())),
        seconds=seconds,
        instance_id="x",
        play=hang,
        post=hang,
    )
    with pytest.raises(RecipeError, match=f"^{told} took more than 0.1 s"):
        asyncio.run(load._flush(load.Load(tmp_path, one, one, one, one), "/flush"))
