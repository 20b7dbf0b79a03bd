"""The table of metrics: documented, the same in both directions, and complete for what the local engine tells."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from recipe.watch.metrics import METRICS, from_miles, to_miles, tokens_per_second

DOCUMENT = Path(__file__).parents[2] / "docs/events.md"


def test_every_metric_is_documented_as_the_table_has_it():
    rows = [f"| `{one.name}` | `{one.miles}` | {one.unit} | {one.meaning} |" for one in METRICS]
    written = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert written[-len(rows) :] == rows


def test_names_are_unique():
    for names in ([one.name for one in METRICS], [one.miles for one in METRICS]):
        assert len(names) == len(set(names))


def test_what_the_local_engine_logs_under_miles_names_reads_back_as_its_own():
    metrics = {one.name: float(place) for place, one in enumerate(METRICS)}
    metrics |= {"groups_dropped": {"flushed": 2, "agent_error": 1}, "valid_step": True, "audit/exact": 4}
    logged = to_miles(metrics, {"generate": 2.0, "start": 9.0}, {"agent/turns_mean": metrics["turns_mean"]})
    assert logged["perf/rollout_time"] == 2.0
    assert logged["rollout/dynamic_filter/drop_flushed"] == 2.0
    assert all(isinstance(value, float) for value in logged.values())
    assert from_miles(logged) == metrics


@pytest.mark.parametrize(("norm", "valid"), [(1.0, True), (math.nan, False), (math.inf, False)])
def test_a_step_is_valid_when_its_gradient_is_a_number(norm, valid):
    assert from_miles({"train/grad_norm": norm})["valid_step"] is valid
    assert "valid_step" not in from_miles({})


def test_the_speed_needs_its_parts():
    assert tokens_per_second({"trials": 4, "response_tokens_mean": 10}, {"generate": 2.0}) == {
        "tokens_per_second": 20.0
    }
    assert tokens_per_second({"trials": 4}, {"generate": 2.0}) == {}
    assert tokens_per_second({"trials": 4, "response_tokens_mean": 10}, {}) == {}
