"""JSON files that people edit: read into typed objects or refused with file and line, and changed in place."""

from __future__ import annotations

import json
import re
import reprlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipe.errors import BadInputError

Step = str | int  # a key of an object, or an index of an array
# A hash is shown whole, a nested or endless value is not.
_SHORT = reprlib.Repr(maxstring=100, maxother=100)


def parse[T](path: Path, text: str, kind: TypeAdapter[T]) -> T:
    """What the file at `path` says, were `text` in it. Raises BadInputError: file, line, key, expected, found."""
    try:
        return kind.validate_python(json.loads(text, object_pairs_hook=_no_twice))
    except ValidationError as error:
        raise _bad_form(path, text, error) from None
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInputError(
            f"{path.name} can't be read",
            expected="JSON with each key once",
            found=error,
            where=f"{path}{line}",
            run=shlex.join(["git", "diff", str(path)]),
        ) from None


def value_offset(text: str, steps: Sequence[Step]) -> int:
    """Where in a JSON text the value at `steps` starts; a step that is not there is passed over."""
    position = _skip(text, 0)
    for step in steps:
        position = dict(_members(text, position)).get(step, position)
    return position


def line_of(text: str, steps: Sequence[Step]) -> int:
    """The line of the value at `steps` in a JSON text, from 1."""
    return text.count("\n", 0, value_offset(text, steps)) + 1


def replaced(text: str, steps: Sequence[Step], value: str | None) -> str:
    """A JSON text with another value at `steps`, which must be there; every other character stays."""
    start = value_offset(text, steps)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[:start] + json.dumps(value) + text[end:]


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:  # readers differ in which value they take
        raise ValueError(f"twice: {', '.join(sorted(twice))}")
    return dict(pairs)


def _bad_form(path: Path, text: str, error: ValidationError) -> BadInputError:
    problem = error.errors(include_url=False)[0]
    steps = [step for step in problem["loc"] if step != "[key]"]
    key = ".".join(str(step) for step in steps) or "its content"
    told = re.sub("^Value error, |^Input should be | or instance of .*", "", problem["msg"])
    # An object is too long to be shown, and is there to be seen.
    found = None if isinstance(problem["input"], dict) else _SHORT.repr(problem["input"])
    state, expected, found = {
        "extra_forbidden": ("unknown", "a key of the schema", key.rpartition(".")[2]),
        "missing": ("missing", "this key", None),
    }.get(problem["type"], ("not as it should be", told, found))
    return BadInputError(
        f"{path.name}: {key} is {state}",
        expected=expected,
        found=found,
        where=f"{path}:{line_of(text, steps)}",
        run=shlex.join(["git", "diff", str(path)]),
    )


def _members(text: str, position: int) -> Iterator[tuple[Step, int]]:
    """Keys or indices of the JSON object or array at `position`, each with the offset of its value."""
    if text[position] not in "{[":
        return
    decoder, is_object, index = json.JSONDecoder(), text[position] == "{", 0
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        name: Step = index
        if is_object:
            name, position = decoder.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        yield name, position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
