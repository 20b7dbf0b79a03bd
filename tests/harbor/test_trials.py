"""Real Harbor trials in the local sandbox, and what their replies say about training."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from proofs import left_in, processes_of

from recipe.harbor.channel import SandboxError
from recipe.harbor.sandbox import Sandbox
from recipe.harbor.trials import TrialReply, run_trial


def run(request) -> TrialReply:
    return asyncio.run(run_trial(request))


def reward(value: str) -> str:
    return f"printf '%s' '{value}' > /logs/verifier/reward.txt"


def rewards(**values: object) -> str:
    return f"echo '{json.dumps(values)}' > /logs/verifier/reward.json"


CHECK = 'if [ "$(cat answer 2>/dev/null)" = 42 ]; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt'


def test_oracle_scores_1_and_nop_0_and_the_metrics_are_measured(make_task, request_for, tmp_path) -> None:
    task = make_task(test=CHECK, solution="echo 42 > answer")
    oracle, nop = run(request_for(task, "oracle")), run(request_for(task, "nop"))
    assert (oracle.exit_status, oracle.reward, oracle.error) == ("Submitted", 1.0, None)
    assert (nop.exit_status, nop.reward, nop.eval_report) == ("Submitted", 0.0, {"reward": 0.0})
    assert {"spawn_time", "agent_run_time", "eval_time", "total_time"} <= nop.agent_metrics.keys()
    assert not {"turns", "n_input_tokens", "total_tool_time"} & nop.agent_metrics.keys()
    assert (tmp_path / "trials" / oracle.trial_name / "result.json").is_file()


def test_the_agents_metrics_are_passed_on_and_combined(make_task, request_for) -> None:
    metadata = {"turns": 4, "tool_calls": 2, "model_query_time_sum": 2.0, "env_execution_time_sum": 1.0}
    odd = {"end": "malformed:x", "nothing": None, "flag": True, "nan": math.nan}
    reply = run(request_for(make_task(), metadata=metadata | odd))
    metrics = reply.agent_metrics
    assert metrics | metadata == metrics
    assert not odd.keys() & metrics.keys()
    assert (metrics["model_query_time_avg"], metrics["env_execution_time_avg"]) == (0.5, 0.5)
    assert metrics["total_tool_time"] == 1.0
    assert metrics["time_per_turn"] == metrics["agent_run_time"] / 4
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize("status", ["Submitted", "TurnLimitExceeded", "SequenceLengthLimitExceeded"])
def test_the_agents_own_exit_status_stands_with_a_valid_reward(make_task, request_for, status) -> None:
    reply = run(request_for(make_task(test=reward("0.25")), metadata={"exit_status": status}))
    assert (reply.exit_status, reply.reward) == (status, 0.25)


@pytest.mark.parametrize(
    ("test", "error"),
    [
        (reward("7.5"), "reward is 7.5"),
        (reward("-0.1"), "reward is -0.1"),
        (reward("nan"), "VerifierOutputParseError"),
        (reward("passed"), "VerifierOutputParseError"),
        (reward(""), "RewardFileEmptyError"),
        ("true", "RewardFileNotFoundError"),
        ("exit 3", "RewardFileNotFoundError"),
        (rewards(reward="1"), "VerifierOutputParseError"),
        (rewards(reward=math.nan, other=1), "VerifierOutputParseError"),
    ],
)
def test_without_a_valid_reward_it_is_an_agent_error(make_task, request_for, test, error) -> None:
    reply = run(request_for(make_task(test=test), "nop"))
    assert (reply.exit_status, reply.reward) == ("AgentError", None)
    assert error in (reply.error or "")


@pytest.mark.parametrize(
    ("test", "value"),
    [(rewards(reward=0.5, other=1), 0.5), (rewards(accuracy=0.5), 0.5), (rewards(reward=True), 1)],
)
def test_json_rewards(make_task, request_for, test, value) -> None:
    assert run(request_for(make_task(test=test), "nop")).reward == value


def test_an_unknown_exception_or_exit_status_is_never_a_valid_reward(make_task, request_for) -> None:
    task = make_task()
    for options in (
        {"fails": "TypeError"},
        {"fails": "TimeoutError"},  # of the agent's own making, long before its time is up
        {"metadata": {"exit_status": "Perfect"}},
    ):
        reply = run(request_for(task, **options))
        assert (reply.exit_status, reply.reward) == ("AgentError", None), options
        assert reply.error


def test_the_agents_timeout_is_the_policys_and_is_graded(make_task, request_for) -> None:
    task = make_task(test=CHECK, agent_seconds=1)
    reply = run(request_for(task, commands=["echo 42 > answer"], sleep=1000))
    assert (reply.exit_status, reply.reward) == ("TimeLimitExceeded", 1.0)
    no_verdict = run(request_for(make_task("other", test="true", agent_seconds=1), sleep=1000))
    assert (no_verdict.exit_status, no_verdict.reward) == ("AgentError", None)


def test_a_slow_verifier_is_not_the_policys(make_task, request_for) -> None:
    reply = run(
        request_for(
            make_task(test="echo 1 > /logs/verifier/reward.txt; sleep 777001", verifier_seconds=1), "nop"
        )
    )
    assert (reply.exit_status, reply.reward) == ("AgentError", None)
    assert "VerifierTimeoutError" in (reply.error or "")
    assert not processes_of("sleep 777001")


def test_a_task_that_cannot_run_is_an_agent_error_with_its_reason(make_task, request_for, tmp_path) -> None:
    for task, reason in (
        (make_task("network", network="public"), "no-network"),
        (make_task("line", dockerfile="FROM x\nADD y /\n"), "line 2"),
        (make_task("build", dockerfile="FROM x\nRUN false\n"), "SandboxBuildFailedError"),
        (make_task("toml", more="not toml"), "TOMLDecodeError"),
        (tmp_path / "missing", "missing"),
    ):
        reply = run(request_for(task, "nop"))
        assert (reply.exit_status, reply.reward) == ("AgentError", None)
        assert reason in (reply.error or "")


def test_a_used_trial_folder_is_refused(make_task, request_for, tmp_path) -> None:
    (tmp_path / "trials/used").mkdir(parents=True)
    request = request_for(make_task(), "nop")
    reply = run(type(request)(**{**vars(request), "name": "used"}))
    assert (reply.exit_status, reply.error) == ("AgentError", "there is a trial of this name already")


def test_what_an_agent_leaves_running_cannot_write_the_reward(make_task, request_for) -> None:
    rewriter = (
        "setsid bash -c 'while sleep 0.01; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &"
    )
    task = make_task(test=f"{reward('0')}; sleep 0.1")
    assert run(request_for(task, commands=[rewriter, "mkdir -p /logs/verifier/reward.json"])).reward == 0.0


def test_50_mb_of_a_verifiers_output_are_cut_and_the_reward_stands(make_task, request_for, tmp_path) -> None:
    replied = run(request_for(make_task(test=f"{reward('0.5')}; yes | head -c 50000000"), "nop"))
    assert (replied.exit_status, replied.reward) == ("Submitted", 0.5)
    output = tmp_path / "trials" / replied.trial_name / "verifier/test-stdout.txt"
    assert 1 << 20 < output.stat().st_size <= 16 << 20


def test_a_full_disk_is_no_excuse_for_a_failure_that_is_not_the_verifiers(make_task, request_for) -> None:
    fill = "yes > /app/fill"
    for failure in ("TypeError", "TimeoutError"):
        request = request_for(make_task(test="true"), commands=[fill], fails=failure)
        small = {**request.environment, "override_storage_mb": 8}
        replied = run(replace(request, environment=small))
        assert (replied.exit_status, replied.reward) == ("AgentError", None)


def test_a_task_may_keep_the_service_that_it_asks_for(make_task, request_for) -> None:
    service = "setsid bash -c 'while sleep 0.01; do date > /app/beat; done' >/dev/null 2>&1 &"
    check = "rm -f /app/beat; sleep 0.5; test -e /app/beat && r=1 || r=0; echo $r > /logs/verifier/reward.txt"
    kept = make_task("kept", test=check, more="[metadata]\nkeep_processes = true\n")
    assert run(request_for(kept, commands=[service])).reward == 1
    assert run(request_for(make_task("killed", test=check), commands=[service])).reward == 0


def test_a_cancelled_trial_ends_with_its_sandbox(make_task, request_for, scratch_root: Path) -> None:
    async def main() -> None:
        request = request_for(make_task(), commands=["sleep 777002 >/dev/null 2>&1 &"], sleep=1000)
        task = asyncio.create_task(run_trial(request))
        async with asyncio.timeout(30):
            while not processes_of("sleep 777002"):
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not processes_of("sleep 777002")
        assert not left_in(scratch_root)

    asyncio.run(main())


def test_a_sandbox_that_does_not_end_is_told(
    make_task, request_for, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = Sandbox._end

    def stuck(box: Sandbox) -> None:
        end(box)
        raise SandboxError("a sandbox does not end", where=f"PID 1 is {box.pid}")

    monkeypatch.setattr(Sandbox, "_end", stuck)
    replied = run(request_for(make_task(), "nop"))
    (warning,) = (record for record in caplog.records if record.name == "recipe.harbor")
    assert replied.trial_name in warning.getMessage()
    assert "a sandbox does not end" in warning.getMessage()


def test_cancelling_at_any_moment_leaves_nothing(make_task, request_for, scratch_root: Path) -> None:
    async def main(pause: float) -> None:
        task = asyncio.create_task(
            run_trial(request_for(make_task(test="sleep 0.05; " + reward("1")), "nop"))
        )
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not left_in(scratch_root)

    for pause in (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25):
        asyncio.run(main(pause))
