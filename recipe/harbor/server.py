"""Starts and stops the agent server of a run: a process group with no secret but its sandbox backend's.

It is our own for the local engine, and the pinned Harbor's for Miles. Nothing of Harbor is imported: the launcher
stays light, and only speaks HTTP to the server.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, RecipeError
from recipe.process import LOOPBACK, ProcessGroup, free_port, port_is_free

START_SECONDS = 180.0  # importing Harbor and CAMEL takes some 5 s, and much longer on a cold and busy machine
CALL_SECONDS = 90.0  # of /flush_all, which waits for trials to end; remote sandboxes take some seconds each
STOP_SECONDS = 90.0

# What the server, its agents and bwrap read; credentials such as WANDB_API_KEY stay with the launcher.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE"),
)
# What the pinned server reaches sandboxes of other machines by. Our own server's agents speak to loopback only,
# where a proxy would be in the way.
PASSED_ON_TO_HARBOR = (
    *("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"),
)
DOCKER = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
OUR_SERVER = (sys.executable, "-m", "recipe.harbor.agent_server")
SET = {
    "HARBOR_TELEMETRY": "off",  # it is on by default
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else importing litellm fetches a list from the network
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_LOG": "ERROR",
    "OPENAI_API_KEY": "unused",  # clients refuse to start without one
    "CAMEL_LOGGING_DISABLED": "true",
    # Harbor writes the trace of each trial that a flush cancels, twice; marking the columns takes a fifth of it.
    "PYTHONNODEBUGRANGES": "1",
}


FLUSH = {"cancel_tasks": True, "kill_containers": True, "prune": False}


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


@dataclass(frozen=True)
class AgentServer:
    """A running agent server. `url`: how processes of this machine reach it; `say` takes what is not raised."""

    url: str
    process: ProcessGroup
    say: Callable[[str], None] = _to_stderr

    @property
    def alive(self) -> bool:
        return self.process.alive

    def flush_all(self) -> int:
        """Cancels every trial and ends its sandbox; how many there were. Raises RecipeError."""
        try:
            answer = _call(self.url, "POST", "/flush_all", seconds=CALL_SECONDS, body=FLUSH)
            return int(answer.get("cancelled", 0))
        except (OSError, ValueError, TypeError, AttributeError, http.client.HTTPException) as error:
            raise RecipeError("the agent server did not flush", found=repr(error), where=self.url) from error

    def stop(self) -> None:
        """Ends its trials with their sandboxes, then the server, whatever becomes of the trials."""
        self.process.resume()
        try:
            self.flush_all()
        except RecipeError as error:
            self.say(f"{error}\n  so sandboxes may be left at the backend")
        finally:
            self.process.stop(grace=STOP_SECONDS)


def start_agent_server(
    *,
    tasks_dir: Path,
    trials_dir: Path,
    agent: str,
    backend: str,
    host: str,
    port: int,
    max_concurrent: int,
    agent_timeout_multiplier: float,
    log: Path,
    env: Mapping[str, str],
    harbor_python: Path | None = None,
    environment_config: Path | None = None,
    credentials: Mapping[str, str] | None = None,
    watch: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = _to_stderr,
) -> AgentServer:
    """Returns once it answers: Harbor's own server in `harbor_python`, or ours where that is None.

    `port` 0: any free one; `env`: the user's, of which PASSED_ON is passed on; `environment_config`: a file for where
    `backend` does not say it all (see environment_config.py); `credentials`: the backend's variables; `watch` may
    raise while it starts; `say`: see AgentServer.

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
            run=f"ss -ltnp 'sport = :{port}' to see by whom, or another AGENT_SERVER_PORT",
        )
    trials_dir.mkdir(parents=True, exist_ok=True)
    options = {
        "--tasks-dir": tasks_dir,
        "--trials-dir": trials_dir,
        **(
            {"--environment-config": environment_config} if environment_config else {"--environment": backend}
        ),
        "--host": host,
        "--port": port,
        "--max-concurrent": max_concurrent,
        "--agent-timeout-multiplier": agent_timeout_multiplier,
    }
    pinned = harbor_python is not None
    # Ours imports one agent only; which one the pinned server runs is said with each trial.
    program = [harbor_python, "-m", "harbor.agent_server"] if pinned else [*OUR_SERVER, "--agent", agent]
    passed_on = (*PASSED_ON, *DOCKER, *(PASSED_ON_TO_HARBOR if pinned else ()))
    arguments = [word for pair in options.items() for word in pair]
    url = f"http://{LOOPBACK if host == '0.0.0.0' else host}:{port}"  # noqa: S104
    process = ProcessGroup.start(
        "agent server",
        [str(word) for word in (*program, *arguments, "--no-access-log")],
        log=log,
        env={name: env[name] for name in passed_on if name in env} | SET | dict(credentials or {}),
    )
    try:
        process.wait_ready(lambda: _healthy(url), seconds=START_SECONDS, watch=watch)
    except BaseException:
        process.stop(grace=STOP_SECONDS)
        raise
    return AgentServer(url, process, say)


def _healthy(url: str) -> bool:
    try:
        _call(url, "GET", "/health", seconds=5.0)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


def _call(url: str, method: str, path: str, *, seconds: float, body: Mapping[str, bool] | None = None) -> Any:
    """The JSON that is answered; by http.client, which knows nothing of proxies.

    Raises ValueError when it is none or the status is not 200, OSError or HTTPException without an answer.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = connection.getresponse()
        if response.status != HTTPStatus.OK:
            raise ValueError(f"HTTP {response.status}")
        return json.loads(response.read())
    finally:
        connection.close()
