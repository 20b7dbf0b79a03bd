"""Watches a run, while it goes on or once more afterwards: the alarms that it raises, and what its host has left."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from recipe.events import Event
from recipe.settings import Settings
from recipe.untrusted import clean, size
from recipe.watch.alarms import ALARMS, Alarm, named, stopping
from recipe.watch.conditions import Settings as Recorded
from recipe.watch.history import History, manifest_of, window

# An alarm that is over must stay so for as many looks before it speaks again.
QUIET_LOOKS = 3
# Memory and disk fill in minutes, not in seconds.
RESOURCES_SECONDS = 30.0
# Of Inkling-Small's weights, until a checkpoint of this run has been measured.
CHECKPOINT_BYTES = 550e9


class Judge:
    """The history of a run, and which alarms have spoken: each once for as long as its condition holds."""

    def __init__(self, settings: Recorded, history: History, stops: Collection[str]) -> None:
        """`history`: an empty one; `stops`: the names of the alarms that stop a run."""
        self._history, self._settings, self._stops = history, settings, stops
        self._quiet = {alarm.name: QUIET_LOOKS for alarm in ALARMS}  # looks since its condition held

    def take(self, event: Event) -> list[Event]:
        """The alarms that an event raises, and those of the silence before it."""
        raised = self.tick(event["time"])
        self._history.take(event)
        return raised + self._look(event["kind"])

    def tick(self, now: float) -> list[Event]:
        """The alarms of a silence that lasts until `now`, unix seconds."""
        self._history.pass_time(now)
        return self._look("tick")

    def _look(self, kind: str) -> list[Event]:
        return [event for alarm in ALARMS if alarm.after == kind for event in self._judge(alarm)]

    def _judge(self, alarm: Alarm) -> Iterator[Event]:
        history, name = self._history, alarm.name
        if alarm.after == "rollout" and not history.rollouts:  # what lacks its metrics makes none
            return
        found = alarm.check(history, self._settings, alarm.limit)
        spoken = self._quiet[name] < QUIET_LOOKS
        self._quiet[name] = self._quiet[name] + 1 if found is None else 0
        if found and not spoken:
            rollout = history.rollouts[-1].number if alarm.after == "rollout" else history.phase_rollout
            action = "stop" if name in self._stops else "warn"
            told = {"alarm": name, "rollout": rollout, "found": found, "action": action, "do": alarm.do}
            yield {"time": history.now, "kind": "alarm", **told}


class Watch:
    """Watches a run that goes on: `take` gets every event of its file, those that the watchers add too."""

    def __init__(self, run_dir: Path, settings: Settings) -> None:
        self._run_dir = run_dir
        self._history = History(*window(manifest_of(run_dir)))
        self._judge = Judge(settings.public(), self._history, stopping(settings.stop_on))
        self._looked = -math.inf
        self._needed = CHECKPOINT_BYTES if settings.engine == "miles" else 0.0
        self._checkpoint: Path | None = None  # one that has not been measured

    def take(self, event: Event) -> list[Event]:
        """The alarms that an event raises."""
        self._history.until = time.time()
        if event["kind"] == "checkpoint":
            self._checkpoint = Path(str(event.get("path")))
        return self._judge.take(event)

    def tick(self) -> list[Event]:
        """The alarms of the silence until now; now and then, what the host has left."""
        self._history.until = time.time()
        raised = self._judge.tick(self._history.until)
        if time.monotonic() - self._looked >= RESOURCES_SECONDS:
            self._looked = time.monotonic()
            # A folder that is gone is not for the watcher to tell.
            with contextlib.suppress(OSError):
                raised.append({"time": time.time(), "kind": "resources", **self._resources()})
        return raised

    def _resources(self) -> dict[str, Any]:
        memory = host_memory()
        return {
            "available_memory_bytes": memory["MemAvailable"],
            "total_memory_bytes": memory["MemTotal"],
            "free_disk_bytes": shutil.disk_usage(self._run_dir).free,
            "checkpoint_bytes": self._checkpoint_bytes(),
            "where": socket.gethostname(),
        }

    def _checkpoint_bytes(self) -> float:
        """Of the next checkpoint: the size of the last one, measured once."""
        if self._checkpoint:
            self._needed = size(self._checkpoint) or self._needed
            self._checkpoint = None
        return self._needed


def host_memory() -> dict[str, int]:
    """Bytes by the names of /proc/meminfo."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def replay(
    events: Iterable[Event], settings: Recorded, within: tuple[float, float] = (0.0, math.inf)
) -> list[Event]:
    """The alarms that a run's events raise, as they would have been while it went on.

    `within`: the times between which they lie. A name of STOP_ON that this version does not know stops nothing.
    """
    judge = Judge(settings, History(*within), named(settings) or stopping(""))
    return [alarm for event in events for alarm in judge.take(event)]


def table(raised: Iterable[Event]) -> Table:
    """The alarms for people, in 80 columns."""
    texts = (Column(heading, overflow="fold") for heading in ("alarm", "found", "what to do"))
    shown = Table(Column("rollout", justify="right"), *texts, box=None, padding=(0, 2, 0, 0))
    for alarm in raised:
        rollout = "" if alarm["rollout"] is None else str(alarm["rollout"] + 1)
        shown.add_row(rollout, *(Text(clean(str(alarm[name]))) for name in ("alarm", "found", "do")))
    return shown
