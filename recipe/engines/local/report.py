"""What the driver tells about a rollout: its metrics as one flat table, and its samples as a dump."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from recipe.engines.local.rollout import Rollout
from recipe.engines.local.samples import Sample, Status
from recipe.engines.local.trainer import TrainingSample
from recipe.files import write_whole


def training_samples(rollout: Rollout) -> list[TrainingSample]:
    """The kept samples in their training form, in the order of their indices."""
    return [
        TrainingSample(
            group=sample.group_index,
            ids=sample.tokens,
            loss_mask=sample.loss_mask,
            logprobs=sample.rollout_log_probs,
            routes=sample.rollout_routed_experts,
            reward=sample.reward or 0.0,
        )
        for sample in rollout.samples
    ]


def rollout_metrics(rollout: Rollout) -> dict[str, Any]:
    """Rewards, groups and lengths of a rollout; means are over the kept samples."""
    samples = rollout.samples
    rewards = [sample.reward or 0.0 for sample in samples]
    return {
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "groups_kept": len(rollout.groups),
        "groups_dropped": dict(rollout.dropped),
        "groups_surplus": rollout.surplus,
        "trials": len(samples),
        "turns_mean": statistics.fmean(sample.turns for sample in samples),
        "response_tokens_mean": statistics.fmean(sum(sample.loss_mask) for sample in samples),
        "truncated_ratio": statistics.fmean(sample.status is Status.TRUNCATED for sample in samples),
        "malformed_ratio": statistics.fmean(bool(sample.parse_errors) for sample in samples),
    }


def dump_rollout(path: Path, rollout: Rollout) -> None:
    """Writes the kept samples as JSON lines: what was sampled, what is trained, and what it was worth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(_row(sample)) + "\n" for sample in rollout.samples))


def _row(sample: Sample) -> dict[str, Any]:
    routes = sample.rollout_routed_experts
    return {
        "group": sample.group_index,
        "sample": sample.index,
        "label": sample.label,
        "reward": sample.reward,
        "status": sample.status.value,
        "exit_status": sample.metadata.get("exit_status"),
        "trial_name": sample.metadata.get("trial_name"),
        "parse_errors": sample.parse_errors,
        "tokens": sample.tokens,
        "loss_mask": sample.loss_mask,
        "rollout_log_probs": sample.rollout_log_probs,
        "routed_experts": None if routes is None else routes.tolist(),
    }
