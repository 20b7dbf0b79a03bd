"""Which groups are trained on: those whose every trial was the policy's own doing, and was rewarded.

Groups of equal rewards are kept, as in production, unless DROP_ZERO_SPREAD_GROUPS is 1. Miles' rollout loop
replaces dropped groups without end, so the filter is where the job ends when nothing but failures comes back.
"""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from recipe.plugins import agent, journal
from recipe.plugins.audit import native_blocks, replies
from recipe.plugins.environment import optional, required
from recipe.plugins.reward import verifier_reward

# Exit statuses that describe the harness, not the policy; the last three are those of older agent servers.
INFRASTRUCTURE = {
    "AgentError": "agent_error",
    "Flushed": "flushed",
    "Unknown": "unknown",
    "InvalidInstanceId": "agent_error",
    "TaskNotFound": "agent_error",
    "ImportError": "agent_error",
}


class TooManyDroppedGroupsError(Exception):
    """MAX_DROPPED_GROUPS groups in a row were dropped: the job would go on for ever without training."""


# The breaker's memory, one per process as the rollout loop is: groups dropped since the last kept one.
_dropped: Counter[str] = Counter()


@dataclass
class _FilterOutput:
    """Stands in for Miles' DynamicFilterOutput where Miles is not installed."""

    keep: bool
    reason: str | None = None


def keep_group(args: Any, samples: list[Any], **_: Any) -> Any:  # noqa: ARG001 - Miles' signature
    """Miles' DynamicFilterOutput(keep, reason) for one group. Raises TooManyDroppedGroupsError.

    The journal has the group with what became of each of its trials.
    """
    limit = required("MAX_DROPPED_GROUPS", int)
    reason = drop_reason(samples)
    journal.write("group", kept=reason is None, reason=reason, trials=[_told(sample) for sample in samples])
    if reason is None:
        _dropped.clear()
        agent.recent_errors.clear()
    else:
        _dropped[reason] += 1
    if _dropped.total() >= limit:
        raise TooManyDroppedGroupsError(
            f"{limit} groups in a row were dropped (MAX_DROPPED_GROUPS): {dict(_dropped)}; "
            f"{agent.last_errors()}"
        )
    return _output_type()(keep=reason is None, reason=reason)


def drop_reason(samples: list[Any]) -> str | None:
    """Why the group can't be trained on: the first sample's reason that has one; None to keep it."""
    for sample in samples:
        if reason := _sample_reason(sample):
            return reason
    if optional("DROP_ZERO_SPREAD_GROUPS") == "1" and len({verifier_reward(one) for one in samples}) == 1:
        return "zero_spread"
    return None


def _sample_reason(sample: Any) -> str | None:
    exit_status = (sample.metadata or {}).get("exit_status")
    if exit_status in INFRASTRUCTURE:
        return INFRASTRUCTURE[exit_status]
    if getattr(sample.status, "value", sample.status) in {"aborted", "failed"}:
        return "aborted"
    if exit_status is None:
        return "unknown"
    return "no_reward" if verifier_reward(sample) is None else None


def _told(sample: Any) -> dict[str, Any]:
    metadata = sample.metadata or {}
    of_the_policy = replies(sample)
    told = {
        "sample": sample.index,
        "task": metadata.get("instance_id"),
        "trial_name": metadata.get("trial_name"),
        "reward": verifier_reward(sample),
        "exit_status": metadata.get("exit_status"),
        "status": getattr(sample.status, "value", sample.status),
        "turns": len(of_the_policy),
        "response_tokens": sum(map(len, of_the_policy)),
    }
    native = native_blocks(of_the_policy)
    return told if native is None else told | {"native_blocks": native}


@functools.cache
def _output_type() -> Any:
    """Miles' own class where Miles is installed: any other object counts there as true, so as kept."""
    try:
        return importlib.import_module("miles.rollout.filter_hub.base_types").DynamicFilterOutput
    except ModuleNotFoundError:
        return _FilterOutput
