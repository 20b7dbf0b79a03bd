"""Every sandbox that a run asks for: asked for, gone again, or left; read from the folders of its trials.

A trial's folder has config.json once its sandbox is asked for, and result.json once that is gone: of Harbor's own
agent server and of ours alike. A sandbox goes by its trial's name, after which the backends name it too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from recipe.errors import RecipeError
from recipe.events import Event

SHOWN = 5  # names of orphans in an error; the events have all
# What a file raises that is not what it should be: another form, nested too deeply.
BROKEN = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass
class Ledger:
    """Events of kind `sandbox`, from the folders in `trials_dir`; a look at 16,000 of them takes some 10 ms."""

    trials_dir: Path
    backend: str
    _known: set[str] = field(default_factory=set)
    _open: dict[str, Event] = field(default_factory=dict)

    def take(self, event: Event) -> Sequence[Event]:
        """Learns from the run's events what was told before, by an earlier launcher."""
        whole = {"trial_name", "task", "state"} <= event.keys() and isinstance(
            event.get("time"), (int, float)
        )
        if event.get("kind") == "sandbox" and whole:
            self._learn([event])
        return ()

    def tick(self) -> list[Event]:
        """What is new since the last look."""
        return self._learn([*self._created(), *self._deleted(at_the_end=False)])

    def close(self) -> list[Event]:
        """The last look, once the agent server is gone: what is still open is an orphan."""
        told = self.tick()
        told += self._learn([*self._deleted(at_the_end=True)])
        now = time.time()
        return told + [self._event(one, "orphan", now, now - one["time"]) for one in self._open.values()]

    def _learn(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._known.add(event["trial_name"])
            self._open.pop(event["trial_name"], None)
            if event["state"] == "created":
                self._open[event["trial_name"]] = event
        return events

    def _created(self) -> Iterator[Event]:
        new = []
        # It may be missing, or out of reach for a while.
        with suppress(OSError), os.scandir(self.trials_dir) as entries:
            new = [entry.name for entry in entries if entry.name not in self._known]
        for name in new:
            path = self.trials_dir / name / "config.json"
            with suppress(OSError, *BROKEN):  # not there, or not whole
                task = json.loads(path.read_text())["task"]
                facts = {"trial_name": name, "task": Path(task.get("path") or task["name"]).name}
                yield self._event(facts, "created", _written(path))

    def _deleted(self, *, at_the_end: bool) -> Iterator[Event]:
        for name, created in self._open.items():
            path = self.trials_dir / name / "result.json"
            with suppress(OSError):
                ended = _written(path)
                seconds = ended - created["time"]
                try:
                    seconds = _seconds(path)
                except ValueError:
                    if not at_the_end:  # it is being written
                        continue
                except BROKEN:  # it does not tell
                    pass
                yield self._event(created, "deleted", ended, seconds)

    def _event(self, facts: Event, state: str, when: float, seconds: float | None = None) -> Event:
        name = facts["trial_name"]
        event = {"time": when, "kind": "sandbox", "sandbox": name, "backend": self.backend}
        event |= {"task": facts["task"], "trial_name": name, "state": state}
        return event if seconds is None else {**event, "seconds": round(max(0.0, seconds), 3)}


def refuse_orphans(events: Sequence[Event], run_name: str) -> None:
    """Raises RecipeError when some of what `close` told is an orphan."""
    orphans = [event["sandbox"] for event in events if event["state"] == "orphan"]
    if orphans:
        more = f" and {len(orphans) - SHOWN} more" if len(orphans) > SHOWN else ""
        raise RecipeError(
            "sandboxes may be left at the backend, and cost",
            expected="every trial with a result: then its sandbox is gone",
            found=f"{len(orphans)} without: {', '.join(orphans[:SHOWN])}{more}",
            run=f"recipe sandboxes clean --run {run_name} --delete",
        )


def _written(path: Path) -> float:
    """When, in unix seconds; a file server's clock may be ahead of ours, and nothing is written in the future."""
    return min(path.stat().st_mtime, time.time())


def _seconds(path: Path) -> float:
    """How long a trial's sandbox was there; none was when its setup did not begin."""
    result = json.loads(path.read_text())
    begin, end = (result["environment_setup"] or {}).get("started_at"), result["finished_at"]
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() if begin else 0.0
