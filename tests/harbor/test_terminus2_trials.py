"""Real Harbor trials of Terminus-2 in the local sandbox: what each ending means, and what goes over the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from proofs import left_in, processes_of, wait_until
from scripted_model import Script, reply, serve

from recipe.harbor import quiet_terminal
from recipe.harbor.trials import TrialReply, TrialRequest, run_trial

AGENT = "recipe.harbor.terminus2_agent:Terminus2Agent"
HISTORY = {"role", "content", "reasoning_content"}


def turn(*keystrokes: str, duration: object = 0.2, done: bool = False, **message: Any) -> tuple[int, Any]:
    """A reply in Terminus-2's form; `done`: it says that the task is complete."""
    return reply(content=commands(*keystrokes, duration=duration, done=done), **message)


def commands(*keystrokes: str, duration: object = 0.2, done: bool = False) -> str:
    listed = [{"keystrokes": keys, "duration": duration} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": listed, "task_complete": done})


DONE = turn(done=True)


@dataclass
class Played:
    reply: TrialReply
    requests: list[dict[str, Any]]
    folder: Path

    @property
    def end(self) -> tuple[str, float | None]:
        return self.reply.exit_status, self.reply.reward

    @property
    def told(self) -> list[str]:
        """What the last request's user messages say."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "user"]

    @property
    def record(self) -> list[dict[str, Any]]:
        lines = (self.folder / "agent/trajectory.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def play(make_task, request_for) -> Callable[..., Played]:
    """Plays replies in a trial of a task that scores 1 whatever is done; `task`: of make_task."""
    count = 0

    def played(*replies: tuple[int, Any], task: dict[str, Any] | None = None, **options: Any) -> Played:
        nonlocal count
        count += 1
        with serve(*replies) as script:
            request = trial(script, request_for, make_task(f"task{count}", **task or {}), **options)
            result = asyncio.run(run_trial(request))
        return Played(result, script.requests, request.trials_dir / result.trial_name)

    return played


def trial(script: Script, request_for: Any, task: Path, **options: Any) -> TrialRequest:
    asked = {"api_base": script.url, "max_iterations": 8, **options}
    return replace(request_for(task, agent=AGENT, **asked), model="openai/tiny")


def test_a_solved_task_is_submitted_with_metrics_and_its_whole_conversation(play) -> None:
    played = play(turn("echo hi > f\n", "cat f\n"), turn("pwd\n", done=True), DONE)
    assert (played.end, played.reply.error) == (("Submitted", 1), None)
    assert "root@sandbox:/app# cat f\nhi\n" in played.told[1]
    metrics = played.reply.agent_metrics
    assert (metrics["turns"], metrics["tool_calls"]) == (3, 3)
    assert (metrics["n_input_tokens"], metrics["n_output_tokens"]) == (300, 30)
    assert metrics["env_execution_time_sum"] > 0.3 > metrics["model_query_time_sum"] > 0
    said = [line["message"] for line in played.record if "message" in line]
    assert said == [*played.requests[-1]["messages"], DONE[1]["choices"][0]["message"]]
    assert played.record[-1]["metrics"]["end"] == "done"
    assert sorted(path.name for path in (played.folder / "agent").iterdir()) == ["trajectory.jsonl"]


FULL = (400, {"error": {"message": "This model's maximum context length is 1024 tokens."}})


@pytest.mark.parametrize(
    ("replies", "options", "calls", "end"),
    [
        ([turn("ls\n", finish="length")], {}, 1, ("SequenceLengthLimitExceeded", 1)),
        ([reply(content="", finish="length")], {}, 1, ("SequenceLengthLimitExceeded", 1)),
        ([turn("ls\n"), FULL], {}, 2, ("SequenceLengthLimitExceeded", 1)),
        ([turn("touch ran\n")], {"max_seq_len": 110}, 1, ("SequenceLengthLimitExceeded", 1)),
        ([turn("true\n")], {"max_iterations": 3}, 3, ("TurnLimitExceeded", 1)),
        ([DONE], {"max_iterations": 1}, 1, ("TurnLimitExceeded", 1)),
        ([DONE], {"max_iterations": 2, "max_seq_len": 111}, 2, ("Submitted", 1)),
        ([(500, "boom")], {}, 1, ("AgentError", None)),
        ([(429, "slow down")], {}, 1, ("AgentError", None)),
        ([(400, "the history was edited")], {}, 1, ("AgentError", None)),
        ([(200, "no JSON")], {}, 1, ("AgentError", None)),
        ([(200, {"choices": []})], {}, 1, ("AgentError", None)),
        ([turn("ls\n")], {"api_base": "http://127.0.0.1:1/v1"}, 0, ("AgentError", None)),
    ],
    ids=[
        *("cut", "cut at once", "context", "max_seq_len", "turns", "confirmation", "done at the limit"),
        *("500", "429", "400", "no JSON", "no choice", "refused"),
    ],
)
def test_each_ending_comes_at_the_first_call_and_says_whose_doing_it_was(
    play, replies: list[Any], options: dict[str, Any], calls: int, end: tuple[str, float | None]
) -> None:
    played = play(*replies, **options)
    assert played.end == end, played.reply.error
    assert len(played.requests) == calls
    assert (played.reply.error is None) == (end[1] is not None)


@pytest.mark.parametrize("keystrokes", ["", "kill -STOP -1\n"], ids=["a wait", "a stopped terminal"])
def test_the_agent_s_time_limit_ends_a_turn_that_does_not_end(play, keystrokes: str) -> None:
    played = play(turn(keystrokes, "ls\n", duration=0 if keystrokes else 60), task={"agent_seconds": 1})
    assert played.end == ("TimeLimitExceeded", 1)
    assert played.reply.agent_metrics["env_execution_time_sum"] > 0.5


@pytest.mark.parametrize(
    "keystrokes",
    [
        ["exit\n"],
        ["exit\n", "ls\n"],
        ["tmux kill-server\n"],
        ["rm -rf /tmp/*\n", "ls\n"],
        ["kill -9 -1\n", "ls\n"],
        ["chmod 0 /tmp\n", f"echo {'x' * 20_000}\n"],
    ],
)
def test_a_terminal_that_the_policy_closes_is_submitted_and_judged(play, keystrokes: list[str]) -> None:
    played = play(turn(*keystrokes))
    assert played.end == ("Submitted", 1), played.reply.error
    assert (len(played.requests), played.record[-1]["metrics"]["end"]) == (1, "terminal_closed")


def test_what_was_said_goes_back_exactly_as_it_came(play) -> None:
    odd = {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}]}
    replies = [
        turn("ls\n", reasoning_content=" Hm.\n\n", refusal=None),
        reply(content="", reasoning_content="é \ud83d \u2028<think>"),
        reply(content=f"  {commands('ls\n')} \n\n", reasoning_content=""),
        reply(content=None, **odd),
        turn("echo 'é 日本 👍'\n"),
        DONE,
    ]
    played = play(*replies)
    assert played.end == ("Submitted", 1), played.reply.error
    sent = [body["choices"][0]["message"] for _, body in [*replies, DONE]]
    for number, request in enumerate(played.requests):
        messages = request["messages"]
        assert [message["role"] for message in messages[::2]] == ["user"] * (number + 1)
        assert messages[1::2] == sent[:number]
        assert number == 0 or messages[: 2 * number] == [
            *played.requests[number - 1]["messages"],
            sent[number - 1],
        ]
    assert "echo 'é 日本 👍'\né 日本 👍\nroot@sandbox:/app#" in played.told[5]


def test_without_interleaved_thinking_only_the_reasoning_is_left_out(play) -> None:
    played = play(turn(done=True, reasoning_content="Hm."), DONE, interleaved_thinking=False)
    assert played.requests[1]["messages"][1] == DONE[1]["choices"][0]["message"]


def test_a_request_holds_the_model_the_messages_and_the_sampling_asked_for(play) -> None:
    sampling = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    sampling |= {"skip_special_tokens": False, "no_stop_trim": True}
    request = play(DONE, interleaved_thinking=True, max_seq_len=4096, **sampling).requests[0]
    (prompt,) = request.pop("messages")
    assert request == {"model": "tiny", **sampling}
    assert (
        "Task Description:\nDo it.\n\n\nCurrent terminal state:\nCurrent Terminal Screen:\nroot@sandbox:/app#\n"
        in (prompt["content"])
    )


@pytest.mark.parametrize(
    "option", [{"min_p": 0.1}, {"enable_summarize": True}, {"parser_name": "xml"}, {"max_iterations": 0}]
)
def test_an_option_that_the_agent_lacks_is_refused(play, option: dict[str, Any]) -> None:
    played = play(DONE, **option)
    assert (played.reply.exit_status, len(played.requests)) == ("AgentError", 0)
    assert next(iter(option)) in (played.reply.error or "")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "I'll do it.",
        '{"analysis": "a", "plan": "p", "commands": [',
        '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": 5}]}',
        '{"analysis": "\\ud83d", "plan": "p", "commands": []}',
        '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "\\u0000", "duration": 0}]}',
        '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "\\udc80", "duration": 0}]}',
        '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "", "\\udc80": 1}]}',
        f'{{"analysis": "a", "plan": "p", "commands": [{{"keystrokes": "", "duration": 1{"0" * 400}}}]}}',
        f'{{"analysis": {"9" * 5000}, "plan": "p", "commands": []}}',
        '{"analysis": ' + "[" * 100_000 + "]" * 100_000 + ', "plan": "p", "commands": []}',
        '{"commands": null, "plan": [], "analysis": {}}',
    ],
    ids=range(12),
)
def test_a_reply_that_is_not_in_the_form_costs_a_turn_and_no_more(play, content: str) -> None:
    played = play(reply(content=content), DONE)
    assert played.end == ("Submitted", 1), played.reply.error
    assert played.reply.agent_metrics["tool_calls"] == 0
    assert played.told[1].startswith("Previous response had parsing errors:\nERROR: ")
    assert played.requests[-1]["messages"][1]["content"] == content


@pytest.mark.parametrize("duration", [float("nan"), float("-inf"), -5, True, "long", None])
def test_a_strange_duration_runs_the_command(play, duration: object) -> None:
    played = play(turn("touch strange\n", duration=duration), turn("ls\n"), DONE)
    assert played.end == ("Submitted", 1), played.reply.error
    assert "strange" in played.told[2]


def test_a_flood_of_output_is_bounded_in_the_prompt_and_on_disk(play) -> None:
    flood = turn("yes 0123456789 | head -n 1000000; echo E''ND\n", duration=3)
    played = play(turn("true\n"), flood, turn("pwd\n"), DONE)
    assert played.end == ("Submitted", 1)
    assert max(map(len, played.told[1:])) < 12_000
    assert "\n0123456789\nEND\nroot@sandbox:/app#" in played.told[2]
    assert sum(path.stat().st_size for path in played.folder.rglob("*") if path.is_file()) < 1_000_000


LATE = [
    "sleep 1; echo la''te\n",
    "x=$(sleep 1; echo late); echo $x\n",
    "for i in 1 2; do sleep 0.5; done; echo la''te\n",
    "yes 0123456789 | head -n 300000; sleep 1; echo la''te\n",
]


@pytest.mark.parametrize("keystrokes", LATE, ids=["program", "substitution", "loop", "flood"])
def test_until_it_is_quiet_the_terminal_is_not_looked_at(play, keystrokes: str) -> None:
    replies = [turn("true\n"), turn(keystrokes, duration=0), DONE]
    end = "\nlate\nroot@sandbox:/app#\n"
    assert end in play(*replies, until_quiet=True).told[2]
    assert end not in play(*replies).told[2]


@pytest.mark.parametrize(
    ("keystrokes", "shown"),
    [
        ("echo 'a\nb\n", "echo 'a\n> b\n>\n"),
        ("read x\n", "read x\n"),
        ("set -o vi; cat\n", "cat\n"),
        ("kill -STOP $$\n", "kill -STOP $$\n"),
    ],
    ids=["open quote", "builtin", "program", "stopped shell"],
)
def test_a_terminal_that_waits_for_more_is_looked_at_all_the_same(
    play, monkeypatch: pytest.MonkeyPatch, keystrokes: str, shown: str
) -> None:
    monkeypatch.setattr(quiet_terminal, "LIMIT_SECONDS", 1)
    played = play(turn("true\n"), turn(keystrokes, duration=0), DONE, until_quiet=True)
    assert played.end == ("Submitted", 1), played.reply.error
    assert shown in played.told[2]


def test_a_quiet_terminal_that_the_policy_closes_is_submitted_and_judged(play) -> None:
    played = play(turn("exit\n"), until_quiet=True)
    assert played.end == ("Submitted", 1), played.reply.error
    assert (len(played.requests), played.record[-1]["metrics"]["end"]) == (1, "terminal_closed")


def test_a_long_command_arrives_whole_and_special_keys_are_pressed(play) -> None:
    text = "x" * 40_000
    played = play(
        turn(f"cat > f <<'E'\n{text}\nE\n", "wc -c f\n", duration=0.5), turn("cat\n", "C-c", "pwd\n"), DONE
    )
    assert "40001 f" in played.told[1]
    assert "^C\nroot@sandbox:/app# pwd\n/app\n" in played.told[2]


def test_a_trial_that_is_cancelled_in_mid_turn_leaves_nothing(make_task, request_for, scratch_root) -> None:
    async def cancelled(script: Script) -> None:
        task = asyncio.create_task(run_trial(trial(script, request_for, make_task())))
        await asyncio.to_thread(wait_until, lambda: processes_of("sleep 777600"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serve(turn("setsid sleep 777600\n", duration=60)) as script:
        asyncio.run(cancelled(script))
    assert len(script.requests) == 1
    assert not processes_of("sleep 777600")
    assert not left_in(scratch_root)
