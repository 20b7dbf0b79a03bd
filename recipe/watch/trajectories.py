"""What a trial's folder holds, as turns to read. All of it is untrusted: bounded, cut, and free of control codes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.untrusted import clean, open_file

# Of a file no more is read: an agent's output must not fill the memory of who reads the report.
FILE_BYTES = 32 * 2**20
# Of a text as much is shown as fits a screen.
CHARACTERS = 1600
# Of the turns: the first say how a trial set out, the last how it ended.
FIRST_TURNS, LAST_TURNS = 10, 10
# Of a turn: its reasoning, its text and its calls.
PARTS = 12
NAME = re.compile(r"\w[\w.-]{0,200}")


@dataclass(frozen=True)
class Text:
    """As much of a text as is shown; `kept` of its `total` characters."""

    shown: str
    kept: int
    total: int

    @classmethod
    def of(cls, value: object) -> Text:
        """Cuts out the middle; anything but text becomes JSON, and the parts of a message their text."""
        if isinstance(value, list) and all(isinstance(part, dict) and "text" in part for part in value):
            value = "\n".join(str(part["text"]) for part in value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) <= CHARACTERS:
            # A terminal is mostly empty lines.
            return cls(clean(text).rstrip(), len(text), len(text))
        half = CHARACTERS // 2
        return cls(f"{clean(text[:half])}\n[…]\n{clean(text[-half:])}", CHARACTERS, len(text))


@dataclass(frozen=True)
class Turn:
    """A message: who spoke, and what by heading: reasoning, text, calls of tools."""

    role: str
    parts: list[tuple[str, Text]]


@dataclass(frozen=True)
class Trajectory:
    """What a trial did and what it ended in, as far as its folder tells: `parts` are not the agent's."""

    turns: list[Turn]
    left_out: int
    parts: list[tuple[str, Text]]


def read(trials: Path, name: object) -> Trajectory:
    """Reads the folder of the trial `name`; what is missing, cut or of no known form is left out, never raised."""
    folder = trials / str(name)
    if not NAME.fullmatch(str(name)) or folder.is_symlink():
        return Trajectory([], 0, [])
    turns = [turn for message in _messages(folder) if (turn := _turn(message)).parts]
    left_out = max(0, len(turns) - FIRST_TURNS - LAST_TURNS)
    if left_out:
        turns = turns[:FIRST_TURNS] + turns[-LAST_TURNS:]
    output = _contents(folder, "verifier/test-stdout.txt").decode(errors="replace")
    exception = _json(_contents(folder, "result.json")).get("exception_info")
    found = (("exception", exception), ("verifier's output", output))
    return Trajectory(turns, left_out, [(heading, Text.of(value)) for heading, value in found if value])


def _messages(folder: Path) -> Iterator[dict[str, Any]]:
    """Of the agent's own file, or of Harbor's trajectory format (ATIF); as chat messages."""
    for line in _contents(folder, "agent/trajectory.jsonl").splitlines():
        yield from _dictionaries([_json(line).get("message")])
    for step in _dictionaries(_json(_contents(folder, "agent/trajectory.json")).get("steps")):
        called = _dictionaries(step.get("tool_calls"))
        yield {
            "role": "assistant" if step.get("source") == "agent" else step.get("source"),
            "content": step.get("message"),
            "reasoning_content": step.get("reasoning_content"),
            "tool_calls": [{"function": {"name": call.get("function_name"), **call}} for call in called],
        }
        for observation in _dictionaries([step.get("observation")]):
            for result in _dictionaries(observation.get("results")):
                yield {"role": "tool", "content": result.get("content")}


def _turn(message: dict[str, Any]) -> Turn:
    parts = [("reasoning", message.get("reasoning_content")), ("", message.get("content"))]
    functions = _dictionaries([call.get("function") for call in _dictionaries(message.get("tool_calls"))])
    parts += [(f"calls {clean(str(of.get('name'))[:80])}", of.get("arguments") or " ") for of in functions]
    role = clean(str(message.get("role"))[:20])
    return Turn(role, [(heading, Text.of(value)) for heading, value in parts[:PARTS] if value])


def _dictionaries(values: object) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _json(text: bytes) -> dict[str, Any]:
    """The object in `text`; an empty one when there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _contents(folder: Path, name: str) -> bytes:
    """A file's beginning; nothing of what is no file, or lies elsewhere through a link that an agent left."""
    path = folder / name
    try:
        if path.parent.is_symlink():
            return b""
        with open_file(path, os.O_NOFOLLOW) as file:
            return file.read(FILE_BYTES)
    except OSError:
        return b""
