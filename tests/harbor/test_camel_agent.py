"""The CAMEL agent against a real HTTP server with scripted replies."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from harbor.models.agent.context import AgentContext
from scripted_model import Script, Shell, call, reply, serve, shell

from recipe.errors import RecipeError
from recipe.harbor.camel_agent import SYSTEM_PROMPT, CamelAgent, CamelOptions
from recipe.harbor.camel_library import FunctionTool
from recipe.harbor.camel_model import VerbatimModel
from recipe.harbor.camel_tools import MAX_OUTPUT
from recipe.harbor.model_client import ModelClient
from recipe.harbor.trial_record import TrialRecord

INSTRUCTION = "Do <think>it</think>.\n"


@dataclass
class Played:
    """A finished trial."""

    context: AgentContext
    lines: list[dict[str, Any]]

    @property
    def metrics(self) -> dict[str, Any]:
        assert self.context.metadata is not None
        return self.context.metadata

    @property
    def end(self) -> tuple[str, str]:
        return self.metrics["end"], self.metrics["exit_status"]


def agent(script: Script, logs: Path, **options: Any) -> CamelAgent:
    return CamelAgent(logs, "openai/tiny", api_base=script.url, **{"max_iterations": 8, **options})


def play(script: Script, folder: Path, *, failure: Exception | None = None, **options: Any) -> Played:
    context, logs = AgentContext(), folder / "logs"
    asyncio.run(agent(script, logs, **options).run(INSTRUCTION, Shell(folder, failure), context))
    return Played(context, trajectory(logs))


def trajectory(logs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logs / "trajectory.jsonl").read_text().splitlines()]


def tool_results(request: dict[str, Any]) -> list[str]:
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def answer_to(folder: Path, *calls: dict[str, Any]) -> list[str]:
    """What the model is told after one turn with `calls`."""
    with serve(reply(*calls), reply(content="Done.")) as script:
        assert play(script, folder).end == ("done", "Submitted")
        return tool_results(script.requests[-1])


def test_a_solved_task_ends_as_submitted_with_its_metrics(tmp_path: Path) -> None:
    with serve(reply(shell("echo hi > f")), reply(shell("cat f")), reply(content="Done.")) as script:
        played = play(script, tmp_path)
    assert (tmp_path / "f").read_text() == "hi\n"
    assert played.end == ("done", "Submitted")
    assert (played.metrics["turns"], played.metrics["tool_calls"]) == (3, 2)
    assert played.metrics["model_query_time_sum"] > 0
    assert played.metrics["env_execution_time_sum"] > 0
    assert (played.context.n_input_tokens, played.context.n_output_tokens) == (300, 30)


def test_a_request_holds_the_model_the_messages_the_tools_and_the_sampling_asked_for(tmp_path: Path) -> None:
    sampling = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "no_stop_trim": True}
    with serve(reply(content="Done.")) as script:
        play(script, tmp_path, **sampling)
    (request,) = script.requests
    tools = [tool["function"]["name"] for tool in request.pop("tools")]
    assert tools == ["shell_exec", "shell_write_content_to_file"]
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": INSTRUCTION}]
    assert request == {"model": "tiny", "messages": messages, **sampling}


def test_replies_are_replayed_verbatim_and_history_only_grows(tmp_path: Path) -> None:
    odd = call('{"timeout":5,   "command":"echo caf\\u00e9 \\ud83d"}', call_id="a b/ü")
    first = reply(
        odd, content="I <think>look</think> ", reasoning_content="Hm.\n", refusal=None, extra={"x": [1]}
    )
    plain = call('{"command":"echo \\"<think>x</think>\\""}', call_id="c2")
    with serve(first, reply(plain), reply(content="Done.")) as script:
        assert play(script, tmp_path).end == ("done", "Submitted")
    one, two, three = (request["messages"] for request in script.requests)
    assert two[2] == first[1]["choices"][0]["message"]
    assert (one, two) == (two[: len(one)], three[: len(two)])
    assert three[-1]["content"] == "<think>x</think>\n[exit 0]"


@pytest.mark.parametrize(
    "later",
    [
        [{"role": "user", "content": "Do it?"}, {"role": "user", "content": "more"}],
        [],
        [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": "invented"}],
        [{"role": "assistant", "content": "Do it."}],
    ],
)
def test_a_history_that_was_not_only_appended_to_is_refused(
    tmp_path: Path, later: list[dict[str, str]]
) -> None:
    with TrialRecord(AgentContext(), tmp_path / "t.jsonl") as record:
        options = CamelOptions(api_base="http://127.0.0.1:1/v1", max_iterations=1)
        model = VerbatimModel(ModelClient("tiny", httpx.AsyncClient(), record, options), record)
        first = {"role": "user", "content": "Do it."}
        model.append([first])
        model.append([first, {"role": "tool", "content": "x"}])
        with pytest.raises(RecipeError, match="changed the conversation"):
            model.append([*later, {"role": "tool", "content": "x"}])


def test_the_tools_schemas_are_valid(tmp_path: Path) -> None:
    with serve(reply(content="Done.")) as script:
        play(script, tmp_path)
    for tool in script.requests[0]["tools"]:
        with pytest.warns(UserWarning, match="Parameter description"):  # left out: they cost prompt tokens
            FunctionTool.validate_openai_tool_schema(tool)


def test_parallel_calls_run_in_order_and_a_repeated_id_loses_no_result(tmp_path: Path) -> None:
    calls = [shell("echo one > f"), shell("cat f; echo two")]
    with serve(reply(*calls), reply(shell("echo three")), reply(content="Done.")) as script:
        played = play(script, tmp_path)
    assert tool_results(script.requests[-1]) == ["[exit 0]", "one\ntwo\n[exit 0]", "three\n[exit 0]"]
    assert played.metrics["tool_calls"] == 3


@pytest.mark.parametrize("arguments", ['{"command": "touch f"', "", "[]", "null", '"touch f"', "[" * 200_000])
def test_malformed_arguments_end_the_trial_before_any_call_of_the_turn_runs(
    tmp_path: Path, arguments: str
) -> None:
    with serve(reply(shell("touch f"), call(arguments))) as script:
        played = play(script, tmp_path)
    assert played.end == ("malformed:arguments", "Submitted")
    assert (len(script.requests), played.metrics["tool_calls"], (tmp_path / "f").exists()) == (1, 0, False)


def test_a_parse_error_of_the_server_ends_the_trial_as_malformed(tmp_path: Path) -> None:
    meta = {"miles_response_parse_error": "malformed_tool_json"}
    with serve(reply(content="half", choice_meta_info=meta)) as script:
        assert play(script, tmp_path).end == ("malformed:malformed_tool_json", "Submitted")
    assert len(script.requests) == 1


@pytest.mark.parametrize("calls", [(), (shell("touch f"),)])
def test_a_cut_reply_ends_the_trial_and_its_calls_never_run(tmp_path: Path, calls: tuple[Any, ...]) -> None:
    with serve(reply(*calls, content="and then", finish="length")) as script:
        assert play(script, tmp_path).end == ("length", "SequenceLengthLimitExceeded")
    assert (len(script.requests), (tmp_path / "f").exists()) == (1, False)


@pytest.mark.parametrize("content", ["", "   "])
def test_an_empty_reply_ends_the_trial_as_done(tmp_path: Path, content: str) -> None:
    with serve(reply(content=content)) as script:
        assert play(script, tmp_path).end == ("done", "Submitted")
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("{}", name="no_such_tool"), "no_such_tool"),
        (call("{}", name="\ud800"), "Tool '?' not found"),
        (call("{}"), "command"),
        (call('{"command": 7}'), "command must be text"),
        (call('{"command": "ls", "color": 1}'), "color"),
        (call('{"command": "ls", "timeout": "soon"}'), "timeout must be a whole number"),
        (call('{"command": "a\\u0000b"}'), "command must be text"),
        (call('{"command": "\\ud800"}'), "surrogates"),
        (shell("'" * 60_000), "longer than"),
    ],
)
def test_a_call_that_cannot_run_is_told_to_the_model(
    tmp_path: Path, wrong: dict[str, Any], told: str
) -> None:
    (result,) = answer_to(tmp_path, wrong)
    assert result.startswith("Tool execution failed")
    assert told in result


def test_a_command_tells_both_streams_in_order_and_its_exit_code(tmp_path: Path) -> None:
    assert answer_to(tmp_path, shell("echo a; echo b >&2; echo c; exit 3")) == ["a\nb\nc\n[exit 3]"]
    assert answer_to(tmp_path, shell("printf '\\xff\\n\\n'")) == ["?\n[exit 0]"]
    (result,) = answer_to(tmp_path, shell("if then"))
    assert result.endswith("[exit 2]")


def test_a_long_output_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    (result,) = answer_to(tmp_path, shell("echo HEAD; seq 100000; echo TAIL"))
    assert result.startswith("HEAD\n1\n")
    assert result.endswith("\n100000\nTAIL\n[exit 0]")
    assert len(result) < MAX_OUTPUT + 100
    assert "characters left out" in result


def test_a_command_that_overruns_its_timeout_is_ended_and_the_trial_goes_on(tmp_path: Path) -> None:
    (result,) = answer_to(tmp_path, shell("echo started; sleep 60", timeout=1))
    assert result == "started\n[timed out after 1 s]"


def test_a_sandbox_that_reports_its_time_limit_is_no_failure(tmp_path: Path) -> None:
    for limit in (TimeoutError(), RuntimeError("Command timed out after 75 seconds")):
        with serve(reply(shell("ls")), reply(content="Done.")) as script:
            play(script, tmp_path, failure=limit)
        assert tool_results(script.requests[-1]) == ["[timed out after 60 s]"]


def test_a_file_is_written_as_it_is_with_its_folders(tmp_path: Path) -> None:
    content = "it's $HOME\n\t`x` \\ é"
    path = tmp_path / "new folder" / "it's"
    arguments = json.dumps({"content": content, "file_path": str(path)})
    assert answer_to(tmp_path, call(arguments, name="shell_write_content_to_file")) == ["[exit 0]"]
    assert path.read_text() == content
    arguments = json.dumps({"content": content, "file_path": str(tmp_path)})
    (result,) = answer_to(tmp_path, call(arguments, name="shell_write_content_to_file"))
    assert result.endswith("Is a directory\n[exit 1]")


def test_a_sandbox_that_is_lost_fails_the_trial_and_is_never_told_to_the_model(tmp_path: Path) -> None:
    context = AgentContext()
    with serve(reply(shell("ls"), shell("ls"))) as script:
        trial = agent(script, tmp_path).run("Do it.", Shell(tmp_path, ConnectionError("gone")), context)
        with pytest.raises(RecipeError, match="gone"):
            asyncio.run(trial)
    assert len(script.requests) == 1
    assert context.metadata is not None
    assert "exit_status" not in context.metadata


def test_the_turn_limit_is_exact_and_the_last_turn_s_calls_run(tmp_path: Path) -> None:
    with serve(reply(shell("echo x >> f; cat f"))) as script:
        played = play(script, tmp_path, max_iterations=3)
    assert played.end == ("max_iterations", "TurnLimitExceeded")
    assert (len(script.requests), played.metrics["turns"], (tmp_path / "f").read_text()) == (3, 3, "x\n" * 3)
    assert [line["message"]["content"] for line in played.lines if "message" in line][
        -1
    ] == "x\nx\nx\n[exit 0]"


@pytest.mark.parametrize(
    "refusal",
    [
        "This model's maximum context length is 1024 tokens.",
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        "prompt is longer than max_seq_len",
    ],
)
def test_a_prompt_refused_for_its_length_ends_the_trial(tmp_path: Path, refusal: Any) -> None:
    with serve(reply(shell("ls")), (400, refusal)) as script:
        played = play(script, tmp_path)
    assert played.end == ("context", "SequenceLengthLimitExceeded")
    assert (played.metrics["turns"], len(script.requests)) == (1, 2)


def test_a_conversation_at_max_seq_len_ends_before_its_calls_run(tmp_path: Path) -> None:
    for limit, end in ((111, "done"), (110, "context")):
        with serve(reply(shell(f"touch {limit}")), reply(content="Done.")) as script:
            script.replies[1][1]["usage"] = None
            assert play(script, tmp_path, max_seq_len=limit).end[0] == end
    assert [path.name for path in tmp_path.glob("11?")] == ["111"]


@pytest.mark.parametrize(
    "failure",
    [
        (400, "the history was edited"),
        (429, "slow down"),
        (500, "boom"),
        (200, "no JSON"),
        (200, {"choices": []}),
        (200, {"choices": [{"message": {"tool_calls": [{"function": {"name": "x"}}]}}]}),
    ],
)
def test_any_other_answer_fails_the_trial_at_once_without_a_second_try(tmp_path: Path, failure: Any) -> None:
    context = AgentContext()
    with serve(reply(shell("ls")), failure) as script:
        with pytest.raises(RecipeError, match="a model call failed"):
            asyncio.run(agent(script, tmp_path).run("Do it.", Shell(tmp_path), context))
        assert len(script.requests) == 2
    assert context.metadata is not None
    assert (context.metadata["turns"], "end" in context.metadata) == (1, False)
    assert "RecipeError" in trajectory(tmp_path)[-1]["error"]


def test_a_server_that_is_not_there_or_too_slow_fails_the_trial(tmp_path: Path) -> None:
    with serve(reply(content="Done."), delay=0.3) as script:
        with pytest.raises(RecipeError, match="ReadTimeout"):
            play(script, tmp_path, request_timeout=0.1)
        assert len(script.requests) == 1
    with pytest.raises(RecipeError, match="ConnectError"):
        play(script, tmp_path)


@pytest.mark.parametrize(
    ("command", "reached"),
    [
        (
            "touch started; while [ -e started ]; do sleep 0.1; done",
            lambda script, folder: (folder / "started").exists(),
        ),
        ("true", lambda script, folder: len(script.requests) == 2),
    ],
    ids=["in a command", "in a model call"],
)
def test_a_cancelled_trial_keeps_its_metrics_and_its_trajectory(
    tmp_path: Path, command: str, reached: Callable[[Script, Path], bool]
) -> None:
    context = AgentContext()

    async def cancelled(script: Script) -> None:
        trial = asyncio.create_task(agent(script, tmp_path).run("Do it.", Shell(tmp_path), context))
        async with asyncio.timeout(10):
            while not reached(script, tmp_path):
                await asyncio.sleep(0.01)
        trial.cancel()
        (tmp_path / "started").unlink(missing_ok=True)  # ends the command, which outlives a killed timeout(1)
        with pytest.raises(asyncio.CancelledError) as raised:
            await trial
        told = "".join(traceback.format_exception(raised.value))
        assert "site-packages" not in told  # Harbor writes it several times, and a library's frames are many

    with serve(reply(shell(command)), delay=0.1) as script:
        asyncio.run(cancelled(script))
    assert context.metadata is not None
    assert (context.metadata["turns"], "end" in context.metadata) == (1, False)
    assert context.metadata["model_query_time_sum"] > 0
    assert trajectory(tmp_path)[-1]["metrics"] == context.metadata


def test_the_trajectory_file_holds_the_whole_conversation_in_order(tmp_path: Path) -> None:
    with serve(reply(shell("echo hi")), reply(content="Done.")) as script:
        played = play(script, tmp_path)
    said = [line["message"] for line in played.lines if "message" in line]
    assert said[:-1] == script.requests[-1]["messages"]
    assert said[-1]["content"] == "Done."
    assert played.lines[0]["tools"] == script.requests[0]["tools"]
    assert played.lines[-1]["metrics"] == played.metrics


@pytest.mark.parametrize(
    "options",
    [
        {"api_base": None},
        {"max_iterations": 0},
        {"min_p": 0.1},
        {"response_feedback": True},
        {"base_url": "http://127.0.0.1:1"},
        {"api_key": "secret"},
    ],
)
def test_an_option_that_the_agent_lacks_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    known = {"api_base": "http://127.0.0.1:1/v1", "max_iterations": 1, "response_feedback": False}
    CamelAgent(tmp_path, "openai/tiny", **known)
    with pytest.raises(ValueError, match="camel"):
        CamelAgent(tmp_path, "openai/tiny", **{**known, **options})


CONSTRUCTED_ALONE = """
import logging, pathlib, sys
from recipe.harbor.camel_agent import CamelAgent
from camel.logger import get_logger
CamelAgent(pathlib.Path("."), "openai/tiny", api_base="http://127.0.0.1:1/v1", max_iterations=1)
get_logger("agents").error("noise")
print(logging.getLogger().handlers, "litellm" in sys.modules)
"""


def test_an_agent_adds_no_log_handler_prints_nothing_and_does_not_import_litellm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONSTRUCTED_ALONE]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("[] False\n", "")


def test_a_failing_model_logs_nothing_beside_the_error(tmp_path: Path) -> None:
    with serve((500, "boom")) as script:
        seen: list[logging.LogRecord] = []
        spy = logging.Handler(logging.DEBUG)
        spy.emit = seen.append  # type: ignore[method-assign]
        logging.getLogger("camel").addHandler(spy)
        with pytest.raises(RecipeError):
            play(script, tmp_path)
        logging.getLogger("camel").removeHandler(spy)
    assert seen == []
