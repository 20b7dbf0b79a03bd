"""A real agent server over HTTP: the contract of /run, the flushes, and what is left when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from proofs import exists, left_in, processes_of, wait_until
from scripted_model import reply, serve

from recipe.errors import BadInputError
from recipe.harbor import agent_server, sandbox
from recipe.harbor import server as launcher
from recipe.harbor.server import AgentServer, start_agent_server
from recipe.process import LOOPBACK, ProcessGroup, free_port


@dataclass
class Client:
    """What a training worker does, from as many threads as it has trials."""

    server: AgentServer
    scratch: Path
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    def run(self, session: str = "1", *, instance: str = "x", **options: Any) -> Future[dict[str, Any]]:
        keys = {
            key: options.pop(key)
            for key in ("instance_id", "base_url", "trial_name", "agent_name")
            if key in options
        }
        body = {
            "instance_id": "task",
            "base_url": f"http://127.0.0.1:1/sessions/{session}/v1",
            "model": "openai/inkling-small",
            "agent_name": "scripted",
            "sampling_params": {"max_iterations": 50, "temperature": 1.0, **options},
            "max_seq_len": 4096,
            "session_server_instance_id": instance,
            "session_server_id": "127.0.0.1:1",
            "difficulty": "tolerated",
            **keys,
        }
        return self.threads.submit(self.post, "/run", body)

    def post(self, path: str, body: object) -> dict[str, Any]:
        answer = httpx.post(self.server.url + path, json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def health(self) -> dict[str, Any]:
        return httpx.get(f"{self.server.url}/health", trust_env=False).json()


@pytest.fixture
def task(make_task) -> Path:
    return make_task(agent_seconds=600)


@pytest.fixture
def client(task: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A server of its own temporary folder, with two slots and the scripted agent."""
    folder = Path(tempfile.mkdtemp(prefix="inkling-grpo-test-"))
    folder.chmod(0o755)
    started = ProcessGroup.start
    monkeypatch.setattr(ProcessGroup, "start", scripted(started))
    server = start_agent_server(
        tasks_dir=task.parent,
        trials_dir=task.parent.parent / "trials",
        agent="scripted",
        backend="local",
        host=LOOPBACK,
        port=0,
        max_concurrent=2,
        agent_timeout_multiplier=1,
        log=task.parent.parent / "agent_server.log",
        env=environment(folder),
    )
    client = Client(server, folder / f"inkling-grpo-{os.getuid()}")
    yield client
    server.stop()
    client.threads.shutdown()
    left = left_in(client.scratch)
    shutil.rmtree(folder)
    assert not left


def environment(temporary: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return dict(os.environ) | {"TMPDIR": str(temporary), "PYTHONPATH": path, "WANDB_API_KEY": "secret"}


def scripted(start: Any) -> Any:
    """ProcessGroup.start, but of the server with the scripted agent."""

    def replaced(name: str, argv: list[str], **options: Any) -> ProcessGroup:
        assert argv[1:3] == ["-m", "recipe.harbor.agent_server"]
        return start(name, [argv[0], str(Path(__file__).parent / "scripted_server.py"), *argv[3:]], **options)

    return replaced


def test_a_trial_is_run_named_and_answered(client: Client, task: Path) -> None:
    reply = client.run(trial_name="r0-g1-s2", metadata={"turns": 2}, commands=["echo hello"]).result()
    assert reply["exit_status"] == "Submitted"
    assert (reply["reward"], reply["eval_report"], reply["error"]) == (1.0, {"reward": 1.0}, None)
    assert reply["trial_name"] == "r0-g1-s2"
    assert reply["agent_metrics"]["turns"] == 2
    assert reply["agent_metrics"]["queue_time"] >= 0
    trial = task.parent.parent / "trials/r0-g1-s2"
    assert (trial / "agent/said.txt").read_text() == "hello\n"
    health = client.health()
    assert health == {
        "status": "ok",
        "active": 0,
        "queued": 0,
        "max_concurrent": 2,
        "finished": 1,
        "exit_status": {"Submitted": 1},
    }
    lines = client.server.process.log.read_text().splitlines()
    assert len(lines) == 1
    assert "r0-g1-s2" in lines[0]


def test_what_cannot_be_run_is_answered_with_200_and_agent_error(client: Client) -> None:
    for keys, reason in (
        ({"instance_id": "missing"}, "no task 'missing'"),
        ({"instance_id": "../tasks/task"}, "no task"),
        ({"instance_id": ""}, "no task"),
        ({"agent_name": "terminus"}, "no agent 'terminus'"),
        ({"trial_name": "../up"}, "trial_name"),
    ):
        reply = client.run("refused", **keys).result()
        assert (reply["exit_status"], reply["reward"]) == ("AgentError", None)
        assert reason in reply["error"]
    assert "base_url" in client.post("/run", {"instance_id": "task"})["error"]


def test_a_repeated_request_and_one_whose_client_left_attach_to_the_same_trial(client: Client) -> None:
    body_of_a_client_that_leaves = {
        "instance_id": "task",
        "base_url": "http://127.0.0.1:1/sessions/1/v1",
        "model": "m",
        "agent_name": "scripted",
        "sampling_params": {"sleep": 1},
    }
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{client.server.url}/run", json=body_of_a_client_that_leaves, timeout=0.3, trust_env=False
        )
    first, second = client.run("1"), client.run("1")
    assert first.result() == second.result() == client.run("1").result()
    assert first.result()["reward"] == 1.0
    assert client.health()["finished"] == 1


def test_flush_ends_the_trials_of_its_instance_with_their_processes(client: Client) -> None:
    script = "setsid sleep 777100 >/dev/null 2>&1 & sleep 0.01; sleep 777200"
    mine = [client.run(f"a{n}", instance="mine", commands=[script]) for n in range(2)]
    wait_until(lambda: len(processes_of("sleep 777100")) == 2)
    queued = client.run("a2", instance="mine", commands=[script])
    other = client.run("b", instance="other")
    wait_until(lambda: client.health()["queued"] == 2)
    wait_until(lambda: len(processes_of("sleep 777200")) == 2)
    pids = processes_of("sleep 777100") + processes_of("sleep 777200")
    assert client.post("/flush", {"session_server_instance_id": "nobody"}) == {"cancelled": 0}
    assert client.post("/flush", {"session_server_instance_id": "mine"}) == {"cancelled": 3}
    assert not [pid for pid in pids if exists(pid)]
    assert {future.result()["exit_status"] for future in (*mine, queued)} == {"Flushed"}
    assert {future.result()["reward"] for future in (*mine, queued)} == {None}
    assert other.result()["exit_status"] == "Submitted"
    assert client.run("a0", instance="mine").result()["exit_status"] == "Flushed"  # ever


def test_flush_all_ends_every_trial(client: Client) -> None:
    runs = [client.run(str(n), instance=str(n), sleep=1000) for n in range(4)]
    wait_until(lambda: client.health()["active"] + client.health()["queued"] == 4)
    assert client.server.flush_all() == 4
    assert {run.result()["exit_status"] for run in runs} == {"Flushed"}
    assert client.post("/flush_all", {"cancel_tasks": True, "kill_containers": True}) == {"cancelled": 0}
    assert not left_in(client.scratch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_with_live_trials_answers_them_and_leaves_nothing(
    client: Client, number: signal.Signals
) -> None:
    runs = [client.run(str(n), commands=["sleep 777300"]) for n in range(4)]
    wait_until(lambda: len(processes_of("sleep 777300")) >= 2 and client.health()["queued"] == 2)
    os.kill(client.server.process.leader.pid, number)
    assert {run.result()["exit_status"] for run in runs} == {"Flushed"}
    assert client.server.process.leader.wait(30) in (0, -number)
    assert "Traceback" not in client.server.process.log_tail()
    assert not processes_of("sleep 777300")
    assert not left_in(client.scratch)


def test_sigkill_leaves_no_process_and_the_next_server_sweeps(client: Client) -> None:
    run = client.run(commands=["setsid sleep 777400 >/dev/null 2>&1 & sleep 777400"])
    wait_until(lambda: processes_of("sleep 777400"))
    os.killpg(client.server.process.leader.pid, signal.SIGKILL)
    with pytest.raises(httpx.HTTPError):
        run.result()
    wait_until(lambda: not processes_of("sleep 777400"))
    assert left_in(client.scratch)
    log = client.server.process.log
    again = start_agent_server(
        tasks_dir=log.parent / "tasks",
        trials_dir=log.parent / "trials",
        agent="scripted",
        backend="local",
        host=LOOPBACK,
        port=0,
        max_concurrent=1,
        agent_timeout_multiplier=1,
        log=log,
        env=environment(client.scratch.parent),
    )
    try:
        assert not left_in(client.scratch)
        assert "1 sandboxes of dead runs" in log.read_text()
    finally:
        again.stop()


def test_the_server_gets_no_secret_and_its_fixed_variables(client: Client, task: Path) -> None:
    text = Path(f"/proc/{client.server.process.leader.pid}/environ").read_text()
    variables = dict(pair.split("=", 1) for pair in text.split("\0") if pair)
    assert launcher.SET.items() <= variables.items()
    assert set(variables) <= {*launcher.PASSED_ON, *launcher.SET}


def test_a_start_that_cannot_work_is_refused(task: Path) -> None:
    options: dict[str, Any] = {
        "tasks_dir": task.parent,
        "trials_dir": task.parent.parent / "trials",
        "agent": "camel",
        "backend": "local",
        "host": LOOPBACK,
        "port": 0,
        "max_concurrent": 1,
        "agent_timeout_multiplier": 1,
        "log": task.parent.parent / "agent_server.log",
        "env": dict(os.environ),
    }
    with pytest.raises(BadInputError, match="tasks folder"):
        start_agent_server(**options | {"tasks_dir": task.parent / "none"})
    with httpx.Client() as _, asyncio.Runner() as loop:
        listener = loop.run(asyncio.start_server(lambda r, w: None, LOOPBACK, 0))
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(BadInputError, match="in use"):
            start_agent_server(**options | {"port": port})
        listener.close()
    closed = task.parent.parent / "closed"
    (closed / f"inkling-grpo-{os.getuid()}").mkdir(parents=True, mode=0o777)
    (closed / f"inkling-grpo-{os.getuid()}").chmod(0o777)
    with pytest.raises(BadInputError, match="refused to start") as refused:
        start_agent_server(**options | {"env": dict(os.environ) | {"TMPDIR": str(closed)}})
    assert "not safely ours" in refused.value.facts["found"]
    assert "Traceback" not in refused.value.facts["found"]


IMPORTS = """
import asyncio, sys
from recipe.harbor import agent_server
"""
# What its own agent brings along is told before it serves.
LOADED = """
serve = agent_server.serve
def told(*words, **options):
    print([name for name in ("camel", "litellm") if name in sys.modules], flush=True)
    return serve(*words, **options)
agent_server.serve = told
agent_server.main(sys.argv[1:])
"""


def test_a_server_for_terminus_2_runs_and_imports_only_that_and_flushes_it_in_mid_turn(
    client: Client, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # this one is not scripted
    command = '{"analysis": "", "plan": "", "commands": [{"keystrokes": "sleep 777700\\n", "duration": 60}]}'
    argv = [sys.executable, "-c", f"{IMPORTS}{LOADED}", "--agent", "terminus-2"]
    options = {"tasks-dir": task.parent, "trials-dir": task.parent.parent / "trials", "environment": "local"}
    options |= {"host": LOOPBACK, "port": free_port(), "max-concurrent": 2}
    argv += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    env = environment(client.scratch.parent) | launcher.SET
    process = ProcessGroup.start("server", argv, log=task.parent.parent / "server.log", env=env)
    other = replace(client, server=AgentServer(f"http://{LOOPBACK}:{options['port']}", process))
    try:
        process.wait_ready(lambda: port_answers(options["port"]), seconds=60)
        assert "only terminus-2" in other.run(agent_name="camel").result()["error"]
        with serve(reply(content=command)) as script:
            run = other.run(base_url=script.url, agent_name="terminus-2", interleaved_thinking=True)
            wait_until(lambda: processes_of("sleep 777700"))
            assert other.post("/flush", {"session_server_instance_id": "x"}) == {"cancelled": 1}
            assert run.result()["exit_status"] == "Flushed"
        assert not processes_of("sleep 777700")
        assert not left_in(client.scratch)
    finally:
        process.stop()
    assert "['litellm']" in process.log.read_text().splitlines()


def port_answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://{LOOPBACK}:{port}/health", trust_env=False).is_success
    return False


def test_a_server_imports_its_own_agent_only() -> None:
    code = "agent_server.serve = lambda *_, **__: asyncio.sleep(0)" + LOADED
    argv = [sys.executable, "-c", f"{IMPORTS}{code}", "--tasks-dir", ".", "--trials-dir", "."]
    argv += ["--environment", "local", "--host", LOOPBACK, "--port", "1", "--max-concurrent", "1"]
    ran = subprocess.run([*argv, "--agent", "camel"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['camel']"
    assert not ran.stderr


def test_a_server_for_terminus_2_is_refused_without_tmux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sandbox.ENVIRONMENT, "PATH", "/bin-without-tmux")
    argv = ["--tasks-dir", str(tmp_path), "--trials-dir", str(tmp_path), "--environment", "local"]
    argv += ["--host", LOOPBACK, "--port", "1", "--max-concurrent", "1", "--agent", "terminus-2"]
    assert agent_server.main(argv) == 2
    assert "apt-get install tmux" in capsys.readouterr().err


def test_importing_the_launchers_part_imports_neither_harbor_nor_fastapi() -> None:
    code = (
        "import sys, recipe.harbor.server\n"
        "sys.exit(any(name in sys.modules for name in ('harbor', 'fastapi', 'pydantic', 'litellm')))"
    )
    group = ProcessGroup.start(
        "check",
        [sys.executable, "-c", code],
        log=Path(tempfile.mkdtemp()) / "log",
        env=dict(os.environ),
    )
    assert group.leader.wait(30) == 0, group.log_tail()
    shutil.rmtree(group.log.parent)
    assert free_port() > 0
