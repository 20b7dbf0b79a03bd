"""Prompt data: what is written reads back, and every wrong row is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.errors import BadInputError, RecipeError
from recipe.tasks.prompts import build_rows, check_tasks_exist, read_prompt_data, write_prompt_data

SMOKE = Path(__file__).parents[2] / "recipe" / "tasks" / "smoke"


def row(label: str = "one", **changes: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": "Do it."}]
    metadata = {"agent_name": "camel", "instance_id": label}
    return {"label": label, "prompt": prompt, "metadata": metadata, **changes}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def make_task(folder: Path, name: str, instruction: bytes = b"Do it.\n") -> None:
    (folder / name / "tests").mkdir(parents=True)
    (folder / name / "task.toml").touch()
    (folder / name / "instruction.md").write_bytes(instruction)


def test_rows_of_task_directories_read_back_as_they_were_built(tmp_path: Path) -> None:
    rows = build_rows(SMOKE, "camel")
    write_prompt_data(rows, tmp_path / "new" / "prompts.jsonl")
    assert read_prompt_data(tmp_path / "new" / "prompts.jsonl") == rows
    assert [row.label for row in rows] == sorted(path.name for path in SMOKE.iterdir())
    check_tasks_exist(rows, SMOKE)


def test_an_instruction_is_taken_verbatim(tmp_path: Path) -> None:
    text = " é\r\n\u2028 \x85 end\r\n\n"
    make_task(tmp_path, "odd", text.encode())
    write_prompt_data(build_rows(tmp_path, "terminus-2"), tmp_path / "p.jsonl")
    (read,) = read_prompt_data(tmp_path / "p.jsonl")
    assert read.prompt == [{"role": "user", "content": text}]
    assert read.metadata == {"agent_name": "terminus-2", "instance_id": "odd"}


def test_a_row_keeps_its_metadata_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    metadata = {"agent_name": "camel", "instance_id": "x", "source": {"split": 1}}
    (read,) = read_prompt_data(written(tmp_path, "", row(metadata=metadata, extra=1), " "))
    assert (read.metadata, read.instance_id) == (metadata, "x")


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[" * 100_000,
        "7",
        "[]",
        "{}",
        {"label": "x", "prompt": []},
        row(label=7),
        row(label="../etc"),
        row(label="a b"),
        row(label=""),
        row(prompt="Do it."),
        row(prompt=[]),
        row(prompt=["Do it."]),
        row(prompt=[{"role": "robot", "content": "x"}]),
        row(prompt=[{"role": "user", "content": None}]),
        row(metadata=None),
        row(metadata={"agent_name": "camel"}),
        row(metadata={"instance_id": "x"}),
        row(metadata={"agent_name": "camel", "instance_id": "../x"}),
        row(metadata={"agent_name": "camel", "instance_id": ".."}),
        row(metadata={"agent_name": "camel", "instance_id": "x\n"}),
        row(label="first"),
    ],
)
def test_a_wrong_row_is_refused_with_its_file_and_line(tmp_path: Path, bad: object) -> None:
    path = written(tmp_path, row("first"), bad)
    with pytest.raises(BadInputError) as refused:
        read_prompt_data(path)
    assert refused.value.facts["where"] == f"{path}, line 2"
    assert refused.value.facts["expected"]
    assert len(refused.value.facts["found"]) <= 200


def test_a_repeated_label_is_refused_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="line 3") as refused:
        read_prompt_data(written(tmp_path, row("a"), row("b"), row("a")))
    assert "line 1" in refused.value.facts["found"]


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_rows_or_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError) as refused:
        read_prompt_data(path)
    assert refused.value.facts["where"] == str(path)


def test_every_row_without_its_task_is_listed(tmp_path: Path) -> None:
    for name in ("whole", "half"):
        make_task(tmp_path, name)
    (tmp_path / "half" / "instruction.md").unlink()
    rows = read_prompt_data(written(tmp_path, row("whole"), row("half"), row("gone"), row("gone2")))
    check_tasks_exist(rows[:1], tmp_path)
    with pytest.raises(BadInputError, match="3 of 4") as refused:
        check_tasks_exist(rows, tmp_path)
    found = refused.value.facts["found"]
    assert found == "half: half lacks instruction.md\ngone: no directory gone\ngone2: no directory gone2"


@pytest.mark.parametrize("names", [[], ["a b"]])
def test_a_folder_without_tasks_or_with_an_unsafe_name_builds_no_rows(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        make_task(tmp_path, name)
    with pytest.raises(BadInputError):
        build_rows(tmp_path, "camel")


def test_a_write_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    rows = read_prompt_data(written(tmp_path, row()))
    taken = tmp_path / "taken" / "prompts.jsonl"
    taken.mkdir(parents=True)
    with pytest.raises(RecipeError, match="could not be written"):
        write_prompt_data(rows, taken)
    assert list(taken.parent.iterdir()) == [taken]
