"""What of a run's events two deterministic runs have in common: all but times, the launcher's looks and the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.events import Event, repeatable

TRIAL = {"kind": "trial", "rollout": 0, "trial": "a", "state": "done", "reward": 1.0}
GROUP = {"kind": "group", "rollout": 0, "kept": True, "trials": [{"sample": 0, "turns": 2}]}
ROLLOUT = {"kind": "rollout", "rollout": 0, "metrics": {"kl": 0.1}, "trials": {"agent/turns_mean": 2.0}}
SAVED = {"kind": "checkpoint", "rollout": 0, "path": "RUN/checkpoints/iter_0000000"}
EVENTS = [TRIAL, GROUP, ROLLOUT, SAVED]


def stream(run: Path, events: list[Event]) -> bytes:
    """Of a run in the folder `run`, whose name stands in the events as RUN."""
    run.mkdir()
    lines = [json.dumps({"time": number, **event}) for number, event in enumerate(events)]
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in lines).replace("RUN", str(run)))
    return repeatable(run)


@pytest.mark.parametrize(
    "other",
    [
        [{**TRIAL, "seconds": 1.5}, *EVENTS[1:]],
        [TRIAL, GROUP, {**ROLLOUT, "seconds": {"train": 2.0}}, SAVED],
        [TRIAL, GROUP, {**ROLLOUT, "metrics": {"kl": 0.1, "tokens_per_second": 9.0}}, SAVED],
        [TRIAL, GROUP, {**ROLLOUT, "trials": {"agent/turns_mean": 2.0, "agent/queue_time_max": 1.0}}, SAVED],
        [
            {"kind": "resources", "free_disk_bytes": 5},
            TRIAL,
            {"kind": "sandbox", "state": "created"},
            *EVENTS[1:],
        ],
        [
            {"kind": "phase", "phase": "warm_start", "rollout": None},
            {**TRIAL, "rollout": None},
            {"kind": "lesson", "done": 1, "total": 1},
            {"kind": "warm_start", "step": 1, "steps": 1, "loss": 0.5},
            *EVENTS,
        ],
    ],
    ids=["duration", "phases", "rate", "agents' times", "looks", "warm start"],
)
def test_times_looks_and_a_warm_start_make_no_difference(tmp_path: Path, other: list[Event]) -> None:
    assert stream(tmp_path / "one", EVENTS) == stream(tmp_path / "two", other)


@pytest.mark.parametrize(
    "other",
    [
        [{**TRIAL, "reward": 0.0}, *EVENTS[1:]],
        [{**TRIAL, "trial": "b"}, *EVENTS[1:]],
        [TRIAL, {**GROUP, "trials": [{"sample": 0, "turns": 3}]}, ROLLOUT, SAVED],
        [TRIAL, GROUP, {**ROLLOUT, "metrics": {"kl": 0.2}}, SAVED],
        [TRIAL, GROUP, {**ROLLOUT, "trials": {"agent/turns_mean": 3.0}}, SAVED],
        [TRIAL, GROUP, ROLLOUT, {**SAVED, "path": "RUN/checkpoints/iter_0000001"}],
        [GROUP, TRIAL, ROLLOUT, SAVED],
        EVENTS[:3],
    ],
    ids=["reward", "name", "in a group", "metric", "agents' counts", "path", "order", "missing"],
)
def test_whatever_else_is_seen(tmp_path: Path, other: list[Event]) -> None:
    assert stream(tmp_path / "one", EVENTS) != stream(tmp_path / "two", other)
