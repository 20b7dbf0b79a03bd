"""Rollout metrics from what the trials reported; a key that no trial reported is absent, never 0."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any


def agent_metrics(samples: Iterable[Any]) -> dict[str, float]:
    """agent/<key>_mean, _sum, _max, _min over the trials that reported <key>; agent/exit_status/<status>.

    Keys and units are those of metadata["agent_metrics"]; a value that is no finite number is left out.
    """
    values: dict[str, list[float]] = defaultdict(list)
    statuses: Counter[str] = Counter()
    for sample in samples:
        metadata = sample.metadata or {}
        if status := metadata.get("exit_status"):
            statuses[status] += 1
        for key, value in _numbers(metadata.get("agent_metrics")):
            values[key].append(value)
    metrics = {f"agent/exit_status/{status}": float(count) for status, count in statuses.items()}
    for key, reported in values.items():
        metrics[f"agent/{key}_mean"] = sum(reported) / len(reported)
        metrics[f"agent/{key}_sum"] = sum(reported)
        metrics[f"agent/{key}_max"] = max(reported)
        metrics[f"agent/{key}_min"] = min(reported)
    return metrics


def _numbers(reported: object) -> list[tuple[str, float]]:
    if not isinstance(reported, dict):
        return []
    return [
        (key, float(value))
        for key, value in reported.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
