"""One trial, seen from the training worker: posts it to the agent server, gives back what became of it.

A trial is posted exactly once: a repeated POST could start a second agent on the same session. A failure
comes back as exit status AgentError with its text. None or an exception would say nothing about the model
calls made so far, and Miles would train them with reward 0; this way the filter drops their group on both
engines, and can say why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from recipe.plugins import journal
from recipe.plugins.environment import optional, required

logger = logging.getLogger(__name__)

# What the caller may use of the server's answer; the rest stays out of the sample's metadata.
RESULT_KEYS = ("reward", "exit_status", "eval_report", "agent_metrics", "trial_name", "error")
# A flush ends trials and removes their sandboxes: measured under a second; more than a minute means it hangs.
FLUSH_SECONDS = 60.0
# Of an error, in the journal: the agent server's are sentences; whatever else arrives must not fill the disk.
ERROR_LENGTH = 1000
# What went wrong lately, newest last, for the filter's circuit breaker: Miles drops the result of a trial
# without a model call, which is just what a dead agent server looks like.
recent_errors: deque[str] = deque(maxlen=5)

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


def last_errors() -> str:
    """What went wrong lately, each text once, for a message."""
    return f"last errors: {' | '.join(dict.fromkeys(recent_errors)) or 'none reported'}"


class AgentAbortError(Exception):
    """Running trials could not be cancelled."""


async def run(
    base_url: str,
    prompt: Any,  # noqa: ARG001 - part of Miles' signature; the agent server reads the task's own instruction
    request_kwargs: dict[str, Any],
    metadata: dict[str, Any],
    **_: Any,
) -> dict[str, Any]:
    """Runs one trial on the session at `base_url` (without /v1); RESULT_KEYS of the answer.

    Never raises: a failure is {"reward": None, "exit_status": "AgentError", "error": text}. Cancelling the
    call does not cancel the trial; `abort` does. The journal has the trial's start and its end.
    """
    name = metadata.get("trial_name") or base_url.rstrip("/").rpartition("/")[2]
    trial = {"trial": name, "task": metadata.get("instance_id")}
    journal.write("trial", **trial, state="started")
    started = time.monotonic()
    try:
        result = await _post_trial(base_url, request_kwargs, metadata)
    except Exception as failure:  # noqa: BLE001 - see above
        error = f"{type(failure).__name__}: {failure}"
        logger.warning("trial of %s failed: %s", metadata.get("instance_id"), error)
        result = {"reward": None, "exit_status": "AgentError", "error": error}
    if result.get("error") and result["exit_status"] != "Flushed":  # that one was our own doing
        recent_errors.append(str(result["error"]))
    told = {name: result.get(name) for name in ("reward", "exit_status", "trial_name")}
    if result.get("error"):
        told["error"] = str(result["error"])[:ERROR_LENGTH]
    journal.write("trial", **trial, state="done", seconds=round(time.monotonic() - started, 3), **told)
    return result


async def abort(args: Any) -> None:
    """Cancels the trials of every session server of this job. Raises AgentAbortError when a flush fails."""
    instances = _instance_ids(args)
    if not instances:
        raise AgentAbortError("there is no session server instance id to flush")
    results = await asyncio.gather(*map(_flush, instances), return_exceptions=True)
    failures = [
        f"{type(result).__name__} {result}".strip() for result in results if isinstance(result, BaseException)
    ]
    if failures:
        raise AgentAbortError(
            f"the agent server did not end its trials: {len(failures)} of {len(instances)} flushes failed: "
            f"{'; '.join(failures[:3])}; look at logs/agent_server.log"
        )


async def _post_trial(
    base_url: str, request_kwargs: dict[str, Any], metadata: dict[str, Any]
) -> dict[str, Any]:
    deadline = required("HARBOR_AGENT_CALL_TIMEOUT_SEC", float)
    body = _body(base_url, request_kwargs, metadata)
    try:
        async with asyncio.timeout(deadline):
            answer = await _client().post(f"{_server()}/run", json=body)
    except TimeoutError:
        raise TimeoutError(f"no answer after {deadline:g} s (HARBOR_AGENT_CALL_TIMEOUT_SEC)") from None
    result = {"exit_status": "Unknown", **_json_object(answer)}
    if not isinstance(result["exit_status"], str) or not isinstance(result.get("agent_metrics") or {}, dict):
        raise TypeError(f"exit_status must be text and agent_metrics an object; found {answer.text[:200]}")
    return {"reward": None} | {key: result[key] for key in RESULT_KEYS if key in result}


def _body(base_url: str, request_kwargs: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    agent_name = required("HARBOR_AGENT_NAME", str)
    sampling = {**request_kwargs, "max_iterations": required("HARBOR_AGENT_MAX_ITERATIONS", int)}
    if agent_name == "camel":  # a malformed or cut turn ends the trajectory
        sampling |= {"response_feedback": False, "max_response_feedback": 0}
    if interleaved := optional("HARBOR_INTERLEAVED_THINKING"):  # set for terminus-2 only
        sampling["interleaved_thinking"] = interleaved.lower() in {"1", "true", "yes"}
    session_server = metadata.get("session_server_id")
    if session_server:
        metadata = {**metadata, "session_server_id": _reachable(f"//{session_server}").netloc.decode()}
    return {
        **metadata,
        "base_url": f"{_reachable(base_url)}/v1",
        "model": f"openai/{required('AGENT_MODEL_NAME', str)}",
        "sampling_params": sampling,
        "agent_name": agent_name,
        # Not metadata's: that one bounds the training sample, this one the agent's own context.
        "max_seq_len": required("HARBOR_MAX_SEQ_LEN", int),
    }


def _reachable(url: str) -> httpx.URL:
    """`url` with the host under which sandboxes reach the session servers."""
    host = optional("MILES_ROUTER_EXTERNAL_HOST")
    return httpx.URL(url).copy_with(host=host) if host else httpx.URL(url)


async def _flush(instance: str) -> None:
    async with asyncio.timeout(FLUSH_SECONDS):
        answer = await _client().post(f"{_server()}/flush", json={"session_server_instance_id": instance})
    if not isinstance(_json_object(answer).get("cancelled"), int):
        raise TypeError(f"/flush must answer with the number of cancelled trials; found {answer.text[:200]}")


def _instance_ids(args: Any) -> list[str]:
    """The ids of all session servers: a mapping port -> id, or a single one."""
    several = getattr(args, "session_server_instance_ids", None) or {}
    found: Iterable[str | None] = several.values() if isinstance(several, Mapping) else several
    return list(dict.fromkeys(x for x in [*found, getattr(args, "session_server_instance_id", None)] if x))


def _json_object(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != httpx.codes.OK:
        raise httpx.HTTPError(f"the agent server answered {answer.status_code}: {answer.text[:200]}")
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise TypeError(f"the agent server must answer with a JSON object; found {answer.text[:200]!r}")
    return value


def _server() -> str:
    return required("AGENT_SERVER_URL", str).rstrip("/")


def _client() -> httpx.AsyncClient:
    """One client per event loop; a job's 160 to 280 trials each hold a connection for minutes to hours."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx.AsyncClient(
            # Deadlines are whole-call ones, above. A connection is never reused: one that the server closes
            # at that moment would fail a POST that must not be repeated. Inside the cluster is no proxy.
            timeout=None,  # noqa: S113
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )
    return _clients[loop]
