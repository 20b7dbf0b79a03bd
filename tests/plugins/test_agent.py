"""The agent function and its abort hook against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from small_agent_server import answering, serving

from recipe.plugins import agent
from recipe.process import free_port

METADATA = {
    "agent_name": "camel",
    "instance_id": "count-lines",
    "max_seq_len": 2048,
    "session_server_id": "10.0.0.5:30001",
    "session_server_instance_id": "abc",
    "lifecycle": 1,
}
BASE_URL = "http://10.0.0.5:30001/sessions/s1"
RESULT = {
    "reward": 1.0,
    "exit_status": "Submitted",
    "eval_report": {"passed": 3},
    "agent_metrics": {"turns": 4},
    "trial_name": "t",
    "error": None,
}


def run(**changed: Any) -> dict[str, Any]:
    arguments = {
        "base_url": BASE_URL,
        "prompt": [{"role": "user", "content": "go"}],
        "request_kwargs": {"temperature": 1.0, "max_tokens": 96},
        "metadata": METADATA,
        **changed,
    }
    return asyncio.run(agent.run(**arguments))


def test_a_trial_is_posted_once_with_all_that_the_agent_needs(monkeypatch):
    with serving(answering(**RESULT, secret="x")) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", f"{server.url}/")
        assert run() == RESULT
    assert server.requests == [
        (
            "/run",
            {
                "agent_name": "camel",
                "instance_id": "count-lines",
                "lifecycle": 1,
                "session_server_id": "10.0.0.5:30001",
                "session_server_instance_id": "abc",
                "base_url": f"{BASE_URL}/v1",
                "model": "openai/inkling-small",
                "sampling_params": {
                    "temperature": 1.0,
                    "max_tokens": 96,
                    "max_iterations": 50,
                    "response_feedback": False,
                    "max_response_feedback": 0,
                },
                "max_seq_len": 1048576,
            },
        )
    ]


@pytest.mark.parametrize(("host", "netloc"), [("head.example", "head.example"), ("fd00::1", "[fd00::1]")])
def test_sandboxes_reach_the_session_server_under_its_external_host(monkeypatch, host, netloc):
    with serving(answering(**RESULT)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        monkeypatch.setenv("MILES_ROUTER_EXTERNAL_HOST", host)
        run()
    body = server.requests[0][1]
    assert body["base_url"] == f"http://{netloc}:30001/sessions/s1/v1"
    assert body["session_server_id"] == f"{netloc}:30001"


def test_only_terminus_is_told_about_thinking_and_only_camel_about_feedback(monkeypatch):
    with serving(answering(**RESULT)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        monkeypatch.setenv("HARBOR_AGENT_NAME", "terminus-2")
        monkeypatch.setenv("HARBOR_INTERLEAVED_THINKING", "true")
        run(metadata={"instance_id": "t"})
    body = server.requests[0][1]
    assert body["sampling_params"] == {
        "temperature": 1.0,
        "max_tokens": 96,
        "max_iterations": 50,
        "interleaved_thinking": True,
    }
    assert "session_server_id" not in body


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((500, b"boom"), "500: boom"),
        ((422, b'{"detail": "no instance_id"}'), "no instance_id"),
        ((200, b"<html>"), "JSON object"),
        ((200, b"[1]"), "JSON object"),
        ((200, b'{"exit_status": 3}'), "exit_status"),
        ((200, b'{"exit_status": "Submitted", "agent_metrics": [1]}'), "agent_metrics"),
    ],
)
def test_an_answer_that_is_none_is_an_agent_error_and_never_posted_again(monkeypatch, answer, says):
    with serving(lambda *_: answer) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        result = run()
    assert (result["reward"], result["exit_status"], len(server.requests)) == (None, "AgentError", 1)
    assert says in result["error"]
    assert list(agent.recent_errors) == [result["error"]]


def test_a_trial_that_was_cancelled_is_not_what_went_wrong(monkeypatch):
    with serving(answering(reward=None, exit_status="Flushed", error="flushed")) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        assert run()["exit_status"] == "Flushed"
    assert not agent.recent_errors


def test_an_answer_without_a_status_is_unknown(monkeypatch):
    with serving(answering(reward=1.0)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        assert run() == {"reward": 1.0, "exit_status": "Unknown"}


def test_a_dead_agent_server_is_an_agent_error(monkeypatch):
    monkeypatch.setenv("AGENT_SERVER_URL", f"http://127.0.0.1:{free_port()}")
    assert run()["exit_status"] == "AgentError"


def test_a_trial_past_its_deadline_is_an_agent_error_that_names_the_setting(monkeypatch):
    release = threading.Event()

    def slow(*_: object) -> tuple[int, bytes]:
        release.wait(10)
        return 200, b"{}"

    with serving(slow) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        monkeypatch.setenv("HARBOR_AGENT_CALL_TIMEOUT_SEC", "0.1")
        result = run()
        release.set()
    assert result["exit_status"] == "AgentError"
    assert "HARBOR_AGENT_CALL_TIMEOUT_SEC" in result["error"]


@pytest.mark.parametrize("name", ["AGENT_SERVER_URL", "AGENT_MODEL_NAME", "HARBOR_MAX_SEQ_LEN"])
def test_a_missing_setting_is_named(monkeypatch, name):
    monkeypatch.setenv("AGENT_SERVER_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv(name)
    assert name in run()["error"]


def test_cancelling_a_trial_is_not_swallowed(monkeypatch):
    entered, release = threading.Event(), threading.Event()

    def slow(*_: object) -> tuple[int, bytes]:
        entered.set()
        release.wait(10)
        return 200, b"{}"

    async def cancel() -> None:
        trial = asyncio.create_task(agent.run(BASE_URL, None, {}, METADATA))
        await asyncio.to_thread(entered.wait)
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial

    with serving(slow) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        asyncio.run(cancel())
        release.set()


def test_many_trials_are_in_flight_at_once(monkeypatch):
    all_in = threading.Barrier(40)

    def meet(*_: object) -> tuple[int, bytes]:
        all_in.wait(10)  # breaks unless all of them are here at once
        return 200, json.dumps(RESULT).encode()

    async def run_all() -> list[dict[str, Any]]:
        return await asyncio.gather(*(agent.run(BASE_URL, None, {}, METADATA) for _ in range(40)))

    with serving(meet) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        results = asyncio.run(run_all())
    assert {result["exit_status"] for result in results} == {"Submitted"}


@pytest.mark.parametrize(
    ("args", "flushed"),
    [
        ({"session_server_instance_ids": {30000: "a", 30001: "b"}}, {"a", "b"}),
        ({"session_server_instance_ids": None, "session_server_instance_id": "c"}, {"c"}),
        ({"session_server_instance_ids": {1: "a"}, "session_server_instance_id": "a"}, {"a"}),
    ],
)
def test_abort_flushes_every_session_server_once(monkeypatch, args, flushed):
    with serving(answering(cancelled=2)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        asyncio.run(agent.abort(SimpleNamespace(**args)))
    assert sorted(body["session_server_instance_id"] for _, body in server.requests) == sorted(flushed)
    assert {path for path, _ in server.requests} == {"/flush"}


def test_abort_tells_which_flush_failed_after_trying_all(monkeypatch):
    def answer(_: str, body: dict[str, Any]) -> tuple[int, bytes]:
        failing = body["session_server_instance_id"] == "b"
        return (500, b"stuck") if failing else (200, b'{"cancelled": 1}')

    with serving(answer) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        args = SimpleNamespace(session_server_instance_ids={1: "a", 2: "b", 3: "c"})
        with pytest.raises(agent.AgentAbortError, match=r"1 of 3 .*stuck"):
            asyncio.run(agent.abort(args))
    assert len(server.requests) == 3


def test_abort_needs_a_number_of_cancelled_trials_and_something_to_flush(monkeypatch):
    with serving(answering(ok=True)) as server:
        monkeypatch.setenv("AGENT_SERVER_URL", server.url)
        with pytest.raises(agent.AgentAbortError, match="cancelled"):
            asyncio.run(agent.abort(SimpleNamespace(session_server_instance_ids={1: "a"})))
    with pytest.raises(agent.AgentAbortError, match="instance id"):
        asyncio.run(agent.abort(SimpleNamespace()))
