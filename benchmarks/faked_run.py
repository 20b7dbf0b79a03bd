"""The local engine's job with its model and its agents faked: driver, session server, plugins and actors are real.

The actors live in this process, without Ray; their policy and their trainer answer at once. An agent server of a
few lines plays each trial's two model calls; it fails some, and flushes slow ones, as a real one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI

from recipe.engines.local import actors, checkpoint, driver
from recipe.engines.local.job import job
from recipe.engines.local.lessons import camel_turns
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.trainer import TrainingSample
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.process import LOOPBACK, free_port
from recipe.resolve import load
from recipe.run.folder import RunFolder
from recipe.settings import Settings
from recipe.tasks.prompts import build_rows, write_prompt_data

COMMAND = "sort /app/names.txt > /app/sorted.txt"
TURNS = [np.array(ids) for ids in camel_turns([COMMAND])]
# The tiny model's: sparse layers, experts per token.
ROUTES = (2, 2)
# Two trials of one group are trained, two of another one are surplus as often as not.
SMALL = {
    "ROLLOUT_BATCH_SIZE": 1,
    "OVER_SAMPLING_BATCH_SIZE": 2,
    "N_SAMPLES_PER_PROMPT": 2,
    "GLOBAL_BATCH_SIZE": 2,
    "SAVE_INTERVAL": 20,
    "TENSORBOARD": 1,
    "DUMP_DETAILS": 1,
}
# Of the trials, in the order of their arrival: every seventh is slow, so that its group becomes the surplus and is
# flushed; every eleventh has lost its sandbox.
SLOW, FAILS = 7, 11
SLOW_SECONDS = 0.1
STEP = {"loss": 0.1, "grad_norm": 1.0, "kl": 0.0, "entropy": 1.0, "learning_rate": 1e-3, "samples_trained": 2}


@dataclass
class Stage:
    """What of a run can be looked at while it goes on."""

    run_dir: Path
    store: SessionStore
    rollout: int = 0


def play(run_dir: Path, rollouts: int, look: Callable[[Stage], object]) -> int:
    """Runs the job and returns its exit code; `look` is called at each optimizer step, when no trial is left."""
    with ExitStack() as stack:
        url = stack.enter_context(_agent_server())
        RunFolder.create(run_dir)
        settings = _settings(run_dir, rollouts)
        environment = job(settings, run_dir, url).env
        stack.enter_context(patch.dict(os.environ, environment))
        stages: list[Stage] = []

        def remembered(*given: Any, **named: Any) -> SessionStore:
            stages.append(Stage(run_dir, SessionStore(*given, **named)))
            return stages[-1].store

        def step(rollout: int) -> None:
            stages[-1].rollout = rollout
            look(stages[-1])

        for module, name, fake in (
            (driver, "ray", SimpleNamespace(remote=_Remote, init=lambda **_: None)),
            (driver, "SessionStore", remembered),
            (actors, "build_model", lambda _config: _model()),
            (actors, "Policy", _Policy),
            (actors, "Trainer", lambda model, _rate: _Trainer(model, step)),
        ):
            stack.enter_context(patch.object(module, name, fake))
        told = {"run_dir": str(run_dir), "agent_server_url": url, "settings": settings.public()}
        job_file = RunFolder(run_dir).job_file
        job_file.write_text(json.dumps(told))
        return driver.main(job_file)


def _settings(run_dir: Path, rollouts: int) -> Settings:
    """Those of smoke, but smaller; writes the first weights and the prompts of the smoke tasks."""
    start = checkpoint.save(run_dir.parent / "start", 0, _Trainer(_model(), None).weights())
    given = {"RUNS_ROOT": run_dir.parent, "RUN_NAME": run_dir.name, "LOAD_DIR": start.parent}
    given |= SMALL | {"NUM_ROLLOUT": rollouts}
    settings = load("smoke", [f"{name}={value}" for name, value in given.items()])
    write_prompt_data(build_rows(settings.tasks_dir, settings.agent), settings.prompt_data)
    return settings


def _model() -> torch.nn.Module:
    return torch.nn.Linear(16, 16)


class _Remote:
    """A class as `ray.remote` gives it back; its actor is an object of this process."""

    def __init__(self, actor: type) -> None:
        self._class = actor

    def options(self, **_: Any) -> _Remote:
        return self

    def remote(self, *given: Any) -> _Actor:
        return _Actor(self._class(*given))


class _Actor:
    """`actor.method.remote(...)` starts the call and can be awaited, its arguments too, as with Ray."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        return SimpleNamespace(remote=lambda *given: asyncio.ensure_future(_called(method, given)))


async def _called(method: Callable[..., Any], given: Sequence[Any]) -> Any:
    value = method(*[await one if inspect.isawaitable(one) else one for one in given])
    return await value if inspect.isawaitable(value) else value


class _Policy:
    """Says the same two turns in each session."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._waiting: list[tuple[GenerateRequest, Callable[[GenerateReply], None]]] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def submit(self, request: GenerateRequest, done: Callable[[GenerateReply], None]) -> None:
        self._waiting.append((request, done))

    def step(self) -> None:
        for request, done in self._waiting:
            ids = TURNS[request.stream[-1]].tolist()
            routes = np.zeros((len(request.ids) + len(ids) - 1, *ROUTES), dtype=np.int8)
            done(GenerateReply(ids, [-0.5] * len(ids), routes, "stop"))
        self._waiting.clear()

    def abort_all(self) -> None:
        self.step()

    def close_session(self, session_id: str) -> None:
        pass

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        pass


class _Trainer:
    """Has weights, and takes steps that change nothing."""

    def __init__(self, model: torch.nn.Module, look: Callable[[int], None] | None) -> None:
        self._model, self._look, self._steps = model, look, itertools.count()

    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in self._model.named_parameters()}

    def step(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        assert len(samples) == SMALL["GLOBAL_BATCH_SIZE"]
        assert self._look is not None
        self._look(next(self._steps))
        return dict(STEP)


class _Agents:
    """The faked agent server's trials."""

    def __init__(self) -> None:
        self._arrived = itertools.count()
        self._flushed = asyncio.Event()
        # A connection for each call, as agents have.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(limits=limits, trust_env=False, verify=False)  # noqa: S501 - it is no TLS

    async def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """Plays one trial."""
        number, flushed = next(self._arrived), self._flushed
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Sort the names."}]
        for _ in TURNS:
            messages += await self._turn(body["base_url"], messages)
        if number % SLOW == SLOW - 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flushed.wait(), SLOW_SECONDS)
                return {"exit_status": "Flushed", "reward": None, "error": "cancelled by a flush"}
        if number % FAILS == FAILS - 1:
            return {
                "exit_status": "AgentError",
                "reward": None,
                "error": f"the sandbox of {number} has ended",
            }
        metrics = {"turns": len(TURNS), "model_query_time_sum": 0.01}
        told = {"trial_name": body["trial_name"], "agent_metrics": metrics}
        return {"exit_status": "Submitted", "reward": float(number % 2), **told}

    async def _turn(self, url: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reply, and the output of the command that it asks for."""
        body = {"model": "tiny", "messages": messages, "max_tokens": 96}
        answer = await self._http.post(f"{url}/chat/completions", json=body)
        message = answer.raise_for_status().json()["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        return [
            message,
            *({"role": "tool", "tool_call_id": one["id"], "content": "[exit 0]"} for one in calls),
        ]

    async def flush(self) -> dict[str, int]:
        """Ends the slow ones."""
        self._flushed.set()
        self._flushed = asyncio.Event()
        return {"cancelled": 1}


@contextmanager
def _agent_server() -> Iterator[str]:
    agents, app, port = _Agents(), FastAPI(openapi_url=None), free_port()

    @app.post("/run")
    async def run(body: dict[str, Any]) -> dict[str, Any]:
        return await agents.run(body)

    @app.post("/flush")
    async def flush(_: dict[str, Any]) -> dict[str, int]:
        return await agents.flush()

    server = uvicorn.Server(uvicorn.Config(app, host=LOOPBACK, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        server.should_exit = True
        thread.join()
