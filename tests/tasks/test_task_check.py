"""`check` says what Harbor would, and runs a task's two trials until they have passed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harbor.models.task.task import Task

from recipe.errors import BadInputError
from recipe.pins import PROJECT_ROOT
from recipe.tasks import check as checks
from recipe.tasks.check import check, run_oracle
from recipe.tasks.folders import task_names

SMOKE = PROJECT_ROOT / "recipe" / "tasks" / "smoke"
SETTINGS = '[agent]\ntimeout_sec = 20\n[environment]\nnetwork_mode = "no-network"\n'
GRADE = "grep -qx 42 answer && r=1 || r=0; echo $r > /logs/verifier/reward.txt"


def make(
    tasks: Path, name: str, files: dict[str, str] | None = None, solution: str = "echo 42 > answer"
) -> Path:
    given = {
        "task.toml": SETTINGS,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM scratch\nWORKDIR /app\n",
        "tests/test.sh": f"#!/bin/bash\n{GRADE}\n",
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
    } | (files or {})
    for path, text in given.items():
        (tasks / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tasks / name / path).write_text(text)
    return tasks / name


def test_the_smoke_tasks_are_fine_and_it_is_said_by_what() -> None:
    assert check(SMOKE, task_names(SMOKE), "local").startswith("by the models of Harbor 0.")


def test_without_harbor_it_is_said_what_was_checked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checks, "_harbor_version", lambda: None)
    make(tmp_path, "task", {"tests/test.sh": ""}).joinpath("tests/test.sh").unlink()
    assert "Harbor is not installed" in check(tmp_path, ["task"], None)
    with pytest.raises(BadInputError, match="need Harbor"):
        run_oracle(tmp_path, ["task"], tmp_path / "cache", print)


@pytest.mark.parametrize(
    ("files", "removed"),
    [
        ({"task.toml": SETTINGS + "[verifier]\ntimeout_sec = []\n"}, None),
        ({"task.toml": SETTINGS + '[task]\nname = "no organisation"\n'}, None),
        ({"task.toml": SETTINGS + '[[steps]]\nname = "first"\n'}, None),
        ({}, "tests/test.sh"),
        ({"tests/.harborignore": "test.sh\n"}, None),
    ],
)
def test_whatever_harbor_refuses_is_refused_here(
    tmp_path: Path, files: dict[str, str], removed: str | None
) -> None:
    make(tmp_path, "fine")
    task = make(tmp_path, "task", files)
    if removed:
        (task / removed).unlink()
    with pytest.raises((ValueError, OSError)):
        Task(task)
    with pytest.raises(BadInputError, match="1 task can") as refused:
        check(tmp_path, ["fine", "task"], None)
    assert refused.value.facts["found"].startswith("task: ")


def test_what_the_local_sandbox_cannot_follow_is_refused_there_only(tmp_path: Path) -> None:
    make(tmp_path, "task", {"environment/Dockerfile": "FROM x\nADD y /\n"})
    check(tmp_path, ["task"], "docker")
    with pytest.raises(BadInputError, match="line 2"):
        check(tmp_path, ["task"], "local")


def test_a_task_that_passed_is_not_run_again_until_it_changes(tmp_path: Path) -> None:
    tasks, cache, said = tmp_path / "tasks", tmp_path / "cache", []
    make(tasks, "sound")
    make(tasks, "wrong", solution="echo 43 > answer")
    names = ["sound", "wrong"]
    assert run_oracle(tasks, names, cache, said.append) == 1
    assert [line.split()[:2] for line in said[1:]] == [["ok", "sound"], ["FAILED", "wrong"]]
    (kept,) = (cache / "oracle").iterdir()
    assert json.loads(kept.read_text())["oracle"] == 1
    said.clear()
    assert run_oracle(tasks, names, cache, said.append) == 1
    assert said[0] == "1 of 2 tasks passed before"
    assert [line.split()[1] for line in said[1:]] == ["wrong"]
    (tasks / "sound" / "instruction.md").write_text("Do it well.\n")
    assert run_oracle(tasks, ["sound"], cache, said.append) == 0
    assert said[-1].startswith("ok     sound")


def test_an_interrupted_check_ends_with_its_code_and_keeps_no_verdict(tmp_path: Path) -> None:
    make(tmp_path / "tasks", "slow", solution="touch started; sleep 600")
    code = (
        "from recipe.errors import RecipeError; from recipe.tasks.commands import app; import sys\n"
        "try: app()\nexcept RecipeError as error: print(error); sys.exit(error.exit_code)"
    )
    command = [sys.executable, "-c", code, "check", "tasks", "--backend", "local", "--oracle"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1] == "0 of 1 tasks passed before\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "no sandbox is left" in out
    assert list((tmp_path / ".cache" / "oracle").iterdir()) == []
