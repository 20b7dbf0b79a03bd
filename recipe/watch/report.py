"""What a run came to: a table, the reward curve, its metrics as one file with a digest, and where everything is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from recipe.errors import BadInputError
from recipe.events import EventReader

PHASES = {"generate": "sample", "train": "train", "update_weights": "sync", "save": "save"}
LEGEND = (
    "reward: mean±spread; groups: kept/dropped/surplus; KL to the reference; entropy in nats a token; "
    "Δlogprob: mean |train - rollout| a token; grad: norm before clipping; the last four: seconds"
)


@dataclass
class Rollout:
    """One finished rollout: its metrics, and the seconds of its phases."""

    number: int
    metrics: dict[str, Any]
    seconds: dict[str, float]


@dataclass
class Result:
    """What the events of a run add up to."""

    rollouts: list[Rollout] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    status: str = "unfinished"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every rollout; no times, so that two deterministic runs have the same."""
        return [{"rollout": rollout.number, **rollout.metrics} for rollout in self.rollouts]

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics in canonical JSON."""
        canonical = json.dumps(self.metrics, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def show(run: Path, console: Console) -> Result:
    """Prints the report and writes RUN/report/. Raises BadInputError when the folder holds no finished rollout."""
    result = read(run)
    if not result.rollouts:
        raise BadInputError("there is nothing to report", expected="a run with a finished rollout", found=run)
    report = run / "report"
    report.mkdir(exist_ok=True)
    (report / "metrics.json").write_text(json.dumps(result.metrics, indent=2, sort_keys=True) + "\n")
    draw(result, report / "reward.png")
    console.print(table(result))
    for line in summary(run, result):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return result


def read(run: Path) -> Result:
    """Gathers the events of a run, finished or not."""
    result = Result()
    for event in EventReader(run / "events.jsonl").new():
        match event:
            case {"kind": "rollout", "rollout": number, "metrics": metrics, "seconds": seconds}:
                result.rollouts.append(Rollout(number, metrics, seconds))
            case {"kind": "checkpoint", "path": path}:
                result.checkpoints.append(path)
            case {"kind": "end", "status": status}:
                result.status = status
    return result


def table(result: Result) -> Table:
    """A row a rollout, narrow enough for 80 columns."""
    shown = Table(box=box.SIMPLE_HEAD, padding=0, caption=LEGEND, caption_justify="left")
    for heading in ("", "reward", "groups", "turns", "KL", "entropy", "Δlogprob", "grad"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for heading in PHASES.values():
        shown.add_column(heading, justify="right", no_wrap=True)
    for rollout in result.rollouts:
        shown.add_row(*_cells(rollout))
    return shown


def _cells(rollout: Rollout) -> list[str]:
    of = rollout.metrics
    dropped = sum(of.get("groups_dropped", {}).values())
    return [
        str(rollout.number + 1),
        f"{of['reward_mean']:.2f}±{of['reward_std']:.2f}",
        f"{of['groups_kept']}/{dropped}/{of['groups_surplus']}",
        f"{of['turns_mean']:.1f}",
        f"{of['kl']:.4f}",
        f"{of['entropy']:.3f}",
        f"{of['logprob_difference']:.0e}",
        f"{of['grad_norm']:.2f}",
        *(f"{rollout.seconds[phase]:.1f}" if phase in rollout.seconds else "" for phase in PHASES),
    ]


def draw(result: Result, path: Path) -> None:
    """The mean reward of each rollout and its spread (one standard deviation), as a PNG."""
    from matplotlib.figure import Figure

    numbers = [rollout.number + 1 for rollout in result.rollouts]
    means = [rollout.metrics["reward_mean"] for rollout in result.rollouts]
    spreads = [rollout.metrics["reward_std"] for rollout in result.rollouts]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    below = [max(0.0, mean - spread) for mean, spread in zip(means, spreads, strict=True)]
    above = [min(1.0, mean + spread) for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(numbers, below, above, alpha=0.2, label="one standard deviation of the samples")
    axes.plot(numbers, means, marker="o", label="mean")
    axes.set(xlabel="rollout", ylabel="reward", ylim=(-0.02, 1.02), xticks=numbers)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path)


def summary(run: Path, result: Result) -> list[str]:
    """Where everything lies, and what was proven and what was not."""
    places = {
        "reward curve": run / "report" / "reward.png",
        "metrics": run / "report" / "metrics.json",
        "trials": run / "trials",
        "checkpoint": result.checkpoints[-1] if result.checkpoints else "none was due",
        "logs": run / "logs",
        "what ran": run / "run_manifest.md",
    }
    return [
        *(f"{name:<14}{place}" for name, place in places.items()),
        f"{'digest':<14}{result.digest} (of the metrics; equal for equal seeds when DETERMINISTIC=1)",
        "",
        _verdict(result),
    ]


def _verdict(result: Result) -> str:
    if result.status != "succeeded":
        return f"This run is {result.status}: it proves nothing."
    means = [f"{rollout.metrics['reward_mean']:.2f}" for rollout in result.rollouts]
    rewards = means[0] if len(means) == 1 else f"{means[0]} in the first rollout and {means[-1]} in the last"
    return (
        "Proven: the whole job ran on real parts (sandboxes, agent, verifier, session server, Ray, GRPO); the "
        f"mean reward was {rewards} ({len(means)} in all). "
        "Not proven: anything about Inkling-Small itself, about GPUs or about Miles; the model here is a tiny one."
    )
