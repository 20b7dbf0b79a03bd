"""Every metric of a rollout: our name, Miles' name, its unit and what it means; the one table of them.

The translator of Miles' logs, W&B and TensorBoard of the local engine, `status`, the report and docs/events.md all
read it. Miles' names are those of radixark/Miles at 80a25cb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Miles' names: fractions of what came back, and drops by their reason.
DROPPED = "rollout/dynamic_filter/drop_"
# The phases of a rollout with Miles' timers. On Miles the last two are those before this rollout.
SECONDS = {
    "generate": "perf/rollout_time",
    "train": "perf/train_time",
    "update_weights": "perf/update_weights_time",
    "save": "perf/save_model_time",
}


@dataclass(frozen=True)
class Metric:
    """`miles` is the name there, or ours where Miles has none."""

    name: str
    miles: str
    title: str
    unit: str
    meaning: str


# Ours; Miles' name where Miles has one; title; unit; meaning.
TABLE = f"""
reward_mean | rollout/raw_reward | reward |  | mean reward of the trained trials
reward_std |  | reward's spread |  | its standard deviation over the trials
groups_kept |  | groups kept | groups | groups that were trained on
groups_dropped | {DROPPED} | groups dropped | groups | groups that the filter refused, by reason
groups_surplus |  | surplus groups | groups | begun and aborted, not needed
trials |  | trials | trials | trained trials
turns_mean | agent/turns_mean | turns | turns | the policy's turns in a trial
response_tokens_mean | rollout/response_len/mean | response | tokens | sampled tokens of a trial
truncated_ratio | rollout/truncated_ratio | truncated | ratio | trials that were cut at a limit of tokens
malformed_ratio |  | malformed | ratio | trials with a reply that is no sequence of whole blocks
kl | train/kl_loss | KL | nats/token | divergence from the reference (estimator k3)
entropy | train/entropy_loss | entropy | nats/token | of the policy's distribution
logprob_difference | train/train_rollout_logprob_abs_diff | train/rollout difference | nats/token | of log-probabilities
logprob_difference_max |  | largest difference | nats | the same, of the worst token
tis_mean | train/tis | importance |  | mean weight of truncated importance sampling
clipped_ratio | train/pg_clipfrac | clipped | ratio | tokens whose ratio was clipped
grad_norm | train/grad_norm | gradient norm |  | before clipping
loss | train/loss | loss |  | of the step
learning_rate | train/lr-pg_0 | learning rate |  | of the step
samples_trained |  | samples trained | samples | with a gradient
tokens_trained |  | tokens trained | tokens | with a gradient
samples_without_routes |  | without routes | samples | not trained: no experts recorded
routes_replaced_ratio |  | routes replaced | ratio | experts that training alone would not choose
tokens_per_second |  | speed | tokens/s | sampled tokens of the trained trials by the seconds of sampling
valid_step |  | valid step |  | false: the optimizer's step was skipped
"""


def _metric(row: str) -> Metric:
    name, miles, *others = (cell.strip() for cell in row.split("|"))
    return Metric(name, miles or f"recipe/{name}", *others)


METRICS = tuple(map(_metric, TABLE.strip().splitlines()))


def from_miles(logged: Mapping[str, float]) -> dict[str, Any]:
    """Our metrics of what Miles has logged of a rollout; one that Miles did not log is absent."""
    metrics: dict[str, Any] = {one.name: logged[one.miles] for one in METRICS if one.miles in logged}
    dropped = {name.removeprefix(DROPPED): int(n) for name, n in logged.items() if name.startswith(DROPPED)}
    norm = metrics.get("grad_norm")
    if norm is not None:  # Megatron takes no step with one that is no number
        metrics["valid_step"] = math.isfinite(norm)
    return metrics | {"groups_dropped": dropped} | part(logged, "audit/")


def to_miles(
    metrics: Mapping[str, Any], seconds: Mapping[str, float], trials: Mapping[str, float]
) -> dict[str, float]:
    """A `rollout` event under Miles' names, for those who compare runs of both engines."""
    named = {one.miles: metrics[one.name] for one in METRICS if one.name in metrics}
    dropped = named.pop(DROPPED, {})
    named |= {DROPPED + reason: count for reason, count in dropped.items()}
    named |= {SECONDS[phase]: value for phase, value in seconds.items() if phase in SECONDS}
    return {name: float(value) for name, value in (named | part(metrics, "audit/") | dict(trials)).items()}


def number(value: Any) -> float:
    """A metric as a number: the sum of a count by reason; NaN for what is none."""
    if isinstance(value, dict):
        return sum(number(part) for part in value.values())
    return float(value) if isinstance(value, int | float) else math.nan


def figure(value: Any) -> str:
    """A number as people read it; other values as they are."""
    if value is None or value != value:  # NaN
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def part(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Those whose name starts so."""
    return {name: value for name, value in metrics.items() if name.startswith(prefix)}


def tokens_per_second(metrics: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, float]:
    """The metric of that name, where its parts are known."""
    if not seconds.get("generate") or not metrics.keys() >= {"trials", "response_tokens_mean"}:
        return {}
    tokens = metrics["trials"] * metrics["response_tokens_mean"]
    return {"tokens_per_second": round(tokens / seconds["generate"], 1)}
