"""The agent server: one Harbor trial per POST /run, many at once, in one process.

POST /run answers 200 to whatever parses, with the failure in `exit_status`: its clients repeat a request that
fails. One session (`base_url`) has one trial, ever: a repeated request waits for it, or gets its reply again. A
client that goes away stops nothing; POST /flush and /flush_all do, and so does SIGTERM, which ends every trial
with its processes before the server goes.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import importlib
import json
import logging
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from harbor.environments.factory import EnvironmentFactory
from harbor.models.environment_type import EnvironmentType
from pydantic import BaseModel, Field, ValidationError

from recipe.errors import BadInputError, RecipeError
from recipe.harbor.pool import TrialPool, log
from recipe.harbor.sandbox import probe
from recipe.harbor.scratch import default_root, sweep
from recipe.harbor.trials import AGENT_ERROR, TrialReply, TrialRequest, run_trial
from recipe.untrusted import clean

AGENTS = {
    "camel": "recipe.harbor.camel_agent:CamelAgent",
    "terminus-2": "recipe.harbor.terminus2_agent:Terminus2Agent",
}
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
OPEN_FILES = 65536
GRACE_SECONDS = 70  # for the replies to flushed trials, at a stop; they take less than a second


def _prepare_local(agent: str) -> None:
    root = default_root()
    if removed := sweep(root):
        log.info("removed what %d sandboxes of dead runs had left in %s", removed, root)
    asyncio.run(probe(tmux=agent == "terminus-2"))


def _prepare_docker(_agent: str) -> None:
    try:
        EnvironmentFactory.run_preflight(EnvironmentType.DOCKER)
    except SystemExit as error:
        raise BadInputError("Docker can't run sandboxes", found=error, run="docker version") from None


@dataclass(frozen=True)
class Backend:
    """Where sandboxes run. `environment`: fields of Harbor's configuration of it.

    `prepare` removes what dead runs left, and raises RecipeError where the backend, or the agent of this name in
    it, can't work.
    """

    environment: Mapping[str, Any]
    prepare: Callable[[str], None]


BACKENDS = {
    "local": Backend({"import_path": "recipe.harbor.local_env:LocalEnvironment"}, _prepare_local),
    "docker": Backend({"type": "docker"}, _prepare_docker),
}


class RunRequest(BaseModel):
    """A trial to run; further keys are the client's own. `sampling_params` go to the agent as its options."""

    instance_id: str
    base_url: str = Field(min_length=1)
    model: str
    sampling_params: dict[str, Any] = {}
    agent_name: str
    max_seq_len: int | None = None
    session_server_instance_id: str | None = None
    trial_name: str = Field("", pattern=rf"^({SAFE_NAME.pattern})?$")


class FlushRequest(BaseModel):
    session_server_instance_id: str


@dataclass(frozen=True)
class Trials:
    """What all trials of a server have in common."""

    tasks_dir: Path
    trials_dir: Path
    backend: Backend
    agents: Mapping[str, str]
    agent_timeout_multiplier: float

    def request(self, run: RunRequest) -> TrialRequest:
        """Raises BadInputError for a task or an agent that is not here."""
        if not SAFE_NAME.fullmatch(run.instance_id) or not self._task(run.instance_id).is_file():
            raise BadInputError(f"no task {run.instance_id!r} in {self.tasks_dir}")
        if run.agent_name not in self.agents:
            raise BadInputError(f"no agent {run.agent_name!r}, only {', '.join(self.agents)}")
        options = {"api_base": run.base_url, "max_seq_len": run.max_seq_len, **run.sampling_params}
        return TrialRequest(
            task_dir=self.tasks_dir / run.instance_id,
            trials_dir=self.trials_dir,
            agent=self.agents[run.agent_name],
            environment=self.backend.environment,
            model=run.model,
            agent_options={name: value for name, value in options.items() if value is not None},
            agent_timeout_multiplier=self.agent_timeout_multiplier,
            name=run.trial_name,
        )

    def _task(self, name: str) -> Path:
        return self.tasks_dir / name / "task.toml"


def create_app(trials: Trials, pool: TrialPool) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await pool.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
        # FastAPI's own reply shows the body, of which not everything can be shown: bytes, NaN, half a character.
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return JSONResponse({"detail": clean(told)}, 422)

    @app.post("/run")
    async def run(body: dict[str, Any]) -> TrialReply:
        try:
            asked = RunRequest.model_validate(body)
            request = trials.request(asked)
        except (ValidationError, BadInputError) as error:
            log.error("a request was refused: %s", error)
            return TrialReply(AGENT_ERROR, error=str(error))
        reply = await pool.run(
            asked.base_url, asked.session_server_instance_id, lambda: _logged(asked.instance_id, request)
        )
        return replace(reply, trial_name=reply.trial_name or asked.trial_name)

    @app.post("/flush")
    async def flush(body: FlushRequest) -> dict[str, int]:
        return {"cancelled": await pool.flush(body.session_server_instance_id)}

    @app.post("/flush_all")
    async def flush_all() -> dict[str, int]:
        return {"cancelled": await pool.flush()}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "active": pool.active,
            "queued": pool.queued,
            "max_concurrent": pool.max_concurrent,
            "finished": pool.ended.total(),
            "exit_status": dict(pool.ended),
        }

    return app


async def _logged(task: str, request: TrialRequest) -> TrialReply:
    """Runs the trial and says how it went, in one line."""
    start = time.monotonic()
    status, reward, error = "Flushed", None, None
    name = request.name
    try:
        reply = await run_trial(request)
        status, reward, error, name = reply.exit_status, reply.reward, reply.error, reply.trial_name
        return reply
    finally:
        seconds = time.monotonic() - start
        said = f"  {' '.join(error.split())}" if error else ""
        log.info("%-24s %-28s %-27s reward %-6s %6.1f s%s", task, name, status, reward, seconds, said)


class Server(uvicorn.Server):
    """Flushes every trial at the first signal: uvicorn itself would wait for their requests first."""

    def __init__(self, config: uvicorn.Config, pool: TrialPool) -> None:
        super().__init__(config)
        self._pool = pool
        self._closing: concurrent.futures.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing = asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop)
        super().handle_exit(sig, frame)


async def serve(trials: Trials, *, host: str, port: int, max_concurrent: int, access_log: bool) -> None:
    """Runs until SIGTERM or SIGINT."""
    # A thread waits for each sandbox that ends; a flush ends them all at once.
    threads = concurrent.futures.ThreadPoolExecutor(max_concurrent)
    asyncio.get_running_loop().set_default_executor(threads)
    pool = TrialPool(max_concurrent)
    config = uvicorn.Config(
        create_app(trials, pool),
        host=host,
        port=port,
        access_log=access_log,
        log_level="info" if access_log else "warning",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    await Server(config, pool).serve()


def main(argv: Sequence[str], agents: Mapping[str, str] = AGENTS) -> int:
    """`agents`: name -> import path of a Harbor BaseAgent; the first is the default.

    Returns the exit code when the start is refused.
    """
    parser = argparse.ArgumentParser(prog="python -m recipe.harbor.agent_server", description=__doc__)
    parser.add_argument("--tasks-dir", type=Path, required=True)
    parser.add_argument("--trials-dir", type=Path, required=True)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--environment", choices=BACKENDS)
    where.add_argument("--environment-config", type=Path, help="JSON: such a name as `type`, and override_*")
    parser.add_argument("--agent", choices=agents, default=next(iter(agents)), help="the only one that runs")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-concurrent", type=int, required=True)
    parser.add_argument("--agent-timeout-multiplier", type=float, default=1.0)
    parser.add_argument("--no-access-log", action="store_true")
    options = parser.parse_args(argv)
    config = {"type": options.environment}
    if options.environment_config:
        config = json.loads(options.environment_config.read_text())
    backend = BACKENDS[config.pop("type")]
    backend = replace(backend, environment={**config, **backend.environment})
    agent = {options.agent: agents[options.agent]}
    trials = Trials(options.tasks_dir, options.trials_dir, backend, agent, options.agent_timeout_multiplier)
    _log_to_stderr()
    _allow_many_files()
    try:
        backend.prepare(options.agent)
        _preload(options.agent, agents[options.agent])
    except RecipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with contextlib.suppress(KeyboardInterrupt):  # by then all is flushed
        asyncio.run(
            serve(
                trials,
                host=options.host,
                port=options.port,
                max_concurrent=options.max_concurrent,
                access_log=not options.no_access_log,
            )
        )
    return 0


def _log_to_stderr() -> None:
    """Ours only: Harbor logs each trial into its folder."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _allow_many_files() -> None:
    """A trial takes some ten descriptors; the usual soft limit of 1,024 is enough for a hundred only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _preload(name: str, path: str) -> None:
    """Imports the agent now: it takes seconds, in which a running server would answer nobody."""
    try:
        importlib.import_module(path.partition(":")[0])
    except ImportError as error:
        raise RecipeError(f"the agent {name} can't be imported", found=error, where=path) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
