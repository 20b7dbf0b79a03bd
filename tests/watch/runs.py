"""Synthetic runs: a healthy one of production's size and form, and the same with one fault in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Change = Callable[[int, dict[str, Any]], None]
START = 1_700_000_000.0
# A rollout of production takes about an hour.
SECONDS = {"update_weights": 60.0, "generate": 2000.0, "train": 1500.0, "save": 40.0}
SETTINGS: dict[str, Any] = {
    "engine": "miles",
    "agent": "camel",
    "num_rollout": 100,
    "rollout_batch_size": 16,
    "over_sampling_batch_size": 20,
    "n_samples_per_prompt": 8,
    "sandbox_backend": "daytona",
    "audit_max_strict": 0.2,
    "sandbox_hours_max": None,
    "sandbox_hour_price": 0.1,
    "stop_on": "",
}


def unchanged(_rollout: int, _part: dict[str, Any]) -> None:
    """No fault."""


def healthy(
    rollouts: int = 100,
    *,
    metrics: Change = unchanged,
    trial: Change = unchanged,
    resources: Change = unchanged,
    started: int = 20,
    kept: int = 16,
    samples: int = 8,
    ended: bool = True,
) -> list[dict[str, Any]]:
    """The events of a run in which nothing is wrong.

    `metrics`, `trial` and `resources` change what a rollout's event, a trial of a group and a look at the machine
    say: that is how a fault is planted.
    """
    chance = random.Random(1)
    events: list[dict[str, Any]] = []
    clock = START

    def say(kind: str, **fields: Any) -> None:
        events.append({"time": clock, "kind": kind, **fields})

    say("phase", phase="start", rollout=None)
    for rollout in range(rollouts):
        seen = {"available_memory_bytes": 900e9, "total_memory_bytes": 2000e9, "free_disk_bytes": 5000e9}
        resources(rollout, seen)
        say("resources", **seen, where="head")
        say("phase", phase="update_weights", rollout=rollout)
        clock += SECONDS["update_weights"]
        say("phase", phase="generate", rollout=rollout)
        groups = _groups(rollout, rollouts, chance, trial, started, samples)
        names = [(one["trial_name"], one["task"]) for group in groups for one in group]
        for name, task in names:
            say("trial", trial=name, rollout=rollout, task=task, state="started")
            say("sandbox", sandbox=name, backend="daytona", task=task, trial_name=name, state="created")
        for number, group in enumerate(groups):
            clock += SECONDS["generate"] / started
            surplus = number >= kept
            for one in group:
                status = "Flushed" if surplus else one["exit_status"]
                say(
                    "trial",
                    trial=one["trial_name"],
                    rollout=rollout,
                    task=one["task"],
                    state="done",
                    reward=None if surplus else one["reward"],
                    exit_status=status,
                    seconds=900.0,
                    trial_name=one["trial_name"],
                )
                say(
                    "sandbox",
                    sandbox=one["trial_name"],
                    backend="daytona",
                    task=one["task"],
                    trial_name=one["trial_name"],
                    state="deleted",
                    seconds=900.0,
                )
            if not surplus:
                dropped = any(one["exit_status"] == "AgentError" for one in group)
                reason = "agent_error" if dropped else None
                say("group", rollout=rollout, kept=not dropped, reason=reason, trials=group)
        say("phase", phase="train", rollout=rollout)
        clock += SECONDS["train"]
        last = rollout + 1 == rollouts
        if (rollout + 1) % 50 == 0 or last:
            say("phase", phase="save", rollout=rollout)
            clock += SECONDS["save"]
            say("checkpoint", rollout=rollout, path=f"checkpoints/iter_{rollout:07d}")
        found = _metrics(rollout / max(1, rollouts - 1), groups[:kept], chance)
        metrics(rollout, found)
        seconds = {name: value for name, value in SECONDS.items() if name != "save" or last}
        say("rollout", rollout=rollout, metrics=found, seconds=seconds, trials={"agent/turns_mean": 9.0})
    if ended:
        say("phase", phase="done", rollout=None)
        say("end", status="succeeded", error=None)
    return events


def _groups(
    rollout: int, rollouts: int, chance: random.Random, change: Change, started: int, samples: int
) -> list[list[dict[str, Any]]]:
    groups = []
    for number in range(started):
        index = (rollout * started + number) % 400
        solved = 0.1 + 0.5 * (index % 7) / 6 + 0.3 * rollout / rollouts
        group = []
        for sample in range(samples):
            one = {
                "sample": (rollout * started + number) * samples + sample,
                "task": f"task-{index:03d}",
                "trial_name": f"task-{index:03d}__r{rollout:04d}-{number:02d}-{sample}",
                "reward": float(chance.random() < solved),
                "exit_status": "Submitted",
                "status": "completed",
                "turns": chance.randint(6, 14),
                "response_tokens": chance.randint(2000, 6000),
            }
            change(rollout, one)
            group.append(one)
        groups.append(group)
    return groups


def _metrics(progress: float, groups: list[list[dict[str, Any]]], chance: random.Random) -> dict[str, Any]:
    trials = [one for group in groups for one in group]
    rewards = [one["reward"] or 0.0 for one in trials]
    mean = sum(rewards) / len(rewards)

    def around(value: float) -> float:
        return value * chance.uniform(0.9, 1.1)

    return {
        "reward_mean": mean,
        "reward_std": (mean * (1 - mean)) ** 0.5,
        "groups_kept": len(groups),
        "groups_dropped": {},
        "groups_surplus": 4,
        "trials": len(trials),
        "turns_mean": sum(one["turns"] for one in trials) / len(trials),
        "response_tokens_mean": sum(one["response_tokens"] for one in trials) / len(trials),
        "truncated_ratio": around(0.05),
        "malformed_ratio": around(0.01),
        "kl": around(0.001 + 0.03 * progress),
        "entropy": around(0.5 - 0.2 * progress),
        "logprob_difference": around(0.012),
        "logprob_difference_max": around(1.5),
        "tis_mean": around(0.99),
        "grad_norm": around(0.3),
        "loss": chance.uniform(-0.01, 0.01),
        "learning_rate": 1e-5,
        "samples_trained": len(trials),
        "tokens_trained": sum(one["response_tokens"] for one in trials),
        "samples_without_routes": 0,
        "tokens_per_second": around(4000),
        "valid_step": True,
        "audit/exact": float(len(trials)),
        "audit/strict_ratio": 0.0,
    }


def write(run: Path, events: list[dict[str, Any]], *, exit_code: int | None = 0, **settings: Any) -> Path:
    """A run's folder with these events; `exit_code` None: its manifest has no end."""
    chosen = {**SETTINGS, "run_name": run.name, **settings}
    (run / "launcher").mkdir(parents=True)
    (run / "launcher" / "lock").touch()
    (run / "launcher" / "job.json").write_text(json.dumps({"job_id": "j", "settings": chosen}))
    times = [event["time"] for event in events] or [START]
    started, ended = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in (times[0], times[-1]))
    manifest = {
        "started": started,
        "ended": None if exit_code is None else ended,
        "exit_code": exit_code,
        "error": "the job failed" if exit_code else None,
        "pins": {"miles": "https://example.org/miles@0123456789"},
        "settings": {name: {"value": value, "source": "default"} for name, value in chosen.items()},
        "tasks": {},
    }
    (run / "run_manifest.json").write_text(json.dumps(manifest))
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run
