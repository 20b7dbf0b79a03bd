"""Each check before a run finds what it is for, and finds nothing on a sound machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from recipe.doctor import checks
from recipe.errors import BadInputError
from recipe.process import LOOPBACK
from recipe.resolve import load, load_sources
from recipe.tasks.prompts import agent_timeout_sec, build_rows, write_prompt_data


class Usage(NamedTuple):
    free: int


def settings_of(*arguments: str):
    return load("smoke", arguments)


def found(name: str, settings) -> list[BadInputError]:
    """What one check has against these settings."""
    (result,) = checks.look(settings, [name])
    assert (result.verdict == "FAIL") == bool(result.errors)
    return list(result.errors)


def test_a_sound_start_has_no_findings(empty_folder):
    settings = settings_of()
    # The machine's own folder of temporary files may be deep in a test.
    results = checks.look(settings, skip=["temporary folder"])
    assert [(one.check, one.found) for one in results if one.verdict == "FAIL"] == []
    assert list(empty_folder.iterdir()) == []


def test_several_findings_are_told_at_once(empty_folder):
    (empty_folder / "runs" / "used").mkdir(parents=True)
    with pytest.raises(BadInputError) as refused:
        checks.check(settings_of("RUN_NAME=used", "LOAD_DIR=missing"))
    assert "the run folder is in use" in str(refused.value)
    assert "LOAD_DIR holds no checkpoints" in str(refused.value)


def test_a_name_in_stop_on_that_is_no_alarm_is_refused(empty_folder):
    assert found("alarms", settings_of("STOP_ON=reward-fall")) == []
    (finding,) = found("alarms", settings_of("STOP_ON=reward-fal"))
    assert "reward-fall" in str(finding)


def test_a_malformed_prompt_row_is_named_by_its_line(empty_folder):
    (empty_folder / "rows.jsonl").write_text('{"label": "x"}\n')
    (finding,) = found("tasks", settings_of("PROMPT_DATA=rows.jsonl"))
    assert "rows.jsonl, line 1" in str(finding)


def test_a_prompt_without_a_task_directory_is_named(empty_folder):
    settings = settings_of("PROMPT_DATA=rows.jsonl")
    write_prompt_data(build_rows(settings.tasks_dir, "camel"), settings.prompt_data)
    assert found("tasks", settings) == []
    (empty_folder / "tasks").mkdir()
    (finding,) = found("tasks", settings_of("PROMPT_DATA=rows.jsonl", "TASKS_DIR=tasks"))
    assert "write-greeting: no directory write-greeting" in str(finding)


def test_an_agent_that_may_outlast_its_trial_is_found(empty_folder):
    assert found("deadlines", settings_of("HARBOR_AGENT_CALL_TIMEOUT_SEC=61")) == []
    (finding,) = found("deadlines", settings_of("HARBOR_AGENT_CALL_TIMEOUT_SEC=60"))
    assert "the agents of 8 tasks" in str(finding)
    assert "run      HARBOR_AGENT_CALL_TIMEOUT_SEC=75" in str(finding)
    (finding,) = found("deadlines", settings_of("HARBOR_AGENT_TIMEOUT_MULTIPLIER=2"))
    assert "found    120 s for " in str(finding)


@pytest.mark.parametrize("text", ["agent = 3", "[agent]\ntimeout_sec = 'long'", "]"])
def test_a_task_whose_settings_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(BadInputError, match=r"a task.s settings can.t be read[^$]*task.toml"):
        agent_timeout_sec(tmp_path)


@pytest.mark.parametrize("full", ["runs", "temporary"])
def test_a_full_disk_is_found_where_it_is(empty_folder, monkeypatch, full):
    place = empty_folder if full == "runs" else Path(tempfile.gettempdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10_000_000 if path == place else 2**40))
    (finding,) = found("disk", settings_of())
    assert str(place) in str(finding)
    assert "1.0 GiB" in str(finding)


def test_too_little_memory_is_found(monkeypatch, empty_folder):
    monkeypatch.setattr(checks, "MEMORY_BYTES", 2**60)
    (finding,) = found("free memory", settings_of())
    assert "available" in str(finding)


def test_a_busy_port_is_found_with_who_asked_for_it(empty_folder):
    with socket.create_server((LOOPBACK, 0)) as busy:
        port = busy.getsockname()[1]
        (finding,) = found("session servers' ports", settings_of(f"SESSION_SERVER_PORT={port}"))
    assert all(part in str(finding) for part in ("SESSION_SERVER_PORT", str(port), "argument", "ss -ltnp"))


def beside_a_free_port() -> socket.socket:
    """Listens on a port whose lower neighbour is free, below those that the system gives to whoever asks for any."""
    for port in range(20_000, 30_000, 2):
        with suppress(OSError):
            socket.create_server((LOOPBACK, port - 1)).close()
            return socket.create_server((LOOPBACK, port))
    raise AssertionError("no two free ports")


def test_every_busy_port_of_the_session_servers_of_a_cluster_is_found(empty_folder):
    with beside_a_free_port() as busy:
        port = busy.getsockname()[1]
        words = ["HEAD_IP=10.0.0.1", "TASKS_DIR=t", f"SESSION_SERVER_PORT={port - 1}"]
        (finding,) = found("session servers' ports", load("train-camel", [*words, "SESSION_SERVERS=2"]))
        assert str(port) in finding.facts["found"]
        assert not found("session servers' ports", load("train-camel", [*words, "SESSION_SERVERS=1"]))


@pytest.mark.parametrize("host", ["999.1.1.1", "no-such-host.invalid", "203.0.113.7", "x" * 70 + ".y", "::1"])
def test_a_host_that_cannot_be_bound_is_found(empty_folder, host):
    (finding,) = found("agent server's port", settings_of(f"AGENT_SERVER_HOST={host}"))
    assert "AGENT_SERVER_HOST can't be bound" in str(finding)
    assert host in str(finding)


def test_a_busy_port_of_the_agent_server_is_found_at_its_own_address(empty_folder):
    with socket.create_server(("127.0.0.2", 0)) as busy:
        port = f"AGENT_SERVER_PORT={busy.getsockname()[1]}"
        assert found("agent server's port", settings_of("AGENT_SERVER_HOST=127.0.0.2", port))
        assert not found("agent server's port", settings_of("AGENT_SERVER_HOST=127.0.0.3", port))


def test_prompts_from_a_pipe_are_refused_and_not_waited_for(empty_folder):
    os.mkfifo(empty_folder / "pipe")
    (finding,) = found("tasks", settings_of("PROMPT_DATA=pipe"))
    assert "PROMPT_DATA is no regular file" in str(finding)


def test_a_missing_folder_of_tasks_is_called_missing(empty_folder):
    (finding,) = found("tasks", settings_of("TASKS_DIR=none"))
    assert "the folder of TASKS_DIR is missing" in str(finding)


def test_runs_root_that_is_a_file_is_found(empty_folder):
    (empty_folder / "file").touch()
    for root in ("file", "file/below"):
        (finding,) = found("runs root", settings_of(f"RUNS_ROOT={root}"))
        assert "file is a file" in str(finding)


def test_runs_root_that_is_a_link_to_nothing_is_found(empty_folder):
    (empty_folder / "loop").symlink_to("loop")
    (empty_folder / "gone").symlink_to("nowhere")
    for root in ("loop", "gone", "gone/below"):
        (finding,) = found("runs root", settings_of(f"RUNS_ROOT={root}"))
        assert "leads nowhere" in str(finding)
    (empty_folder / "there").mkdir()
    (empty_folder / "link").symlink_to("there")
    assert found("runs root", settings_of("RUNS_ROOT=link/runs")) == []


def test_tasks_that_were_not_given_are_not_looked_for_in_the_working_directory(empty_folder):
    (empty_folder / "docs").mkdir()
    (finding,) = found("tasks", load_sources())
    assert finding.problem == "TASKS_DIR is not set"


def test_a_temporary_folder_too_deep_for_sockets_is_found(monkeypatch, empty_folder):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "deep" * 10)
    (finding,) = found("temporary folder", settings_of())
    assert "TMPDIR=/tmp" in str(finding)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert found("temporary folder", settings_of()) == []


def test_rows_are_built_only_when_none_are_given(empty_folder):
    built = checks.Prompts(settings_of()).rows
    assert [row.label for row in built] == sorted(row.label for row in built)
    (empty_folder / "rows.jsonl").write_text(
        json.dumps(
            {
                "label": "a",
                "prompt": [{"role": "user", "content": "x"}],
                "metadata": {"agent_name": "camel", "instance_id": "b"},
            }
        )
    )
    assert [row.label for row in checks.Prompts(settings_of("PROMPT_DATA=rows.jsonl")).rows] == ["a"]


def test_an_account_that_only_its_own_client_can_ask_is_skipped_with_that_reason(empty_folder):
    settings = load("train-camel", ["HEAD_IP=10.0.0.1", "TASKS_DIR=t", "SANDBOX_BACKEND=e2b"])
    (result,) = checks.look(settings, ["sandbox account"])
    assert (result.verdict, result.found) == ("skip", "only Harbor's own client can ask")


def test_a_launch_leaves_out_what_it_was_told_to_and_gets_the_prompt_rows(empty_folder):
    (empty_folder / "runs" / "used").mkdir(parents=True)
    settings = settings_of("RUN_NAME=used")
    with pytest.raises(BadInputError, match="the run folder is in use") as refused:
        checks.check(settings, ["temporary folder"])
    assert refused.value.facts["check"] == "run folder"
    rows = checks.check(settings, ["run folder", "temporary folder"])
    assert [row.label for row in rows] == [row.label for row in checks.Prompts(settings).rows]


@pytest.mark.parametrize("given", [True, False])
def test_the_prompts_are_read_once_for_all_who_look_at_them(empty_folder, monkeypatch, given):
    settings = settings_of("PROMPT_DATA=rows.jsonl") if given else settings_of()
    write_prompt_data(build_rows(settings.tasks_dir, "camel"), empty_folder / "rows.jsonl")
    read = []
    for name in ("read_prompt_data", "build_rows"):
        whole = getattr(checks, name)
        monkeypatch.setattr(checks, name, lambda *given, whole=whole: read.append(given) or whole(*given))
    assert len(checks.check(settings, ["temporary folder"])) == 8
    assert len(read) == 1


def test_what_needs_the_tasks_is_skipped_where_these_are_the_fault(empty_folder):
    settings = settings_of("PROMPT_DATA=none.jsonl")
    told = {one.check: (one.verdict, one.found) for one in checks.look(settings)}
    assert told["tasks"][0] == "FAIL"
    for name in ("deadlines", "engine"):
        assert told[name] == ("skip", "the tasks can't be read")


def test_folders_without_a_model_or_a_checkout_are_named_with_their_setting(empty_folder):
    words = ["HEAD_IP=10.0.0.1", "TASKS_DIR=t", "MODEL_ROOT=none", "MILES_DIR=none"]
    settings = load("train-camel", words)
    told = {
        finding.problem: finding for finding in (*found("model", settings), *found("checkouts", settings))
    }
    assert {"MODEL_DIR holds no model", "MILES_DIR is no such checkout"} <= told.keys()
    assert told["MILES_DIR is no such checkout"].facts["where"] == f"{empty_folder / 'none'} (argument)"
    assert told["MODEL_DIR holds no model"].facts["expected"] == "config.json"
