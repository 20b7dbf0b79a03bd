"""What a trial prints, and what a server answers with, does not end up in the logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "harbor"))
from scripted_model import reply, serve, shell

from recipe.given import child_environment
from recipe.presets import SMOKE
from recipe.process import LOOPBACK, ProcessGroup, free_port

MEGABYTE = 1_000_000
# A worker whose loggers tell everything, as those of Miles' rollout manager do.
WORKER = """
import asyncio, json, logging, sys
logging.basicConfig(level=logging.INFO)
logging.getLogger("httpx").setLevel(logging.WARNING)
from recipe.plugins import agent
told = asyncio.run(agent.run(sys.argv[1], [], {}, {"instance_id": "write-greeting", "trial_name": sys.argv[2]}))
print("ended as", told["exit_status"])
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-m", "recipe.harbor.agent_server", "--tasks-dir", SMOKE["TASKS_DIR"]]
    argv += ["--trials-dir", str(tmp_path / "trials"), "--environment", "local", "--host", LOOPBACK]
    argv += [
        "--port",
        str(port),
        "--max-concurrent",
        "2",
        "--agent-timeout-multiplier",
        "1",
        "--no-access-log",
    ]
    process = ProcessGroup.start(
        "agent server", argv, log=tmp_path / "agent_server.log", env=child_environment()
    )
    url = f"http://{LOOPBACK}:{port}"
    try:
        process.wait_ready(lambda: _answers(url), seconds=60)
        yield url
    finally:
        process.stop()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def play(tmp_path: Path, server: str, name: str, *replies: tuple[int, Any]) -> str:
    """One trial through the agent function in a worker of its own: how it ended."""
    log = tmp_path / "train.log"
    env = {
        "AGENT_SERVER_URL": server,
        "AGENT_MODEL_NAME": "tiny",
        "HARBOR_AGENT_NAME": "camel",
        "HARBOR_AGENT_MAX_ITERATIONS": "5",
        "HARBOR_MAX_SEQ_LEN": str(1 << 30),
        "HARBOR_AGENT_CALL_TIMEOUT_SEC": "60",
        "RUN_JOURNAL": str(tmp_path / "journal.jsonl"),
        "PATH": os.environ["PATH"],
    }
    with serve(*replies) as script, log.open("ab") as sink:
        url = script.url.removesuffix("/v1")
        subprocess.run(
            [sys.executable, "-c", WORKER, url, name],
            env=env,
            stdout=sink,
            stderr=sink,
            check=True,
            timeout=90,
        )
    return log.read_text().splitlines()[-1].removeprefix("ended as ")


def test_a_megabyte_of_output_or_of_an_answer_leaves_a_few_lines(tmp_path, server):
    printing = reply(shell(f"head -c {MEGABYTE} /dev/zero | tr '\\0' x"))
    assert play(tmp_path, server, "printing", printing, reply(content="y" * MEGABYTE)) == "Submitted"
    assert play(tmp_path, server, "failing", (500, {"error": "z" * MEGABYTE})) == "AgentError"
    logs = [tmp_path / "train.log", tmp_path / "agent_server.log", tmp_path / "journal.jsonl"]
    sizes = {log.name: log.stat().st_size for log in logs}
    assert sum(sizes.values()) < 20_000, sizes
    events = [json.loads(line) for line in logs[2].read_text().splitlines()]
    assert [event["exit_status"] for event in events if event["state"] == "done"] == [
        "Submitted",
        "AgentError",
    ]
