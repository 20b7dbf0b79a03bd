"""Reward, group filter with its circuit breaker, and rollout metrics over samples shaped like Miles'."""

from __future__ import annotations

import asyncio
import enum
import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recipe.plugins import agent, filters, metrics, reward
from recipe.plugins.environment import PluginSettingError


class Status(enum.Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    metadata: dict[str, Any] | None = field(default_factory=dict)
    status: Status | str = Status.COMPLETED
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] | None = None


def sample(value: object = 1.0, exit_status: str | None = "Submitted", **changed: Any) -> Sample:
    error = changed.pop("error", None)
    metadata = {"reward": value, "exit_status": exit_status, "error": error}
    return Sample({key: item for key, item in metadata.items() if item is not None}, **changed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, 1.0), (0, 0.0), (0.25, 0.25), (None, 0.0), ("1", 0.0), (math.nan, 0.0), (math.inf, 0.0)],
)
def test_a_reward_is_the_verifiers_number_and_never_none(value, expected):
    assert asyncio.run(reward.rm(None, sample(value))) == expected


def test_a_list_of_samples_has_a_list_of_rewards():
    assert asyncio.run(reward.rm(None, [sample(1.0), sample(None), Sample(None)], evaluation=False)) == [
        1,
        0,
        0,
    ]


@pytest.mark.parametrize(
    "exit_status", ["Submitted", "TurnLimitExceeded", "SequenceLengthLimitExceeded", "TimeLimitExceeded"]
)
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.TRUNCATED, "truncated"])
def test_what_the_policy_did_itself_is_trained_on(exit_status, status):
    kept = filters.keep_group(None, [sample(1.0), sample(0.0, exit_status, status=status)])
    assert (kept.keep, kept.reason) == (True, None)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sample(None, "AgentError"), "agent_error"),
        (sample(1.0, "AgentError"), "agent_error"),
        (sample(0.0, "TaskNotFound"), "agent_error"),
        (sample(None, "Flushed", status=Status.ABORTED), "flushed"),
        (sample(1.0, "Unknown"), "unknown"),
        (sample(1.0, None), "unknown"),
        (Sample(None), "unknown"),
        (sample(1.0, status=Status.ABORTED), "aborted"),
        (sample(1.0, status="aborted"), "aborted"),
        (sample(1.0, status=Status.FAILED), "aborted"),
        (Sample({}, Status.ABORTED), "aborted"),
        (sample(None), "no_reward"),
        (sample(math.nan), "no_reward"),
    ],
)
def test_a_group_with_an_infrastructure_failure_is_dropped_with_its_reason(bad, reason):
    dropped = filters.keep_group(None, [sample(1.0), bad, sample(0.0)])
    assert (dropped.keep, dropped.reason) == (False, reason)


def test_equal_rewards_are_kept_unless_asked_otherwise(monkeypatch):
    group = [sample(0.0), sample(0.0)]
    assert filters.keep_group(None, group).keep
    monkeypatch.setenv("DROP_ZERO_SPREAD_GROUPS", "1")
    assert filters.keep_group(None, group).reason == "zero_spread"
    assert filters.keep_group(None, [sample(0.0), sample(1.0)]).keep


def test_too_many_dropped_groups_in_a_row_end_the_job_with_what_went_wrong():
    failed = [sample(None, "AgentError", error="refused")]
    agent.recent_errors.extend(["ConnectError: refused", "ConnectError: refused", "500: boom"])
    filters.keep_group(None, failed)
    filters.keep_group(None, [sample(None)])
    with pytest.raises(filters.TooManyDroppedGroupsError) as error:
        filters.keep_group(None, failed)
    for part in (
        "3 groups in a row",
        "MAX_DROPPED_GROUPS",
        "'agent_error': 2",
        "'no_reward': 1",
        "500: boom",
    ):
        assert part in str(error.value)
    assert str(error.value).count("ConnectError: refused") == 1


def test_a_kept_group_resets_the_circuit_breaker():
    for _ in range(5):
        filters.keep_group(None, [sample(None)])
        filters.keep_group(None, [sample(None)])
        assert filters.keep_group(None, [sample(1.0)]).keep


@pytest.mark.parametrize("value", [None, "", "many"])
def test_the_circuit_breaker_is_never_left_out(monkeypatch, value):
    monkeypatch.delenv("MAX_DROPPED_GROUPS")
    if value is not None:
        monkeypatch.setenv("MAX_DROPPED_GROUPS", value)
    with pytest.raises(PluginSettingError, match="MAX_DROPPED_GROUPS"):
        filters.keep_group(None, [sample(1.0)])


def test_where_miles_is_installed_the_answer_is_its_own_type(tmp_path):
    # Miles takes an object of any other type as a plain bool, which is always true.
    package = tmp_path / "miles" / "rollout" / "filter_hub"
    package.mkdir(parents=True)
    (package / "base_types.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass DynamicFilterOutput:\n    keep: bool\n    reason: str = None\n"
    )
    code = (
        "from types import SimpleNamespace as S\n"
        "from recipe.plugins.filters import keep_group\n"
        "from miles.rollout.filter_hub.base_types import DynamicFilterOutput\n"
        "sample = S(index=0, tokens=[], loss_mask=None, status='completed', metadata={'exit_status': 'AgentError'})\n"
        "output = keep_group(None, [sample])\n"
        "assert output == DynamicFilterOutput(False, 'agent_error'), output\n"
    )
    _python(code, tmp_path)


def test_metrics_cover_what_was_reported_and_nothing_else():
    samples = [
        Sample(
            {
                "exit_status": "Submitted",
                "agent_metrics": {"turns": 2, "total_time": 1.5, "model": "x", "ok": True},
            }
        ),
        Sample({"exit_status": "Submitted", "agent_metrics": {"turns": 4, "eval_time": math.nan}}),
        Sample({"exit_status": "TimeLimitExceeded", "agent_metrics": None}),
        Sample(None),
    ]
    assert metrics.agent_metrics(samples) == {
        "agent/exit_status/Submitted": 2.0,
        "agent/exit_status/TimeLimitExceeded": 1.0,
        "agent/turns_mean": 3.0,
        "agent/turns_sum": 6.0,
        "agent/turns_max": 4.0,
        "agent/turns_min": 2.0,
        "agent/total_time_mean": 1.5,
        "agent/total_time_sum": 1.5,
        "agent/total_time_max": 1.5,
        "agent/total_time_min": 1.5,
    }


def test_plugins_travel_alone(tmp_path):
    plugins = Path(agent.__file__).parent
    # The others are for Miles, and for Ray, alone.
    stems = {path.stem for path in plugins.glob("*.py")} - {"__init__", "rollout", "nodes", "facts"}
    names = [f"recipe.plugins.{stem}" for stem in stems]
    code = (
        f"import sys, {', '.join(names)}\n"
        "foreign = [name for name in sys.modules if name.split('.')[0] == 'recipe'\n"
        "           and name != 'recipe' and not (name + '.').startswith('recipe.plugins.')]\n"
        "assert not foreign, foreign\n"
        "heavy = {'torch', 'ray', 'transformers', 'numpy', 'pydantic', 'harbor'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    _python(code, tmp_path)


def _python(code: str, path: Path) -> None:
    root = Path(agent.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{root}:{path}", "MAX_DROPPED_GROUPS": "9"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
