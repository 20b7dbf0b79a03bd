"""What the events of a run add up to, at any moment: the one reading of events.jsonl that all who watch share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError
from recipe.events import Event, EventReader
from recipe.watch.metrics import TIMED

# What the watchers themselves say is no sign of life of the job.
WATCHERS = frozenset({"alarm", "resources", "sandbox"})


@dataclass
class Rollout:
    """One finished rollout: its metrics, the seconds of its phases, and its trials' `agent/*` metrics."""

    number: int
    metrics: dict[str, Any]
    seconds: dict[str, float]
    agent: dict[str, Any]
    time: float


@dataclass
class Group:
    """One prompt's trials as the filter saw them; `reason` says why they were dropped."""

    rollout: int | None
    kept: bool
    reason: str | None
    trials: list[dict[str, Any]]

    @property
    def rewards(self) -> list[float]:
        """Of the trials that have one."""
        return [trial["reward"] for trial in self.trials if trial.get("reward") is not None]


@dataclass
class Sandboxes:
    """Counts of the run's sandboxes, and the hours that all of them together have been there."""

    created: int = 0
    deleted: int = 0
    orphans: int = 0
    now: float = 0.0
    _open: dict[str, float] = field(default_factory=dict)  # since when, by id
    _closed_seconds: float = 0.0

    @property
    def hours(self) -> float:
        return (self._closed_seconds + sum(self.now - since for since in self._open.values())) / 3600

    @property
    def open(self) -> int:
        return len(self._open)

    def take(self, event: Event) -> None:
        """Counts one sandbox event. One that lasted `seconds` is taken at its word."""
        name, time = str(event.get("sandbox")), event["time"]
        match event.get("state"):
            case "created":
                self.created += 1
                self._open[name] = time
            case "deleted":
                self.deleted += 1
                since = self._open.pop(name, time)
                self._closed_seconds += event.get("seconds", time - since)
            case "orphan":
                self.orphans += 1


@dataclass
class History:
    """The events so far. `finished_trials` are those of the rollout that is under way; times are unix seconds."""

    rollouts: list[Rollout] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    open_trials: dict[str, Event] = field(default_factory=dict)
    finished_trials: list[Event] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    alarms: list[Event] = field(default_factory=list)
    audits: list[Event] = field(default_factory=list)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    resources: Event | None = None
    phase: str | None = None
    phase_rollout: int | None = None
    phase_time: float = 0.0
    started: float = 0.0
    last_time: float = 0.0  # of the job's last sign of life
    now: float = 0.0
    status: str = "unfinished"
    error: str | None = None
    warm_start: str = ""
    _groups_before: int = 0  # those of finished rollouts

    def take(self, event: Event) -> None:  # noqa: C901 - a table of kinds
        """Adds one event. One that lacks what its kind has is passed over."""
        if not isinstance(event.get("time"), int | float):
            return
        self.pass_time(event["time"])
        self.started = self.started or event["time"]
        if event["kind"] not in WATCHERS:
            self.last_time = event["time"]
        match event:
            case {"kind": "sandbox"}:
                self.sandboxes.take(event)
            case {"kind": "phase", "phase": str(phase)}:
                self.phase, self.phase_time, self.phase_rollout = phase, event["time"], event.get("rollout")
                if self.phase_rollout is not None:
                    self._forget_trials()
            case {"kind": "trial", "trial": str(trial), "state": "started"}:
                self.open_trials[trial] = event
            case {"kind": "trial", "state": "done"}:
                self.open_trials.pop(str(event.get("trial")), None)
                self.finished_trials.append(event)
            case {"kind": "group", "kept": kept, "trials": list(trials)}:
                self.groups.append(Group(event.get("rollout"), bool(kept), event.get("reason"), trials))
            case {"kind": "rollout", "rollout": int(number), "metrics": dict(metrics)}:
                agent = event.get("trials") or {}
                finished = Rollout(number, metrics, event.get("seconds") or {}, agent, event["time"])
                self._finish(finished)
            case {"kind": "checkpoint", "path": path}:
                self.checkpoints.append(path)
            case {"kind": "alarm", "alarm": str()}:
                self.alarms.append(event)
            case {"kind": "audit"}:
                self.audits.append(event)
            case {"kind": "resources"}:
                self.resources = event
            case {"kind": "lesson", "done": done, "total": total}:
                self.warm_start = f"lesson {done} of {total} played"
            case {"kind": "warm_start", "step": step, "steps": steps}:
                self.warm_start = f"step {step} of {steps}"
            case {"kind": "end", "status": str(status)}:
                self.status, self.error = status, event.get("error")

    def pass_time(self, now: float) -> None:
        """It is `now`, though nothing may have happened."""
        self.now = self.sandboxes.now = max(self.now, now)

    def _finish(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)
        self._groups_before = len(self.groups)
        # Surplus ones are flushed by then; on Miles some of them never say so.
        self._forget_trials()

    def _forget_trials(self) -> None:
        """Those of finished rollouts, and of the warm start once a rollout is under way."""
        self.finished_trials = [
            event for event in self.finished_trials if self._is_later(event.get("rollout"))
        ]
        self.open_trials = {
            trial: event for trial, event in self.open_trials.items() if self._is_later(event.get("rollout"))
        }

    def _is_later(self, rollout: int | None) -> bool:
        """Than the finished ones. Miles may tell of a rollout when the next one has begun."""
        return rollout is not None and (not self.rollouts or rollout > self.rollouts[-1].number)

    @property
    def current_groups(self) -> list[Group]:
        """The groups of the rollout that is under way."""
        return [
            group
            for index, group in enumerate(self.groups)
            if self._is_later(group.rollout) or (group.rollout is None and index >= self._groups_before)
        ]

    @property
    def newest(self) -> dict[str, Any]:
        """The metrics of the newest rollout."""
        return self.rollouts[-1].metrics if self.rollouts else {}

    def values(self, metric: str) -> list[float]:
        """A metric over the rollouts that have it, finite or not."""
        found = [rollout.metrics.get(metric) for rollout in self.rollouts]
        return [float(value) for value in found if isinstance(value, int | float)]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every rollout; no times, so that two deterministic runs have the same."""
        return [
            {
                "rollout": one.number,
                **{name: value for name, value in one.metrics.items() if name not in TIMED},
            }
            for one in self.rollouts
        ]

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics in canonical JSON."""
        canonical = json.dumps(self.metrics, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def read(run: Path) -> History:
    """The events of a run, finished or not; an empty history when there are none yet."""
    history = History()
    for event in EventReader(run / "events.jsonl").new():
        history.take(event)
    return history


def settings_of(run: Path) -> dict[str, Any]:
    """The run's settings by their lower-case names; empty where it recorded none.

    As recorded: an older run may lack some, so ask with `get`.
    """
    manifest = manifest_of(run)
    recorded = manifest.get("settings")
    return {name: of.get("value") for name, of in recorded.items()} if isinstance(recorded, dict) else {}


def manifest_of(run: Path) -> dict[str, Any]:
    """run_manifest.json, or nothing where there is none, or not a whole one."""
    try:
        manifest = json.loads((run / "run_manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def latest_run(runs_root: Path) -> Path:
    """The run that was begun last. Raises BadInputError when there is none."""
    found = [path.parent for path in runs_root.glob("*/run_manifest.json")]
    if not found:
        raise BadInputError(
            "there is no run yet", expected="a run's folder", found=f"none in {runs_root}", run="make smoke"
        )
    # The folder's own files come and go; this one was made when it began.
    return max(found, key=_began)


def _began(run: Path) -> tuple[str, float]:
    return str(manifest_of(run).get("started") or ""), run.stat().st_mtime
