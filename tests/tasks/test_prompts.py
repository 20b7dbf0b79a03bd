"""Prompt data: what is written reads back, and every wrong row is refused with its place."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from recipe.errors import BadInputError, RecipeError
from recipe.tasks.prompts import (
    build_rows,
    check_tasks_exist,
    filter_prompt_data,
    read_prompt_data,
    write_lines,
    write_prompt_data,
)

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
    text = "\ufeff é\r\n\u2028 \x85 \0 end\r\n\n"
    make_task(tmp_path / "tasks", "odd", text.encode())
    write_prompt_data(build_rows(tmp_path / "tasks", "terminus-2"), tmp_path / "p.jsonl")
    (read,) = read_prompt_data(tmp_path / "p.jsonl")
    assert read.prompt[0]["content"].encode() == (tmp_path / "tasks/odd/instruction.md").read_bytes()
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
        row(label="a..b"),
        "\ufeff" + json.dumps(row()),
        json.dumps(row(prompt=[{"role": "user", "content": "X"}])).replace("X", "\\ud800"),
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


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as refused:
        read_prompt_data(written(tmp_path, "\ufeff" + json.dumps(row())))
    assert "(BOM)" in refused.value.facts["found"]


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


def test_all_bad_lines_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as refused:
        read_prompt_data(written(tmp_path, "{", row("a"), row("b", prompt=[]), row("a"), row("c")))
    assert [number for number in range(1, 6) if f"l, line {number}\n" in f"{refused.value}\n"] == [1, 3, 4]


def test_rows_with_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\r\n".join(json.dumps(row(label)).encode() for label in ("a", "b")) + b"\r\n")
    assert [read.label for read in read_prompt_data(path)] == ["a", "b"]


def test_every_row_without_its_task_is_listed(tmp_path: Path) -> None:
    for name in ("whole", "half"):
        make_task(tmp_path, name)
    (tmp_path / "half" / "instruction.md").unlink()
    rows = read_prompt_data(written(tmp_path, row("whole"), row("half"), row("gone"), row("gone2")))
    check_tasks_exist(rows[:1], tmp_path)
    with pytest.raises(BadInputError, match="3 tasks") as refused:
        check_tasks_exist(rows, tmp_path)
    assert refused.value.facts["found"].split("\n") == [
        "gone: no directory gone",
        "gone2: no directory gone2",
        "half: instruction.md could not be read: no such file",
    ]
    with pytest.raises(BadInputError, match="network_mode public"):
        check_tasks_exist(rows[:1], tmp_path, "local")


def test_a_filter_keeps_chosen_lines_as_they_are_written(tmp_path: Path) -> None:
    lines = [json.dumps(row(label, extra=[1.50, "é"])).replace(", ", " ,  ") for label in ("a1", "a2", "b1")]
    path = written(tmp_path, *lines)
    assert filter_prompt_data(path) == lines
    assert filter_prompt_data(path, include={"b1", "a1"}) == [lines[0], lines[2]]
    assert filter_prompt_data(path, exclude={"a1"}) == lines[1:]
    assert filter_prompt_data(path, match="^a.$", exclude={"a1"}) == [lines[1]]
    told = write_lines(lines, tmp_path / "out" / "p.jsonl")
    content = (tmp_path / "out" / "p.jsonl").read_bytes()
    assert content.decode() == "".join(f"{line}\n" for line in lines)
    assert told == f"3 rows, sha256 {hashlib.sha256(content).hexdigest()}, {tmp_path / 'out' / 'p.jsonl'}"


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"include": {"a", "x", "w"}}, "w, x"),
        ({"exclude": {"y"}}, "y"),
        ({"match": "("}, "unterminated"),
        ({"match": "nothing"}, "0 of 1"),
        ({"include": {"a"}, "exclude": {"a"}}, "0 of 1"),
    ],
)
def test_a_filter_refuses_unknown_names_bad_expressions_and_an_empty_rest(
    tmp_path: Path, choice: dict[str, Any], found: str
) -> None:
    with pytest.raises(BadInputError) as refused:
        filter_prompt_data(written(tmp_path, row("a")), **choice)
    assert found in refused.value.facts["found"]


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
