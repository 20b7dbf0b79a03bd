"""Real Harbor trials of the smoke tasks in the local sandbox: what the CAMEL agent, the oracle and nobody score."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial
from scripted_model import reply, serve, shell

from recipe.harbor.selfcheck import check_tasks
from recipe.tasks.smoke_behaviours import SMOKE_BEHAVIOURS

SMOKE = Path(__file__).parents[2] / "recipe" / "tasks" / "smoke"
TASKS = sorted(SMOKE_BEHAVIOURS)


async def trial(task: str, agent: AgentConfig, trials: Path) -> TrialResult:
    config = TrialConfig(
        task=TaskConfig(path=SMOKE / task),
        trials_dir=trials,
        agent=agent,
        environment=EnvironmentConfig(import_path="recipe.harbor.local_env:LocalEnvironment"),
    )
    return await (await Trial.create(config)).run()


def scripted(url: str) -> AgentConfig:
    options = {"api_base": url, "max_iterations": 5}
    return AgentConfig(
        import_path="recipe.harbor.camel_agent:CamelAgent", model_name="openai/tiny", kwargs=options
    )


async def played(task: str, command: str, trials: Path, check: str) -> tuple[float, list[str]]:
    """A trial of `command` and then `check`: its reward, and what the model was told."""
    with serve(reply(shell(command)), reply(shell(check)), reply(content="Done.")) as script:
        result = await trial(task, scripted(script.url), trials)
    assert result.agent_result is not None
    assert (result.agent_result.metadata or {}).get("exit_status") == "Submitted", result.exception_info
    told = [message["content"] for message in script.requests[-1]["messages"] if message["role"] == "tool"]
    return reward(result), told


def reward(result: TrialResult) -> float:
    assert result.verifier_result is not None, result.exception_info
    assert result.verifier_result.rewards is not None
    return float(result.verifier_result.rewards["reward"])


@pytest.mark.parametrize("task", TASKS)
def test_the_right_behaviour_scores_1_each_wrong_one_0_and_the_check_tells_them_apart(
    task: str, tmp_path: Path
) -> None:
    async def all_of_them() -> list[tuple[float, list[str]]]:
        plays = SMOKE_BEHAVIOURS[task]
        commands = (plays.right, plays.right, *plays.wrong)
        return await asyncio.gather(*(played(task, command, tmp_path, plays.check) for command in commands))

    right, again, *wrong = asyncio.run(all_of_them())
    assert right == again
    assert [score for score, _ in (right, *wrong)] == [1, 0, 0]
    assert right[1][0] == "[exit 0]"
    assert all(told[1] != right[1][1] for _, told in wrong)


@pytest.mark.parametrize("task", TASKS)
def test_the_oracle_scores_1_and_nobody_0(task: str) -> None:
    (check,) = check_tasks(SMOKE, [task])
    assert check.passed, check


@pytest.mark.parametrize(
    "answer", ["mkfifo /app/greeting.txt", "yes hello | head -c 50000000 > /app/greeting.txt"]
)
def test_an_answer_that_a_careless_test_would_choke_on_scores_0(tmp_path: Path, answer: str) -> None:
    assert asyncio.run(played("write-greeting", f"{answer}; true", tmp_path, check="ls /app"))[0] == 0


def test_a_trial_keeps_the_agent_s_metrics_and_its_trajectory(tmp_path: Path) -> None:
    with serve(
        reply(shell("cat /app/colors.txt; pwd"), finish="stop"), reply(content="", finish="length")
    ) as script:
        result = asyncio.run(trial("append-line", scripted(script.url), tmp_path))
    assert result.agent_result is not None
    metrics: dict[str, Any] = result.agent_result.metadata or {}
    assert (metrics["end"], metrics["exit_status"]) == ("length", "SequenceLengthLimitExceeded")
    assert (metrics["turns"], metrics["tool_calls"], reward(result)) == (2, 1, 0)
    assert script.requests[1]["messages"][-1]["content"] == "blue\ngreen\n/app\n[exit 0]"
    lines = (tmp_path / result.trial_name / "agent" / "trajectory.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["metrics"] == metrics


def test_an_instruction_reaches_the_model_as_it_is(tmp_path: Path) -> None:
    with serve(reply(content="Done.")) as script:
        asyncio.run(trial("append-line", scripted(script.url), tmp_path))
    assert script.requests[0]["messages"][1]["content"] == (SMOKE / "append-line/instruction.md").read_text()


def test_a_model_that_cannot_be_reached_leaves_no_exit_status(tmp_path: Path) -> None:
    with serve((500, "boom")) as script:
        result = asyncio.run(trial("append-line", scripted(script.url), tmp_path))
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "RecipeError"
    assert result.agent_result is not None
    assert "exit_status" not in (result.agent_result.metadata or {})


def test_a_background_job_does_not_hold_up_its_command(tmp_path: Path) -> None:
    calls = (shell("sleep 100 & echo $! > /tmp/job"), shell("kill -0 $(cat /tmp/job) && echo alive"))
    with serve(*map(reply, calls), reply(content="Done.")) as script:
        asyncio.run(trial("append-line", scripted(script.url), tmp_path))
    told = [message["content"] for message in script.requests[-1]["messages"] if message["role"] == "tool"]
    assert told == ["[exit 0]", "alive\n[exit 0]"]
