"""`recipe dataset`: what it prints and writes, and that a refusal writes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recipe.errors import BadInputError
from recipe.pins import PROJECT_ROOT
from recipe.tasks.commands import app
from recipe.tasks.folders import BACKENDS
from recipe.tasks.prompts import read_prompt_data

SMOKE = str(PROJECT_ROOT / "recipe" / "tasks" / "smoke")


def dataset(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_rows_are_built_filtered_and_named(empty_folder: Path) -> None:
    built = dataset(
        "build", SMOKE, "--output", "out/all.jsonl", "--agent", "terminus-2", "--backend", "local"
    )
    content = Path("out/all.jsonl").read_bytes()
    assert built.output == f"8 rows, sha256 {hashlib.sha256(content).hexdigest()}, out/all.jsonl\n"
    assert {row.metadata["agent_name"] for row in read_prompt_data(Path("out/all.jsonl"))} == {"terminus-2"}
    chosen = dataset(
        *("filter", "out/all.jsonl", "--output", "some.jsonl", "--match", "e"),
        *("--include", "append-line,sort-names", "--include", "make-executable", "--exclude", "sort-names"),
    )
    assert chosen.output.startswith("2 rows, sha256 ")
    assert dataset("names", "some.jsonl").output == "append-line\nmake-executable\n"


def test_what_was_fetched_is_said_when_it_is_built(empty_folder: Path) -> None:
    task = empty_folder / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").touch()
    (task / "instruction.md").write_text("Do it.")
    record = {"repository": "someone/tasks", "revision": "0" * 40, "tasks": 1, "files": 2, "sha256": "0"}
    (empty_folder / "tasks" / "fetched.json").write_text(json.dumps(record))
    assert f"someone/tasks at {'0' * 40}" in dataset("build", "tasks", "--output", "p.jsonl").output


def test_a_refusal_writes_nothing_and_changes_nothing(empty_folder: Path) -> None:
    (empty_folder / "tasks" / "half").mkdir(parents=True)
    output = empty_folder / "p.jsonl"
    refused = dataset("build", "tasks", "--output", "p.jsonl")
    assert isinstance(refused.exception, BadInputError)
    assert not output.exists()
    output.write_text("before")
    assert isinstance(dataset("build", "tasks", "--output", "p.jsonl").exception, BadInputError)
    assert isinstance(dataset("filter", "p.jsonl", "--output", "p.jsonl").exception, BadInputError)
    assert output.read_text() == "before"
    assert dataset("build", SMOKE, "--output", ".").exit_code == 2
    assert sorted(path.name for path in empty_folder.iterdir()) == ["p.jsonl", "tasks"]


def test_check_and_stats_say_how_many(empty_folder: Path) -> None:
    assert dataset("check", SMOKE, "--backend", "local").output.startswith(
        "8 tasks can be used, by the models of "
    )
    assert dataset("check", SMOKE, "sort-names").output.startswith("1 task can be used, ")
    assert dataset("stats", SMOKE).output.splitlines()[0].split() == ["tasks", "8"]
    missing = dataset("check", SMOKE, "nothing").exception
    assert isinstance(missing, BadInputError)
    assert "nothing: no directory nothing" in str(missing)


@pytest.mark.parametrize("backend", [None, "docker"])
def test_the_oracle_runs_in_the_local_sandbox_only(backend: str | None) -> None:
    words = ["--backend", backend] if backend else []
    assert "--backend local" in str(dataset("check", SMOKE, "--oracle", *words).exception)


def test_the_command_knows_each_backend_of_the_table(empty_folder: Path) -> None:
    for name in BACKENDS:
        assert dataset("build", SMOKE, "--output", "p.jsonl", "--backend", name).exit_code == 0
    assert dataset("check", SMOKE, "--backend", "nowhere").exit_code == 2


def test_the_oracle_s_verdict_is_the_exit_code(empty_folder: Path) -> None:
    passed = dataset("check", SMOKE, "sort-names", "--backend", "local", "--oracle")
    assert (passed.exit_code, "ok     sort-names" in passed.output) == (0, True)
    assert list((empty_folder / ".cache" / "oracle").iterdir())


@pytest.mark.parametrize("output", ["file/p.jsonl", "loop/p.jsonl", "/proc/none/p.jsonl", "pipe"])
def test_an_output_that_cannot_be_is_bad_input(empty_folder: Path, output: str) -> None:
    Path("file").touch()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    assert isinstance(dataset("build", SMOKE, "--output", output).exception, BadInputError)
    assert Path("pipe").is_fifo()


def test_an_output_in_a_task_s_folder_is_refused(empty_folder: Path) -> None:
    shutil.copytree(Path(SMOKE) / "sort-names", "tasks/sort-names")
    Path("link").symlink_to("tasks/sort-names")
    for output in ("tasks/sort-names/p.jsonl", "tasks/sort-names/tests/p", "tasks/new/p", "link/p"):
        refused = dataset("build", "tasks", "--output", output).exception
        assert "in a task" in str(refused), output
    assert dataset("build", "tasks", "--output", "tasks/p.jsonl").exit_code == 0


@pytest.mark.parametrize("option", ["--include", "--exclude"])
@pytest.mark.parametrize("words", ["", ",", " , "])
def test_an_empty_choice_is_refused(empty_folder: Path, option: str, words: str) -> None:
    dataset("build", SMOKE, "--output", "p.jsonl")
    refused = dataset("filter", "p.jsonl", "--output", "q.jsonl", option, words).exception
    assert isinstance(refused, BadInputError)
    assert not Path("q.jsonl").exists()


def test_an_instruction_with_a_byte_order_mark_is_named(empty_folder: Path) -> None:
    shutil.copytree(Path(SMOKE) / "sort-names", "tasks/marked")
    Path("tasks/marked/instruction.md").write_bytes(b"\xef\xbb\xbfDo it.")
    assert "a byte order mark (BOM) at its start: marked" in dataset("build", "tasks", "--output", "p").output


@pytest.mark.parametrize("command", ["stats", "check", "build"])
@pytest.mark.parametrize("kind", ["nothing", "empty path", "empty file", "binary", "loop", "pipe", "nul"])
def test_a_wrong_folder_of_tasks_is_told_in_plain_words(empty_folder: Path, command: str, kind: str) -> None:
    make = {
        "empty file": Path("given").touch,
        "binary": lambda: Path("given").write_bytes(bytes(range(256))),
        "loop": lambda: Path("given").symlink_to("given"),
        "pipe": lambda: os.mkfifo("given"),
    }
    make.get(kind, list)()
    given = {"empty path": "", "nul": "a\0b"}.get(kind, "given")
    error = dataset(command, given, *(["--output", "p.jsonl"] if command == "build" else [])).exception
    assert isinstance(error, BadInputError)
    assert error.problem == "there is no such folder of tasks"
    assert set(error.facts) == {"expected", "found", "run"}
    assert error.facts["found"] == repr(given)
    assert not Path("p.jsonl").exists()


def test_a_folder_without_tasks_says_so(empty_folder: Path) -> None:
    Path("given").mkdir()
    error = dataset("stats", "given").exception
    assert isinstance(error, BadInputError)
    assert (error.facts["expected"], error.facts["found"]) == ("task directories", "none")


@pytest.mark.parametrize("repository", ["../x y", "", "a/b/c", "-x/y"])
def test_what_can_be_no_dataset_s_name_is_refused(empty_folder: Path, repository: str) -> None:
    refused = dataset("fetch", "new", "--revision", "a" * 40, "--repository", repository).exception
    assert isinstance(refused, BadInputError)
    assert refused.facts == {"expected": "OWNER/NAME", "found": repository}
    assert not list(empty_folder.iterdir())
    Path("loop").symlink_to("loop")
    in_use = dataset("fetch", "loop", "--revision", "a" * 40).exception
    assert isinstance(in_use, BadInputError)
    assert in_use.facts["found"] == "no such tasks"
