"""One rollout: trials of over-sampled groups, filters, the abort of the surplus; semantics of Miles' loop.

Groups are drawn while fewer are in flight than are still needed; the first complete groups that pass the filter
are kept; what is still running then is aborted. In a deterministic run trials run one by one, groups are kept in the
order in which they were drawn, and the surplus plays to its end: no clock decides what is told of it.
Unlike Miles' loop it is bounded: the filter's circuit breaker and the rollout's deadline end the job.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from recipe.engines.local.samples import PromptSource, Sample, Status
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import MAX_SESSIONS
from recipe.engines.local.types import TurnEngine
from recipe.errors import RecipeError
from recipe.plugins import agent, filters, journal, reward
from recipe.settings import Settings

Group = list[Sample]
# Aborted trials stop their sandboxes in under a second; a minute means that something hangs.
ABORT_SECONDS = 60.0


class Engine(TurnEngine, Protocol):
    """What the loop needs of the policy beyond turns."""

    async def abort_all(self) -> None: ...

    async def failure(self) -> BaseException: ...

    def sequence(self, session_id: str) -> list[int]:
        """The ids of an open session as the engine saw and sampled them."""
        ...


@dataclass
class Rollout:
    """The kept groups in the order of their first sample, and what became of the others."""

    groups: list[Group] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    surplus: int = 0

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group]


class RolloutLoop:
    """Draws, runs, filters and aborts; one instance serves all rollouts of a run."""

    def __init__(
        self,
        settings: Settings,
        source: PromptSource,
        sessions: SessionServer,
        engine: Engine,
    ) -> None:
        self._settings = settings
        self._source = source
        self._sessions = sessions
        self._engine = engine
        # One by one, trials also begin and end in the order in which they were drawn.
        self._at_once = asyncio.Semaphore(1 if settings.deterministic else MAX_SESSIONS)
        self._args = SimpleNamespace(
            **settings.public(), session_server_instance_ids={sessions.port: sessions.instance_id}
        )

    async def generate(self, rollout: int) -> Rollout:
        """Samples one rollout. Raises RecipeError when it can't be completed within its bounds."""
        journal.set_rollout(rollout)
        result = Rollout()
        pending: dict[asyncio.Task[Group], None] = {}
        failure = asyncio.create_task(self._engine.failure())
        try:
            async with asyncio.timeout(self._settings.rollout_timeout_sec):
                await self._fill(rollout, result, pending, failure)
        except TimeoutError:
            raise RecipeError(
                f"rollout {rollout} was not complete in time",
                expected=f"{self._settings.rollout_batch_size} groups in {self._settings.rollout_timeout_sec:g} s",
                found=f"{len(result.groups)} kept, dropped: {dict(result.dropped) or 'none'}",
                run="look at logs/agent_server.log; ROLLOUT_TIMEOUT_SEC is the deadline",
            ) from None
        finally:
            failure.cancel()
            result.surplus = len(pending)
            await self._end(pending, sys.exception())
        result.groups.sort(key=lambda group: group[0].index)
        return result

    async def _fill(
        self,
        rollout: int,
        result: Rollout,
        pending: dict[asyncio.Task[Group], None],
        failure: asyncio.Task[BaseException],
    ) -> None:
        wanted = self._settings.rollout_batch_size
        while len(result.groups) < wanted:
            if len(pending) < wanted - len(result.groups):
                for group in self._source.draw(self._settings.over_sampling_batch_size):
                    pending[asyncio.create_task(self._run_group(rollout, group))] = None
            for task in await self._next_done(pending, failure):
                del pending[task]
                self._decide(task.result(), result)
                if len(result.groups) == wanted:
                    break
        surplus = dict(pending) if self._settings.deterministic else {}
        while surplus:
            for task in await self._next_done(surplus, failure):
                del surplus[task]

    async def _next_done(
        self, pending: dict[asyncio.Task[Group], None], failure: asyncio.Task[BaseException]
    ) -> list[asyncio.Task[Group]]:
        waited = [next(iter(pending))] if self._settings.deterministic else list(pending)
        await asyncio.wait([*waited, failure], return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise RecipeError("the policy actor died", found=" ".join(str(failure.result()).split())[:200])
        return [task for task in waited if task.done()]

    def _decide(self, group: Group, result: Rollout) -> None:
        verdict = filters.keep_group(self._args, group)
        if verdict.keep:
            result.groups.append(group)
        else:
            result.dropped[verdict.reason or "filtered"] += 1

    async def _run_group(self, rollout: int, group: Group) -> Group:
        async with asyncio.TaskGroup() as tasks:
            for sample in group:
                tasks.create_task(self._run_sample(rollout, sample))
        return group

    async def _run_sample(self, rollout: int, sample: Sample) -> None:
        async with self._at_once:
            session = self._sessions.store.open(stream=(self._settings.seed, rollout, sample.index))
            metadata = {
                **sample.metadata,
                "trial_name": f"{sample.label}__r{rollout:04d}-s{sample.index:05d}",
                "max_seq_len": self._settings.max_seq_len,
                "session_server_id": f"{self._sessions.host}:{self._sessions.port}",
                "session_server_instance_id": self._sessions.instance_id,
            }
            try:
                outcome = await agent.run(
                    base_url=session.base_url,
                    prompt=sample.prompt,
                    request_kwargs=request_kwargs(self._settings),
                    metadata=metadata,
                )
                sample.take(self._sessions.store.collect(session.id, self._settings.max_seq_len))
                sample.metadata["accumulated_token_ids"] = self._engine.sequence(session.id)
            finally:
                await self._sessions.store.close(session.id)
        sample.metadata.update(outcome or {})
        if sample.status is Status.ABORTED and not sample.metadata.get("error"):
            limit = self._settings.max_seq_len
            agent.recent_errors.append(f"no turn of {sample.label} fits into MAX_SEQ_LEN={limit}")
        if sample.status is not Status.ABORTED:
            sample.reward = await reward.rm(self._args, sample)

    async def _end(self, pending: dict[asyncio.Task[Group], None], failure: BaseException | None) -> None:
        """Aborts what is pending. Of two failures the first is told: the other is often its consequence."""
        try:
            await self._abort(pending)
        except Exception as error:
            if failure is None:
                raise
            print(f"after the failure, the abort failed as well: {error}", file=sys.stderr, flush=True)

    async def _abort(self, pending: dict[asyncio.Task[Group], None]) -> None:
        if not pending:
            return
        if self._settings.deterministic:  # those whose turn has not come would begin now
            for task in pending:
                task.cancel()
        await self._engine.abort_all()
        await agent.abort(self._args)
        _, hanging = await asyncio.wait(pending, timeout=ABORT_SECONDS)
        if hanging:
            raise RecipeError(
                "surplus trials did not end",
                expected=f"all within {ABORT_SECONDS:g} s of their abort",
                found=f"{len(hanging)} of {len(pending)} groups still running",
                run="look at logs/agent_server.log",
            )


def request_kwargs(settings: Settings) -> dict[str, Any]:
    """What the agent is told about its model calls, and for a deterministic run about its terminal."""
    asked = {"temperature": 1.0, "max_tokens": settings.max_response_len}
    quiet = settings.deterministic and settings.agent == "terminus-2"
    return asked | {"until_quiet": True} if quiet else asked
