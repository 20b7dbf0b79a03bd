"""The trials that a server runs: one per session ever, a bounded number at once, ended on demand."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from recipe.harbor.trials import AGENT_ERROR, TrialReply

FLUSHED = "Flushed"
REMEMBERED = 4096  # replies kept for repeated requests, about 1 KB each; a rollout has some hundred trials
FLUSH_SECONDS = 60.0  # a cancelled trial ends within a second; this is for a machine that swaps

log = logging.getLogger("recipe.harbor")


@dataclass
class Live:
    """A session's trial, queued, running or over. `instance`: the session server that the session is of."""

    instance: str | None
    task: asyncio.Task[TrialReply] = field(init=False)
    begun: bool = False
    flushed: bool = False


@dataclass
class TrialPool:
    """Belongs to one event loop."""

    max_concurrent: int
    ended: Counter[str] = field(default_factory=Counter)  # exit_status -> trials

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_concurrent)
        self._sessions: dict[str, Live] = {}  # oldest first
        self._closing = False

    @property
    def active(self) -> int:
        return sum(live.begun and not live.task.done() for live in self._sessions.values())

    @property
    def queued(self) -> int:
        return sum(not live.begun and not live.task.done() for live in self._sessions.values())

    async def run(
        self, session: str, instance: str | None, trial: Callable[[], Awaitable[TrialReply]]
    ) -> TrialReply:
        """The reply of the session's one trial: of `trial` only when there has been none before.

        A cancelled caller does not cancel the trial.
        """
        live = self._sessions.get(session)
        if live is None:
            if self._closing:
                return TrialReply(FLUSHED, error="the server is stopping")
            live = self._sessions[session] = Live(instance)
            # Eager: a task that is cancelled before its first step would never come to _run's `except`.
            loop = asyncio.get_running_loop()
            live.task = asyncio.Task(self._run(live, trial), loop=loop, eager_start=True)
            self._forget()
        return await asyncio.shield(live.task)

    async def _run(self, live: Live, trial: Callable[[], Awaitable[TrialReply]]) -> TrialReply:
        queued_at = time.monotonic()
        try:
            async with self._slots:
                live.begun = True
                queue_time = time.monotonic() - queued_at
                reply = await trial()
                reply.agent_metrics["queue_time"] = queue_time
        except asyncio.CancelledError:
            reply = TrialReply(FLUSHED, error="cancelled by a flush")
        except Exception as error:
            log.exception("a trial failed in a way that nobody thought of")
            reply = TrialReply(AGENT_ERROR, error=f"{type(error).__name__}: {error}")
        if live.flushed and reply.exit_status != FLUSHED:  # it was ending already
            reply = TrialReply(FLUSHED, trial_name=reply.trial_name, error="cancelled by a flush")
        self.ended[reply.exit_status] += 1
        return reply

    async def flush(self, instance: str | None = None) -> int:
        """Cancels the trials of `instance` (None: all) and waits for their end; returns how many it cancelled."""
        chosen = [
            live
            for live in self._sessions.values()
            if not live.task.done() and instance in (None, live.instance)
        ]
        fresh = [live for live in chosen if not live.flushed]
        for live in fresh:  # a second cancel would interrupt the first one's cleaning up
            live.flushed = True
            live.task.cancel()
        if chosen:
            _, running = await asyncio.wait([live.task for live in chosen], timeout=FLUSH_SECONDS)
            if running:
                log.error("%d cancelled trials did not end within %g s", len(running), FLUSH_SECONDS)
        return len(fresh)

    async def close(self) -> None:
        """Takes no more trials, and ends all."""
        self._closing = True
        await self.flush()

    def _forget(self) -> None:
        oldest = next(iter(self._sessions))
        if len(self._sessions) > REMEMBERED and self._sessions[oldest].task.done():
            del self._sessions[oldest]
