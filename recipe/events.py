"""A run's events: one JSON object a line, appended by the driver, read by whoever watches the run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Appends events to a file; a reader sees a whole line as soon as `write` has returned."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write per line in append mode: lines of two writers never mix.
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends one event with the time (unix seconds). NumPy and torch scalars become plain numbers."""
        line = json.dumps({"time": time.time(), "kind": kind, **fields}, default=_plain)
        self._file.write(line.encode() + b"\n")


class EventReader:
    """Follows an event file that may not exist yet, and whose last line may still be half-written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Event]:
        """The events since the last call. A line that is no event (cut by a kill, say) is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = _parse(line)
            if event is not None:
                yield event


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


def _plain(value: Any) -> Any:
    """A number for a NumPy or torch scalar, text for a path."""
    return str(value) if isinstance(value, Path) else value.item()
