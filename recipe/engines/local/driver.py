"""The local engine's job: update weights, generate, train, save, with two colocated Ray actors.

`python -m recipe.engines.local.driver RUN/launcher/job.json`; order of the steps as in Miles' train loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from recipe.engines.local import checkpoint
from recipe.engines.local.actors import PolicyActor, TrainerActor
from recipe.engines.local.lessons import warm_start_weights
from recipe.engines.local.report import dump_rollout, rollout_metrics, training_samples
from recipe.engines.local.rollout import Rollout, RolloutLoop
from recipe.engines.local.samples import PromptSource
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.tracking import Tracking
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.errors import RecipeError
from recipe.events import EventLog
from recipe.job import save_and_stop
from recipe.plugins.agent import AgentAbortError
from recipe.plugins.audit import StrictMismatchError, audit
from recipe.plugins.environment import PluginSettingError
from recipe.plugins.filters import TooManyDroppedGroupsError
from recipe.plugins.metrics import agent_metrics
from recipe.settings import Settings
from recipe.tasks.prompts import read_prompt_data
from recipe.watch.metrics import tokens_per_second

# Errors whose text says all: plugins travel without the package, so theirs are no RecipeError.
EXPLAINED = (
    RecipeError,
    AgentAbortError,
    PluginSettingError,
    TooManyDroppedGroupsError,
    StrictMismatchError,
    FloatingPointError,
)
# Rows that are decoded together; beyond 32 a step takes as much longer as it yields more (measured).
MAX_BATCH = 32


class RemotePolicy:
    """The policy actor as the session server and the rollout loop see it; remembers when the actor dies."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._sequences: dict[str, list[int]] = {}

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        reply: GenerateReply = await self._watch(self._actor.generate.remote(request))
        self._sequences[request.session_id] = request.ids + reply.ids
        return reply

    def sequence(self, session_id: str) -> list[int]:
        return self._sequences.get(session_id, [])

    async def close_session(self, session_id: str) -> None:
        self._sequences.pop(session_id, None)
        await self._watch(self._actor.close_session.remote(session_id))

    async def abort_all(self) -> None:
        await self._watch(self._actor.abort_all.remote())

    async def failure(self) -> BaseException:
        """Returns when the actor has died."""
        return await asyncio.shield(self._failure)

    async def _watch[T](self, call: Awaitable[T]) -> T:
        try:
            return await call
        except RayActorError as error:
            if not self._failure.done():
                self._failure.set_result(error)
            raise


class Driver:
    """One run of the job."""

    def __init__(self, run_dir: Path, settings: Settings, events: EventLog, tracking: Tracking) -> None:
        self._run_dir = run_dir
        self._settings = settings
        self._events = events
        self._tracking = tracking
        self._seconds: dict[str, float] = {}
        dump = run_dir / "dump_details" / "engine_turns.jsonl" if settings.dump_details else None
        # One request at a time has bits that don't depend on its neighbours.
        batch = 1 if settings.deterministic else MAX_BATCH
        self._policy: Any = (
            ray.remote(PolicyActor)
            .options(num_cpus=1, max_concurrency=1024)
            .remote(batch, settings.max_seq_len, str(dump) if dump else None)
        )
        self._trainer: Any = (
            ray.remote(TrainerActor).options(num_cpus=1).remote(settings.lr, str(run_dir / "events.jsonl"))
        )

    async def run(self) -> None:
        """All rollouts of the run. Raises RecipeError when one can't be completed."""
        settings = self._settings
        with self._phase("start", None):
            rows = read_prompt_data(settings.prompt_data)
            policy = RemotePolicy(self._policy)
            await self._trainer.load.remote(str(await self._initial_weights()))
        sessions = SessionServer(SessionStore(policy, max_context=settings.max_seq_len, agent=settings.agent))
        await sessions.start(port=settings.session_server_port)
        try:
            source = PromptSource(rows, settings.n_samples_per_prompt, settings.seed)
            loop = RolloutLoop(settings, source, sessions, policy)
            for rollout in range(settings.num_rollout):
                await self._one_rollout(rollout, loop)
        finally:
            await sessions.stop()
        self._events.write("phase", phase="done", rollout=None)

    async def _initial_weights(self) -> Path:
        if self._settings.load_dir:
            return checkpoint.latest(self._settings.load_dir)
        return await warm_start_weights(self._settings, self._trainer, self._events)

    async def _one_rollout(self, rollout: int, loop: RolloutLoop) -> None:
        self._seconds = {}
        with self._phase("update_weights", rollout):
            await self._policy.load_weights.remote(self._trainer.weights.remote())
        with self._phase("generate", rollout):
            sampled = await loop.generate(rollout)
        audited = audit(sampled.samples)
        if self._settings.dump_details:
            dump_rollout(self._run_dir / "dump_details" / f"rollout_{rollout:07d}.jsonl", sampled)
        with self._phase("train", rollout):
            trained = await self._train(sampled)
        if self._saves(rollout):
            with self._phase("save", rollout):
                path = await self._trainer.save.remote(str(self._run_dir / "checkpoints"), rollout)
            save_and_stop(self._run_dir).unlink(missing_ok=True)
            self._events.write("checkpoint", rollout=rollout, path=path)
        metrics = {**rollout_metrics(sampled), **trained, **audited}
        metrics |= tokens_per_second(metrics, self._seconds)
        trials = agent_metrics(sampled.samples)
        event = {"rollout": rollout, "metrics": metrics, "seconds": self._seconds, "trials": trials}
        self._events.write("rollout", **event)
        self._tracking.log(event)

    async def _train(self, sampled: Rollout) -> dict[str, float]:
        metrics: dict[str, float] = await self._trainer.step.remote(training_samples(sampled))
        return metrics

    def _saves(self, rollout: int) -> bool:
        due = rollout + 1 == self._settings.num_rollout or (rollout + 1) % self._settings.save_interval == 0
        return due or save_and_stop(self._run_dir).exists()

    @contextmanager
    def _phase(self, name: str, rollout: int | None) -> Iterator[None]:
        self._events.write("phase", phase=name, rollout=rollout)
        print(f"rollout {rollout}: {name}" if rollout is not None else name, flush=True)
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = time.monotonic() - started


def main(job_file: Path) -> int:
    """Runs the job and returns its exit code; the last event says how it ended."""
    job = json.loads(job_file.read_text())
    run_dir = Path(job["run_dir"])
    events = EventLog(run_dir / "events.jsonl")
    settings = Settings(**job["settings"])
    tracking = None
    try:
        tracking = Tracking(settings, run_dir)
        ray.init(address="auto", logging_level=logging.WARNING)
        asyncio.run(Driver(run_dir, settings, events, tracking).run())
        tracking.close(failed=False)
    except Exception as error:
        if tracking:
            tracking.close(failed=True)
        problem = _root(error)
        events.write("end", status="failed", error=str(problem))
        if isinstance(problem, EXPLAINED):
            print(f"error: {problem}", file=sys.stderr)
            return 1
        raise
    events.write("end", status="succeeded", error=None)
    return 0


def _root(error: BaseException) -> BaseException:
    """The error that a task group or a Ray task has wrapped."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
            error = error.cause
        elif isinstance(error, RayActorError):
            # Ray's text goes on with guesses; its first lines name the actor and its process.
            return RecipeError("an actor of the job died", found=" ".join(str(error).split())[:200])
        else:
            return error


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
