"""The pool's bookkeeping: one trial per session, the bound, flushes, and the end."""

from __future__ import annotations

import asyncio

from recipe.harbor import pool as module
from recipe.harbor.pool import TrialPool
from recipe.harbor.trials import TrialReply


class Trial:
    """Counts its starts; ends when released."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.started, self.cancelled, self.fails = 0, 0, fails
        self.release = asyncio.Event()

    async def __call__(self) -> TrialReply:
        self.started += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(0.05)  # cleaning up takes a moment
            raise
        if self.fails:
            raise self.fails
        return TrialReply("Submitted", reward=1.0)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_repeated_request_attaches_to_the_running_and_to_the_ended_trial() -> None:
    async def main() -> None:
        pool, trial = TrialPool(2), Trial()
        first, second = (asyncio.create_task(pool.run("session", "a", trial)) for _ in range(2))
        await settle()
        first.cancel()  # its client went away
        trial.release.set()
        reply = await second
        assert await pool.run("session", "a", Trial()) is reply
        assert (trial.started, trial.cancelled, reply.reward) == (1, 0, 1.0)
        assert "queue_time" in reply.agent_metrics

    asyncio.run(main())


def test_trials_beyond_the_bound_queue() -> None:
    async def main() -> None:
        pool, trials = TrialPool(2), [Trial() for _ in range(5)]
        runs = [asyncio.create_task(pool.run(str(n), None, trial)) for n, trial in enumerate(trials)]
        await settle()
        assert (pool.active, pool.queued) == (2, 3)
        trials[0].release.set()
        await settle()
        assert (pool.active, pool.queued, pool.ended.total()) == (2, 2, 1)
        for trial in trials:
            trial.release.set()
        await asyncio.gather(*runs)
        assert (pool.active, pool.queued, pool.ended) == (0, 0, {"Submitted": 5})

    asyncio.run(main())


def test_a_flush_ends_running_and_queued_trials_of_its_instance_only() -> None:
    async def main() -> None:
        pool, trials = TrialPool(2), [Trial() for _ in range(4)]
        runs = [asyncio.create_task(pool.run(str(n), "ab"[n % 2], trial)) for n, trial in enumerate(trials)]
        await settle()
        assert await pool.flush("nobody") == 0
        assert await pool.flush("a") == 2
        await settle()
        assert [run.done() for run in runs] == [True, False, True, False]
        assert (await runs[0]).exit_status == (await runs[2]).exit_status == "Flushed"
        assert (trials[0].cancelled, trials[2].started) == (1, 0)
        assert pool.active == 2

        twice = await asyncio.gather(pool.flush(), pool.flush())
        assert sorted(twice) == [0, 2]
        assert trials[1].cancelled == 1  # the second flush waited, and did not interrupt

    asyncio.run(main())


def test_a_trial_flushed_at_once_is_a_flushed_one_too() -> None:
    async def main() -> None:
        pool, trial = TrialPool(1), Trial()
        run = asyncio.create_task(pool.run("session", "a", trial))
        await asyncio.sleep(0)  # the request is in; nothing else had a turn
        assert await pool.flush("a") == 1
        reply = await run
        assert reply.exit_status == "Flushed"
        assert await pool.run("session", "a", trial) is reply
        assert pool.ended == {"Flushed": 1}

    asyncio.run(main())


def test_a_closed_pool_takes_no_trial(monkeypatch) -> None:
    async def main() -> None:
        pool, trial, late = TrialPool(1), Trial(), Trial()
        run = asyncio.create_task(pool.run("early", None, trial))
        await settle()
        await pool.close()
        assert (await run).exit_status == "Flushed"
        assert (await pool.run("late", None, late)).exit_status == "Flushed"
        assert late.started == 0

    asyncio.run(main())


def test_a_bug_is_an_agent_error_and_frees_its_slot() -> None:
    async def main() -> None:
        pool, trial = TrialPool(1), Trial(fails=KeyError("x"))
        trial.release.set()
        assert (await pool.run("a", None, trial)).exit_status == "AgentError"
        trial = Trial()
        trial.release.set()
        assert (await pool.run("b", None, trial)).exit_status == "Submitted"

    asyncio.run(main())


def test_only_ended_trials_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)

    async def main() -> None:
        pool, trial = TrialPool(9), Trial()
        trial.release.set()
        for session in "abcd":
            await pool.run(session, None, trial)
        await pool.run("d", None, trial)
        assert trial.started == 4
        await pool.run("a", None, trial)
        assert trial.started == 5

    asyncio.run(main())
