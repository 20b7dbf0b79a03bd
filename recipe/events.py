"""A run's events: one JSON object a line, appended by driver and launcher, read by whoever watches the run.

docs/events.md has the kinds.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from recipe.untrusted import loads, open_file

Event = dict[str, Any]
# Kinds that the launcher adds when it looks around, each at a moment of the clock.
WATCHERS = frozenset({"alarm", "resources", "sandbox"})
# Keys whose value is a duration, a rate or a moment: the word is in their name.
TIME = re.compile(r"(^|[_/])(time|seconds?)(_|$)")
# What is held in memory of a file that grew: some thousands of lines. None of ours is near that long.
CHUNK = 1 << 22
# Two different files agree in so many bytes before the same place only where they are the same up to there.
FINGERPRINT = 256
# What a key holds in every kind of event that has it; null is allowed for each.
TYPES: dict[str, type] = (
    dict.fromkeys(("phase", "task", "trial", "trial_name", "state", "exit_status", "status", "reason"), str)
    | dict.fromkeys(("error", "path", "alarm", "found", "do", "action", "sandbox", "backend"), str)
    | dict.fromkeys(("rollout", "done", "total", "step", "steps"), int)
    | dict.fromkeys(("reward", "turns", "response_tokens", "native_blocks", "loss"), float)
    | {f"{name}_bytes": float for name in ("available_memory", "total_memory", "free_disk", "checkpoint")}
    | {"metrics": dict}
)


class EventLog:
    """Appends events to a file; a reader sees a whole line as soon as `write` has returned."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write per line in append mode: lines of two writers never mix.
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends one event with the time (unix seconds). NumPy and torch scalars become plain numbers."""
        self.append({"time": time.time(), "kind": kind, **fields})

    def append(self, event: Event) -> None:
        """Appends an event as it is, but for a number that is none: others than Python read null only."""
        try:
            line = json.dumps(event, default=_plain, allow_nan=False)
        except ValueError:
            finite = json.loads(json.dumps(event, default=_plain), parse_constant=lambda _name: None)
            line = json.dumps(finite)
        self._file.write(line.encode() + b"\n")


class Tail:
    """Follows a text file that grows, may not exist yet, and may be cut or replaced: each whole line once.

    Only what is new is read. A file that no longer has what was read last (it was rewritten, its middle was cut,
    another one has taken its place) is read from its start again.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        """`start`: bytes that are passed over."""
        self._path = path
        self._offset = start
        self._last = b""  # what stood before the offset

    def lines(self) -> Iterator[bytes]:
        """The whole lines since the last call, without their ends; one longer than CHUNK comes in pieces.

        Raises OSError for what is no regular file.
        """
        try:
            file = open_file(self._path)
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._offset, self._last = file.seek(0), b""
            while part := file.read(CHUNK):
                whole = part[: part.rfind(b"\n") + 1] or (part if len(part) == CHUNK else b"")
                if not whole:
                    return
                self._last = (self._last + whole)[-FINGERPRINT:]
                self._offset = file.seek(self._offset + len(whole))
                yield from whole.splitlines()


class EventReader:
    """Follows an event file."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)

    def new(self) -> Iterator[Event]:
        """The events since the last call. A line that is no event (cut by a kill, say) is passed over."""
        return filter(None, map(parse, self._tail.lines()))


def repeatable(run: Path) -> bytes:
    """The events of a run that two deterministic runs of one seed have in common, to the byte: see docs/events.md."""
    told = EventReader(run / "events.jsonl").new()
    kept = [event for event in told if event["kind"] not in WATCHERS and not _of_warm_start(event)]
    return "".join(json.dumps(_timeless(event, run)) + "\n" for event in kept).encode()


def _of_warm_start(event: Event) -> bool:
    """Which is there only where CACHE_DIR has no weights yet."""
    trial = event["kind"] == "trial" and event.get("rollout") is None
    return trial or event["kind"] in {"lesson", "warm_start"} or event.get("phase") == "warm_start"


def _timeless(value: Any, run: Path) -> Any:
    """Without its times, and with paths in the run's folder as from there."""
    if isinstance(value, dict):
        return {name: _timeless(part, run) for name, part in value.items() if not TIME.search(name)}
    if isinstance(value, list):
        return [_timeless(part, run) for part in value]
    return value.replace(f"{run}/", "") if isinstance(value, str) else value


def parse(line: bytes) -> Event | None:
    """The event that a line is, if it is one: with a kind, and a time that is a number.

    A value that has not the type of its key is left out: it counts as not known.
    """
    try:
        event = loads(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("kind"), str) and is_number(event.get("time"))
    return _sound(event) if known else None


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sound(event: Event) -> Event:
    if event.get("kind") == "rollout":
        types = TYPES | {"seconds": dict, "trials": dict}  # by phase, by metric
    else:
        types = TYPES | {"seconds": float, "trials": list}
    sound = {name: value for name, value in event.items() if _fits(value, types.get(name))}
    for name in ("seconds", "trials"):
        if isinstance(parts := sound.get(name), dict):
            sound[name] = {part: value for part, value in parts.items() if is_number(value)}
        elif isinstance(parts, list):
            sound[name] = [_sound(part) for part in parts if isinstance(part, dict)]
    return sound


def _fits(value: object, expected: type | None) -> bool:
    if value is None or expected is None:
        return True
    return (
        is_number(value) if expected is float else isinstance(value, expected) and not isinstance(value, bool)
    )


def _plain(value: Any) -> Any:
    """A number for a NumPy or torch scalar, text for a path."""
    return str(value) if isinstance(value, Path) else value.item()
