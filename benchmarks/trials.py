"""Seconds per trial: a real CAMEL agent, a real sandbox and verifier, and a policy that answers at once.

What is left is what a rollout pays beside the model: agent server, sandbox, agent, tools, tests.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import httpx

import recipe
from benchmarks.measure import Findings, Row
from recipe.engines.local.lessons import ScriptedPolicy, camel_turns
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.errors import RecipeError
from recipe.given import child_environment
from recipe.harbor.server import AgentServer, start_agent_server
from recipe.process import LOOPBACK
from recipe.tasks.smoke_behaviours import SMOKE_BEHAVIOURS

CONCURRENT = 8
# Trials one after another, and trials of which CONCURRENT run at once.
TRIALS, QUICK_TRIALS = (8, 32), (4, 16)
TURNS = 3
# A trial takes a fraction of a second; this ends a hang.
TRIAL_SECONDS = 120.0


def run(*, quick: bool) -> Findings:
    """Seconds of a trial alone, and trials a second with eight at once."""
    with tempfile.TemporaryDirectory(prefix="inkling-grpo-benchmark-") as folder:
        server = start_agent_server(
            tasks_dir=Path(recipe.__file__).parent / "tasks" / "smoke",
            trials_dir=Path(folder) / "trials",
            agent="camel",
            backend="local",
            host=LOOPBACK,
            port=0,
            max_concurrent=CONCURRENT,
            agent_timeout_multiplier=1,
            log=Path(folder) / "agent_server.log",
            env=child_environment(),
        )
        try:
            return asyncio.run(_measure(server, *(QUICK_TRIALS if quick else TRIALS)))
        finally:
            server.stop()


async def _measure(server: AgentServer, alone: int, together: int) -> Findings:
    policy = ScriptedPolicy()
    sessions = SessionServer(SessionStore(policy, max_context=2048))
    await sessions.start(port=0)
    player = Player(server, sessions, policy)
    try:
        await player.trial()  # imports, and the sandbox's first files
        singles = [await player.trial() for _ in range(alone)]
        start = time.perf_counter()
        await asyncio.gather(*(player.trial() for _ in range(together)))
        seconds = time.perf_counter() - start
    finally:
        await player.close()
        await sessions.stop()
    findings = Findings("Trials")
    findings.rows = [
        Row("trial alone, p50", "s", statistics.median(singles)),
        Row(f"trials, {CONCURRENT} at once", "trials/s", together / seconds),
    ]
    findings.notes = [
        f"Smoke tasks in turn, {TURNS} turns each (the right command, its check, a final message), reward 1. "
        f"By the wall clock, {alone} and {together} trials; the agent server had started before."
    ]
    return findings


class Player:
    """Runs scripted trials of the smoke tasks in turn."""

    def __init__(self, server: AgentServer, sessions: SessionServer, policy: ScriptedPolicy) -> None:
        self._url = server.url
        self._sessions = sessions
        self._policy = policy
        self._tasks = itertools.cycle(SMOKE_BEHAVIOURS)
        self._http = httpx.AsyncClient(timeout=TRIAL_SECONDS, trust_env=False)

    async def trial(self) -> float:
        """Plays the next task rightly; the seconds from asking to the reply. Raises RecipeError."""
        task = next(self._tasks)
        behaviour = SMOKE_BEHAVIOURS[task]
        session = self._sessions.store.open()
        turns = camel_turns([behaviour.right, behaviour.check])
        self._policy.play(session.id, turns)
        start = time.perf_counter()
        answer = await self._http.post(
            f"{self._url}/run",
            json={
                "instance_id": task,
                "base_url": f"{session.base_url}/v1",
                "model": "openai/tiny",
                "sampling_params": {"temperature": 1.0, "max_tokens": 96, "max_iterations": TURNS + 1},
                "agent_name": "camel",
                "max_seq_len": 2048,
            },
        )
        seconds = time.perf_counter() - start
        await self._sessions.store.close(session.id)
        if answer.json().get("reward") != 1:
            raise RecipeError(f"a trial of {task} went wrong", expected="reward 1", found=answer.text)
        return seconds

    async def close(self) -> None:
        """Closes the connections to the agent server."""
        await self._http.aclose()
