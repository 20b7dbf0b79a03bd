"""The launcher's side of the pinned Harbor's agent server: a stand-in that answers, fails, hangs and dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proofs import processes_of, wait_until
from standin.harbor_checkout import CHECKOUT, settings_of

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import backends
from recipe.harbor import server as module
from recipe.harbor.server import DOCKER, PASSED_ON, PASSED_ON_TO_HARBOR, SET, AgentServer, start_agent_server
from recipe.process import LOOPBACK

FLUSH = {"cancel_tasks": True, "kill_containers": True, "prune": False}
SECRETS = {"WANDB_API_KEY": "planted-1", "MODAL_TOKEN_SECRET": "planted-2", "DAYTONA_API_KEY": "planted-3"}


class Start:
    """Starts the stand-in, with the behaviour asked for, in an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, []
        self.log, self.record = folder / "logs/agent_server.log", folder / "trials/standin.jsonl"
        self.python = folder / "environment/bin/python"
        (folder / "tasks").mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"], check=True)
        (site,) = folder.glob("environment/lib/*/site-packages")
        (site / "harbor.pth").write_text(str(CHECKOUT / "src"))

    def __call__(self, behaviour: dict[str, Any] | None = None, **options: Any) -> AgentServer:
        (self.folder / "tasks/standin.json").write_text(json.dumps(behaviour or {}))
        arguments = {
            "tasks_dir": self.folder / "tasks",
            "trials_dir": self.folder / "trials",
            "agent": "camel",
            "backend": "docker",
            "host": LOOPBACK,
            "port": 0,
            "max_concurrent": 160,
            "agent_timeout_multiplier": 12,
            "log": self.log,
            "env": dict(os.environ) | SECRETS | {"HTTPS_PROXY": "http://proxy.invalid"},
            "harbor_python": self.python,
            "say": self.said.append,
        }
        return start_agent_server(**arguments | options)

    @property
    def recorded(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield Start(tmp_path)
    assert not list(running(tmp_path))


def running(folder: Path) -> Iterator[str]:
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder / "tasks") in text:
            yield text


def test_the_pinned_server_gets_its_arguments_and_is_ready_once_it_answers(start: Start) -> None:
    server = start()
    try:
        assert server.alive
        port = server.url.rpartition(":")[2]
        assert start.recorded[0]["argv"][1:] == [
            *("--tasks-dir", str(start.folder / "tasks"), "--trials-dir", str(start.folder / "trials")),
            *("--environment", "docker", "--host", LOOPBACK, "--port", port),
            *("--max-concurrent", "160", "--agent-timeout-multiplier", "12", "--no-access-log"),
        ]
    finally:
        server.stop()


def test_a_configuration_of_the_sandboxes_takes_the_place_of_the_backends_name(start: Start) -> None:
    config = start.folder / "environment.json"
    server = start(environment_config=config)
    server.stop()
    words = start.recorded[0]["argv"]
    assert words[words.index("--environment-config") + 1] == str(config)
    assert "--environment" not in words


def test_no_secret_but_the_chosen_backends_is_in_its_environment_and_none_is_anywhere_else(
    start: Start,
) -> None:
    values = {"daytona_api_key": SECRETS["DAYTONA_API_KEY"], "wandb_api_key": SECRETS["WANDB_API_KEY"]}
    settings = settings_of(start.folder, sandbox_backend="daytona", **values)
    server = start(backend="daytona", credentials=backends.credentials(settings))
    try:
        environment = start.recorded[0]["environment"]
        command = (Path("/proc") / str(server.process.leader.pid) / "cmdline").read_text()
    finally:
        server.stop()
    passed_on = {*PASSED_ON, *PASSED_ON_TO_HARBOR, *DOCKER}
    assert set(environment) <= {*passed_on, *SET, "DAYTONA_API_KEY", "LC_CTYPE"}
    assert environment["DAYTONA_API_KEY"] == "planted-3"
    assert environment["HTTPS_PROXY"] == "http://proxy.invalid"
    assert environment["HARBOR_TELEMETRY"] == "off"
    assert "planted" not in command + start.log.read_text() + "".join(start.said)
    assert "planted-1" not in json.dumps(start.recorded)
    with pytest.raises(RecipeError) as failed:
        start({"fail": 1}, backend="daytona", credentials=backends.credentials(settings))
    assert "planted" not in f"{failed.value}{failed.value.facts}"


def test_a_failing_start_shows_the_end_of_the_log(start: Start) -> None:
    with pytest.raises(RecipeError, match="ended unexpectedly") as failed:
        start({"fail": 1})
    assert "the sandbox backend has no room" in failed.value.facts["found"]
    assert failed.value.facts["where"] == str(start.log)
    with pytest.raises(BadInputError, match="refused to start") as refused:
        start(max_concurrent="many")
    assert "invalid int value: 'many'" in refused.value.facts["found"]


def test_a_hanging_start_ends_and_shows_the_log(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 1.0)
    with pytest.raises(RecipeError, match="not ready after 1 s") as failed:
        start({"hang": 1})
    assert "the stand-in starts" in failed.value.facts["found"]


def test_an_interruption_of_the_start_ends_the_server(start: Start) -> None:
    def watch() -> None:
        if start.record.is_file():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start({"hang": 1}, watch=watch)


def test_a_stop_flushes_the_trials_and_then_ends_the_whole_group(start: Start) -> None:
    server = start({"child": ["sleep", "778500"]})
    wait_until(lambda: processes_of("sleep 778500"))
    server.stop()
    assert start.recorded[1:] == [{"path": "/flush_all", "body": FLUSH}]
    assert not processes_of("sleep 778500")
    assert not start.said


def kill(server: AgentServer) -> None:
    os.kill(server.process.leader.pid, signal.SIGKILL)
    wait_until(lambda: not server.alive)


@pytest.mark.parametrize(
    ("behaviour", "before", "said"),
    [
        ({"flush": "fail"}, None, "HTTP 500"),
        ({"flush": "hang"}, None, "timed out"),
        ({"flush": "hang", "ignore_sigterm": 1}, None, "timed out"),
        ({}, kill, "Connection"),
    ],
)
def test_a_flush_that_fails_is_said_and_the_group_ends_all_the_same(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    behaviour: dict[str, Any],
    before: Callable[[AgentServer], None] | None,
    said: str,
) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    server = start({**behaviour, "child": ["sleep", "778600"]})
    wait_until(lambda: processes_of("sleep 778600"))
    if before:
        before(server)
    server.stop()
    assert "the agent server did not flush" in start.said[0]
    assert said in start.said[0]
    assert not server.alive
    assert not processes_of("sleep 778600")


def test_a_death_is_told_with_the_end_of_the_log(start: Start) -> None:
    server = start()
    kill(server)
    error = server.process.ended_early()
    server.stop()
    assert "exit code -9" in error.problem
    assert "the stand-in starts" in error.facts["found"]
