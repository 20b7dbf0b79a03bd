"""Prompt data: a JSON line a task, `{"label", "prompt": [...], "metadata": {"agent_name", "instance_id"}}`.

Written from task directories, whole or not at all; every row is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError

from recipe.errors import BadInputError
from recipe.files import kind_of, write_whole
from recipe.tasks import folders
from recipe.tasks.folders import read_verbatim

ROLES = ("system", "user", "assistant")


def _name(value: Any) -> str:
    if not isinstance(value, str) or not folders.SAFE_NAME.fullmatch(value):
        raise ValueError(folders.SAFE_FORM)
    return value


def _messages(prompt: list[dict[str, str]]) -> list[dict[str, str]]:
    if not prompt or not all(message.get("role") in ROLES and "content" in message for message in prompt):
        raise ValueError("messages, each with a role and a content")
    return prompt


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    for key in ("agent_name", "instance_id"):
        _name(metadata.get(key))
    return metadata


@dataclass(frozen=True)
class Row:
    """One prompt: a label unique in its file; metadata with agent_name and instance_id (a task's folder)."""

    label: Annotated[str, BeforeValidator(_name)]
    prompt: Annotated[list[dict[str, str]], AfterValidator(_messages)]
    metadata: Annotated[dict[str, Any], AfterValidator(_metadata)]

    @property
    def instance_id(self) -> str:
        return str(self.metadata["instance_id"])


ROW = TypeAdapter(Row)


def build_rows(tasks_dir: Path, agent_name: str, backend: str | None = None) -> list[Row]:
    """A row for each task of `tasks_dir`, by name. Raises BadInputError listing all that can't be one.

    `backend`: if it is one of folders.BACKENDS, it must be able to run every task.
    """
    names = folders.task_names(tasks_dir)
    folders.require_usable(tasks_dir, names, backend)
    texts = {name: read_verbatim(tasks_dir / name / "instruction.md") for name in names}
    return [
        Row(name, [{"role": "user", "content": text}], {"agent_name": agent_name, "instance_id": name})
        for name, text in texts.items()
    ]


def write_prompt_data(rows: Sequence[Row], path: Path) -> str:
    """Replaces `path` by `rows`, or leaves it as it was: RecipeError (a full disk), BadInputError (no place for it).

    Returns what the file is, for people: number of rows, SHA-256, path, and whose text has a byte order mark.
    """
    told = write_lines([json.dumps(asdict(row), ensure_ascii=False) for row in rows], path)
    marked = [row.label for row in rows if row.prompt[0]["content"].startswith(folders.BOM)]
    return told + (f", with {folders.BOM_NAMED}: {', '.join(marked)}" if marked else "")


def write_lines(lines: Sequence[str], path: Path) -> str:
    """The same with rows as they are written in a file."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise kind_of(error)("prompt data could not be written", found=error, where=path) from error
    return f"{len(lines)} rows, sha256 {hashlib.sha256(text.encode()).hexdigest()}, {path}"


def filter_prompt_data(
    path: Path,
    include: AbstractSet[str] = frozenset(),
    exclude: AbstractSet[str] = frozenset(),
    match: str = "",
) -> list[str]:
    """The lines of `path`, as they are written, whose labels are included (none given: all), not excluded, and match.

    Raises BadInputError for bad rows, an unknown name, a bad expression, and when nothing is left.
    """
    labels = [row.label for row in read_prompt_data(path)]
    if unknown := sorted((include | exclude) - set(labels)):
        raise BadInputError("no prompt has this label", found=", ".join(unknown), where=path)
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise BadInputError("--match is no regular expression", found=f"{match!r}: {error}") from None
    lines = [line for line in read_verbatim(path).split("\n") if line.strip()]
    chosen = {
        label
        for label in labels
        if (not include or label in include) and label not in exclude and pattern.search(label)
    }
    if not chosen:
        raise BadInputError(
            "no prompt is left", expected="at least 1", found=f"0 of {len(labels)}", where=path
        )
    return [line for label, line in zip(labels, lines, strict=True) if label in chosen]


def read_prompt_data(path: Path) -> list[Row]:
    """Every row of `path`, checked; keys that this package does not know are left out.

    Raises BadInputError that names the file and the lines of all bad rows.
    """
    lines: dict[str, int] = {}
    rows, wrong = [], []
    for number, line in enumerate(read_verbatim(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = ROW.validate_json(line)
        except ValidationError as error:
            expected, found = folders.first_problem(error), repr(error.errors()[0]["input"])
            found = folders.BOM_NAMED if line.startswith(folders.BOM) else found
        else:
            first = lines.setdefault(row.label, number)
            if first == number:
                rows.append(row)
                continue
            expected, found = "a label of its own", f"{row.label!r}, as on line {first}"
        where = f"{path}, line {number}"
        problem = "a row of the prompt data is wrong"
        wrong.append(BadInputError(problem, expected=expected, found=found[:200], where=where))
    if len(wrong) > 1:
        raise BadInputError("\n".join(map(str, wrong)))
    if wrong:
        raise wrong[0]
    if not rows:
        raise BadInputError("there are no prompts", expected="JSON lines", found="none", where=path)
    return rows


def check_tasks_exist(rows: Sequence[Row], tasks_dir: Path, backend: str | None = None) -> None:
    """Raises BadInputError listing all that keeps the rows' tasks from use; `backend` as in `build_rows`."""
    folders.require_usable(tasks_dir, sorted({row.instance_id for row in rows}), backend)


def agent_timeout_sec(task: Path) -> float | None:
    """How long a task's agent may work, in seconds, if its task.toml says so. Raises BadInputError."""
    return folders.task_settings(task).agent.timeout_sec
