"""The smoke tasks are whole, valid for Harbor, and each has its scripted behaviours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harbor.models.task.task import Task

from recipe.tasks.smoke_behaviours import SMOKE_BEHAVIOURS

SMOKE = Path(__file__).parents[2] / "recipe" / "tasks" / "smoke"
NAMES = sorted(path.name for path in SMOKE.iterdir())


def test_there_are_enough_tasks_and_each_has_its_behaviours() -> None:
    assert len(NAMES) >= 6
    assert sorted(SMOKE_BEHAVIOURS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_valid_for_harbor_small_and_without_network(name: str) -> None:
    assert Task.is_valid_dir(SMOKE / name)
    config = Task(SMOKE / name).config
    assert config.environment.network_mode == "no-network"
    assert (config.environment.cpus, config.environment.memory_mb, config.environment.storage_mb) == (
        1,
        512,
        512,
    )
    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (60, 30)
    assert config.schema_version == "1.4"


@pytest.mark.parametrize("name", NAMES)
def test_an_instruction_is_one_or_two_short_sentences(name: str) -> None:
    text = (SMOKE / name / "instruction.md").read_text()
    assert text.count(". ") <= 1
    assert text.endswith(".\n")
    assert len(text) < 120


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_s_solution_is_the_right_behaviour(name: str) -> None:
    solution = (SMOKE / name / "solution" / "solve.sh").read_text()
    assert solution.splitlines()[-1] == SMOKE_BEHAVIOURS[name].right


def test_the_scripts_are_executable_and_clean() -> None:
    scripts = [
        path
        for name in NAMES
        for path in (SMOKE / name / "tests/test.sh", SMOKE / name / "solution/solve.sh")
    ]
    assert all(path.stat().st_mode & 0o100 for path in scripts)
    subprocess.run([Path(sys.executable).with_name("shellcheck"), *scripts], check=True)
