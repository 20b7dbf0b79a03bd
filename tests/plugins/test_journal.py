"""The journal: each trial's start and end and each group, in whole lines; and a disk that is full costs no trial."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_agent_server import answering, serving

from recipe.plugins import agent, audit, filters, journal

ANSWER = {"reward": 1.0, "exit_status": "Submitted", "agent_metrics": {}, "trial_name": "a__1"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "journal.jsonl"
    monkeypatch.setenv("RUN_JOURNAL", str(path))
    monkeypatch.setitem(journal._state, "broken", False)
    journal.set_rollout(7)
    return path


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def run(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AGENT_SERVER_URL", url)
    where = {"base_url": "http://127.0.0.1:1/sessions/0123", "prompt": [], "request_kwargs": {}}
    return asyncio.run(agent.run(**where, metadata={"instance_id": "a"}))


def untimed(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("time", "seconds")}


def test_a_trial_has_its_start_and_its_end(file, monkeypatch):
    with serving(answering(**ANSWER)) as server:
        run(server.url, monkeypatch)
    started, done = lines(file)
    trial = {"kind": "trial", "rollout": 7, "trial": "0123", "task": "a"}
    assert untimed(started) == trial | {"state": "started"}
    assert untimed(done) == trial | {
        "state": "done",
        "reward": 1.0,
        "exit_status": "Submitted",
        "trial_name": "a__1",
    }
    assert done["time"] >= started["time"]
    assert done["seconds"] > 0


def test_a_failed_trial_says_why_but_not_at_any_length(file, monkeypatch):
    with serving(answering(reward=None, exit_status="AgentError", error="x" * 1_000_000)) as server:
        run(server.url, monkeypatch)
    done = lines(file)[1]
    assert (done["exit_status"], done["reward"], len(done["error"])) == (
        "AgentError",
        None,
        agent.ERROR_LENGTH,
    )


def sample(**metadata: Any) -> SimpleNamespace:
    """Two turns of two and one ids, with an observation between them."""
    given = {"instance_id": "a", "trial_name": "a__1", "exit_status": "Submitted", "reward": 0.5} | metadata
    return SimpleNamespace(
        index=3, status="truncated", tokens=[1, 2, 3, 4, 5], loss_mask=[1, 1, 0, 1], metadata=given
    )


def test_a_group_tells_what_became_of_each_trial(file):
    filters.keep_group(None, [sample(), sample(exit_status="AgentError", reward=None)])
    (group,) = lines(file)
    assert (group["kind"], group["rollout"], group["kept"], group["reason"]) == (
        "group",
        7,
        False,
        "agent_error",
    )
    assert group["trials"][0] == {
        "sample": 3,
        "task": "a",
        "trial_name": "a__1",
        "reward": 0.5,
        "exit_status": "Submitted",
        "status": "truncated",
        "turns": 2,
        "response_tokens": 3,
    }
    assert (group["trials"][1]["exit_status"], group["trials"][1]["reward"]) == ("AgentError", None)


def test_an_aborted_sample_without_tokens_is_told_too(file):
    filters.keep_group(
        None, [SimpleNamespace(index=0, status="aborted", tokens=[], loss_mask=None, metadata=None)]
    )
    (trial,) = lines(file)[0]["trials"]
    assert (trial["status"], trial["turns"], trial["response_tokens"]) == ("aborted", 0, 0)


def test_native_tool_blocks_are_counted_where_they_are_no_habit(file, monkeypatch):
    one = sample()
    one.tokens[1] = min(audit.NATIVE_TOOL_BLOCK)
    monkeypatch.setenv("HARBOR_AGENT_NAME", "terminus-2")
    filters.keep_group(None, [one])
    assert lines(file)[0]["trials"][0]["native_blocks"] == 1


def test_the_audits_example_is_told(file, monkeypatch):
    monkeypatch.setenv("AUDIT_MAX_STRICT", "1")
    mismatch = {"type": "assistant_text", "expected_text": "this", "actual_text": "that"}
    audit.audit([sample(tito_session_mismatch=[mismatch])])
    (told,) = lines(file)
    assert (told["kind"], told["rollout"]) == ("audit", 7)
    assert told["example"] == "assistant_text: 'that' was sampled or replayed, the template writes 'this'"
    audit.audit([sample(tito_session_mismatch=[])])
    assert len(lines(file)) == 1


@pytest.mark.parametrize("full", ["/dev/full", "/nowhere/journal.jsonl"])
def test_a_journal_that_can_not_be_written_costs_no_trial_and_is_told_once(file, monkeypatch, caplog, full):
    monkeypatch.setenv("RUN_JOURNAL", full)
    with serving(answering(**ANSWER)) as server:
        result = run(server.url, monkeypatch)
    assert result["reward"] == 1.0
    assert caplog.text.count("can't be written") == 1


def test_a_line_that_was_cut_takes_no_other_with_it(file, monkeypatch):
    whole = journal.os.write
    monkeypatch.setattr(journal.os, "write", lambda handle, line: whole(handle, line[:9]))
    journal.write("trial", trial="cut")
    monkeypatch.setattr(journal.os, "write", whole)
    journal.write("trial", trial="whole")
    journal.write("trial", trial="next")
    _, *others = file.read_text().splitlines()
    assert [json.loads(line)["trial"] for line in others] == ["whole", "next"]


def test_lines_of_many_writers_never_mix(file):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: journal.write("trial", trial=number, task="x" * 9000), range(200)))
    assert sorted(line["trial"] for line in lines(file)) == list(range(200))


def test_nothing_is_written_where_no_journal_is_named(file, monkeypatch):
    monkeypatch.delenv("RUN_JOURNAL")
    journal.write("trial", trial="x")
    assert not file.exists()
