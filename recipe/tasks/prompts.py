"""Prompt data: a JSON line a task, `{"label", "prompt": [...], "metadata": {"agent_name", "instance_id"}}`.

Written from task directories, whole or not at all; every row is checked when it is read.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from recipe.errors import BadInputError, RecipeError
from recipe.files import write_whole

# A name that stays inside the folder it is joined to, on every file system and in every shell.
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Row:
    """One prompt: a label unique in its file; metadata with agent_name and instance_id (a task's folder)."""

    label: str
    prompt: list[dict[str, str]]
    metadata: dict[str, Any]

    @property
    def instance_id(self) -> str:
        return str(self.metadata["instance_id"])


def build_rows(tasks_dir: Path, agent_name: str) -> list[Row]:
    """A row for each folder of `tasks_dir` with a task.toml, by name. Raises BadInputError without one."""
    names = sorted(path.parent.name for path in tasks_dir.glob("*/task.toml"))
    if not names:
        raise BadInputError("there are no tasks", expected="task directories", found="none", where=tasks_dir)
    rows = []
    for name in names:
        _check_name(name, "name of a task", str(tasks_dir))
        instruction = _read(tasks_dir / name / "instruction.md")
        prompt = [{"role": "user", "content": instruction}]
        rows.append(Row(name, prompt, {"agent_name": agent_name, "instance_id": name}))
    return rows


def write_prompt_data(rows: Iterable[Row], path: Path) -> None:
    """Replaces `path` by `rows`, or leaves it as it was and raises RecipeError (a full disk)."""
    text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise RecipeError("prompt data could not be written", found=error, where=path) from error


def read_prompt_data(path: Path) -> list[Row]:
    """Every row of `path`, checked; keys that this package does not know are left out.

    Raises BadInputError that names the file and the line of the first bad row.
    """
    lines: dict[str, int] = {}
    rows = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = _row(line, f"{path}, line {number}")
        if row.label in lines:
            _refuse(
                "a label of its own",
                f"{row.label!r}, as on line {lines[row.label]}",
                f"{path}, line {number}",
            )
        lines[row.label] = number
        rows.append(row)
    if not rows:
        raise BadInputError(
            "there are no prompts", expected="one JSON object a line", found="none", where=path
        )
    return rows


def check_tasks_exist(rows: Sequence[Row], tasks_dir: Path) -> None:
    """Raises BadInputError listing every row whose task is not a directory of `tasks_dir` with its parts."""
    problems = [
        f"{row.label}: {problem}" for row in rows if (problem := _missing(tasks_dir / row.instance_id))
    ]
    if problems:
        raise BadInputError(
            f"{len(problems)} of {len(rows)} prompts have no task",
            expected="<instance_id>/ with task.toml, instruction.md and tests/",
            found="\n".join(problems),
            where=tasks_dir,
        )


def agent_timeout_sec(task: Path) -> float | None:
    """How long a task's agent may work, in seconds, if its task.toml says so. Raises BadInputError."""
    path = task / "task.toml"
    try:
        agent = tomllib.loads(_read(path)).get("agent", {})
        return float(agent["timeout_sec"]) if "timeout_sec" in agent else None
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInputError(
            "a task's settings can't be read", expected="TOML", found=error, where=path
        ) from error


def _missing(task: Path) -> str | None:
    if not task.is_dir():
        return f"no directory {task.name}"
    parts = [part for part in ("task.toml", "instruction.md", "tests") if not (task / part).exists()]
    return f"{task.name} lacks {', '.join(parts)}" if parts else None


def _read(path: Path) -> str:
    # newline="": line ends are part of a prompt.
    try:
        with path.open(encoding="utf-8", newline="") as source:
            return source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            "a file could not be read", expected="UTF-8 text", found=error, where=path
        ) from error


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        _refuse("a JSON object", f"{error}: {line[:80]}", where)
    if not isinstance(row, dict) or not row.keys() >= {"label", "prompt", "metadata"}:
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        _refuse("an object with label, prompt and metadata", found, where)
    _check_name(row["label"], "label", where)
    _check_prompt(row["prompt"], where)
    metadata = row["metadata"]
    if not isinstance(metadata, dict):
        _refuse("metadata: an object", metadata, where)
    for key in ("agent_name", "instance_id"):
        _check_name(metadata.get(key), f"metadata.{key}", where)
    return Row(row["label"], row["prompt"], metadata)


def _check_name(value: object, key: str, where: str) -> None:
    if not isinstance(value, str) or not SAFE_NAME.fullmatch(value):
        _refuse(f"{key}: letters, digits and . _ - only, starting with a letter or a digit", value, where)


def _check_prompt(prompt: object, where: str) -> None:
    expected = "prompt: a list of messages, each with a role and a content that are text"
    if not isinstance(prompt, list) or not prompt:
        _refuse(expected, prompt, where)
    for message in prompt:
        known = isinstance(message, dict) and message.get("role") in ROLES
        if not known or not isinstance(message.get("content"), str):
            _refuse(expected, message, where)


def _refuse(expected: str, found: object, where: str) -> NoReturn:
    shown = found if isinstance(found, str) else repr(found)
    raise BadInputError(
        "a row of the prompt data is wrong", expected=expected, found=shown[:200], where=where
    )
