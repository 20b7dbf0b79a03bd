"""What the events of a run add up to, at any moment: the one reading of events.jsonl that all who watch share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError
from recipe.events import TIME, Event, EventReader, is_number
from recipe.untrusted import loads, open_file
from recipe.watch.metrics import number

# What a manifest holds where it is as the launcher writes it, and the settings with which the watchers count.
FORMS: dict[str, type] = (
    dict.fromkeys(("settings", "pins", "packages", "tasks", "prompt_data"), dict)
    | dict.fromkeys(("nodes", "argv"), list)
    | dict.fromkeys(("started", "ended", "error", "commit"), str)
)
COUNTED = frozenset({"num_rollout", "audit_max_strict", "sandbox_hours_max", "sandbox_hour_price"})


@dataclass
class Rollout:
    """One finished rollout: its metrics, and the seconds of its phases."""

    number: int
    metrics: dict[str, Any]
    seconds: dict[str, float]
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
        name, when = str(event.get("sandbox")), event["time"]
        match event.get("state"):
            case "created":
                self.created += 1
                self._open[name] = when
            case "deleted":
                since = self._open.pop(name, when)
                lasted = event.get("seconds")
                self._closed_seconds += max(0.0, when - since if lasted is None else lasted)
            case "orphan":
                self.orphans += 1


@dataclass
class History:
    """The events so far. `finished_trials` are those of the rollout that is under way; times are unix seconds.

    A time that is not within `since` and `until` is taken for the nearer of them: one odd clock makes no long run.
    """

    since: float = 0.0
    until: float = math.inf
    rollouts: list[Rollout] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    open_trials: dict[str, Event] = field(default_factory=dict)
    finished_trials: list[Event] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    alarms: list[Event] = field(default_factory=list)
    sandboxes: Sandboxes = field(default_factory=Sandboxes)
    resources: Event | None = None
    phase: str | None = None
    phase_rollout: int | None = None
    phase_time: float = 0.0
    started: float = 0.0
    now: float = 0.0
    status: str = "unfinished"
    error: str | None = None
    warm_start: str = ""
    _groups_before: int = 0  # those of finished rollouts

    def take(self, event: Event) -> None:  # noqa: C901 - a table of kinds
        """Adds one event, as `parse` gives them. One that lacks what its kind has is passed over."""
        event = {**event, "time": max(self.since, min(event["time"], self.until))}
        self.pass_time(event["time"])
        self.started = self.started or self.since or event["time"]
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
                self.rollouts.append(Rollout(number, metrics, event.get("seconds") or {}, event["time"]))
                self._groups_before = len(self.groups)
                # Surplus trials are flushed by then; on Miles some of them never say so.
                self._forget_trials()
            case {"kind": "checkpoint", "path": str(path)}:
                self.checkpoints.append(path)
            case {"kind": "alarm", "alarm": str()}:
                self.alarms.append(event)
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
        self.now = self.sandboxes.now = max(self.now, min(now, self.until))

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
        """A metric over the rollouts in which it is a finite number."""
        found = [number(rollout.metrics.get(metric)) for rollout in self.rollouts]
        return [value for value in found if math.isfinite(value)]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every rollout; no times, so that two deterministic runs have the same."""
        return [
            {"rollout": one.number} | {name: of for name, of in one.metrics.items() if not TIME.search(name)}
            for one in self.rollouts
        ]

    @property
    def digest(self) -> str:
        """SHA-256 of the metrics in canonical JSON."""
        canonical = json.dumps(self.metrics, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def read(run: Path) -> History:
    """The events of a run, finished or not; an empty history when there are none yet."""
    history = History(*window(manifest_of(run)))
    for event in EventReader(run / "events.jsonl").new():
        history.take(event)
    return history


def settings_of(run: Path) -> dict[str, Any]:
    """The run's settings by their lower-case names; empty where it recorded none.

    As recorded: an older run may lack some, so ask with `get`.
    """
    return recorded(manifest_of(run))


def recorded(manifest: dict[str, Any]) -> dict[str, Any]:
    """What `settings_of` gives, of a manifest that was read already."""
    return {name: of["value"] for name, of in manifest.get("settings", {}).items()}


def manifest_of(run: Path) -> dict[str, Any]:
    """run_manifest.json, or nothing where there is none, or not a whole one; without what has not its form."""
    try:
        with open_file(run / "run_manifest.json") as file:
            found = loads(file.read())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    manifest: dict[str, Any] = {
        key: value for key, value in found.items() if isinstance(value, FORMS.get(key, object))
    }
    if "settings" in manifest:
        manifest["settings"] = {
            name: {"source": "not recorded", **of}
            | ({"value": None} if name in COUNTED and not is_number(of["value"]) else {})
            for name, of in manifest["settings"].items()
            if isinstance(of, dict) and "value" in of
        }
    if "nodes" in manifest:
        manifest["nodes"] = [node for node in manifest["nodes"] if isinstance(node, dict)]
    return manifest


def window(manifest: dict[str, Any]) -> tuple[float, float]:
    """Between which times a run's events lie: its start, and its end or this moment. Unix seconds."""
    moments = {"started": 0.0, "ended": time.time()}
    for name in moments:
        with contextlib.suppress(KeyError, ValueError, OverflowError):
            moments[name] = datetime.fromisoformat(manifest[name]).timestamp()
    # A manifest's times are cut to seconds.
    return moments["started"], moments["ended"] + 1


def require_run(folder: Path) -> Path:
    """The folder. Raises BadInputError when it is no run's."""
    if not any(os.path.lexists(folder / name) for name in ("events.jsonl", "run_manifest.json")):
        raise BadInputError(
            "there is no such run", expected="a folder with events.jsonl or run_manifest.json", found=folder
        )
    return folder


def saved_at(run: Path, checkpoint: str) -> Path:
    """Where a checkpoint of a run lies, though the run's folder was moved since."""
    here = run / "checkpoints" / Path(checkpoint).name
    return here if here.exists() else Path(checkpoint)


def latest_run(runs_root: Path) -> Path:
    """The run that was begun last. Raises BadInputError when there is none."""
    found = [path.parent for path in runs_root.glob("*/run_manifest.json")]
    if not found:
        raise BadInputError(
            "there is no run yet", expected="a run's folder", found=f"none in {runs_root}", run="make smoke"
        )
    # The folder's own files come and go; this one was made when it began.
    return max(found, key=lambda run: (str(manifest_of(run).get("started") or ""), run.stat().st_mtime))
