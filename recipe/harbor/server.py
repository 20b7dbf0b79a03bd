"""Starts and stops the agent server for a run, as a process of its own with none of the user's secrets.

Imports nothing of Harbor: the launcher stays light, and only speaks HTTP to the server.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, RecipeError
from recipe.process import LOOPBACK, ProcessGroup, free_port, port_is_free

START_SECONDS = 180.0  # importing Harbor and CAMEL takes some 5 s, and much longer on a cold and busy machine
CALL_SECONDS = 90.0  # of /flush_all, which waits for trials to end
STOP_SECONDS = 90.0

# What the server, its agents and bwrap read; credentials such as WANDB_API_KEY stay with the launcher.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE"),
)
SET = {
    "HARBOR_TELEMETRY": "off",  # it is on by default
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else importing litellm fetches a list from the network
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_LOG": "ERROR",
    "OPENAI_API_KEY": "unused",  # clients refuse to start without one
    "CAMEL_LOGGING_DISABLED": "true",
}


@dataclass(frozen=True)
class AgentServer:
    """A running agent server. `url`: how processes of this machine reach it."""

    url: str
    process: ProcessGroup

    @property
    def alive(self) -> bool:
        return self.process.alive

    def flush_all(self) -> int:
        """Cancels every trial and waits for their end; how many there were. Raises RecipeError."""
        try:
            return int(_call(self.url, "POST", "/flush_all", seconds=CALL_SECONDS)["cancelled"])
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            raise RecipeError("the agent server did not flush", found=repr(error), where=self.url) from error

    def stop(self) -> None:
        """Ends it with all its trials and sandboxes."""
        self.process.stop(grace=STOP_SECONDS)


def start_agent_server(
    *,
    tasks_dir: Path,
    trials_dir: Path,
    backend: str,
    host: str,
    port: int,
    max_concurrent: int,
    agent_timeout_multiplier: float,
    log: Path,
    env: Mapping[str, str],
) -> AgentServer:
    """Returns once it answers. `port` 0: any free one; `env`: the user's, of which PASSED_ON is passed on.

    Raises BadInputError for a busy port or a missing tasks folder, RecipeError (with the log's end) when the
    server does not come up.
    """
    if not tasks_dir.is_dir():
        raise BadInputError("the tasks folder does not exist", where=tasks_dir)
    port = port or free_port(host)
    if not port_is_free(port, host):
        raise BadInputError(
            "the agent server's port is in use",
            where=f"{host}:{port}",
            run=f"ss -ltnp 'sport = :{port}' to see by whom, or AGENT_SERVER_PORT=0 for any free one",
        )
    trials_dir.mkdir(parents=True, exist_ok=True)
    options = {
        "--tasks-dir": tasks_dir,
        "--trials-dir": trials_dir,
        "--environment": backend,
        "--host": host,
        "--port": port,
        "--max-concurrent": max_concurrent,
        "--agent-timeout-multiplier": agent_timeout_multiplier,
    }
    arguments = [str(word) for pair in options.items() for word in pair]
    process = ProcessGroup.start(
        "agent server",
        [sys.executable, "-m", "recipe.harbor.agent_server", *arguments, "--no-access-log"],
        log=log,
        env={name: env[name] for name in PASSED_ON if name in env} | SET,
    )
    url = f"http://{LOOPBACK if host == '0.0.0.0' else host}:{port}"  # noqa: S104
    try:
        process.wait_ready(lambda: _healthy(url), seconds=START_SECONDS)
    except BaseException:
        process.stop(grace=STOP_SECONDS)
        raise
    return AgentServer(url, process)


def _healthy(url: str) -> bool:
    try:
        return bool(_call(url, "GET", "/health", seconds=5.0)["status"] == "ok")
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return False


def _call(url: str, method: str, path: str, *, seconds: float) -> dict[str, Any]:
    """The JSON answer; by http.client, which knows nothing of proxies."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        connection.request(method, path)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()
