"""Seconds per trial: a real CAMEL agent, a real sandbox and verifier, and a policy that answers at once.

What is left is what a rollout pays beside the model: agent server, sandbox, agent, tools, tests.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
# A trial alone takes a fraction of a second, one of 160 a minute; this ends a hang.
TRIAL_SECONDS = 600.0
MAX_SEQ_LEN = 8192


def run(*, quick: bool) -> Findings:
    """Seconds of a trial alone, and trials a second with eight at once."""
    with agent_server(CONCURRENT) as (server, _):
        return asyncio.run(_measure(server, *(QUICK_TRIALS if quick else TRIALS)))


@contextmanager
def agent_server(max_concurrent: int) -> Iterator[tuple[AgentServer, Path]]:
    """Ours over the smoke tasks and CAMEL; and the folder in which trials/ and its sandboxes' folders are."""
    with tempfile.TemporaryDirectory(prefix="inkling-grpo-benchmark-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # the sandboxes' user has to get through
        server = start_agent_server(
            tasks_dir=Path(recipe.__file__).parent / "tasks" / "smoke",
            trials_dir=folder / "trials",
            agent="camel",
            backend="local",
            host=LOOPBACK,
            port=0,
            max_concurrent=max_concurrent,
            agent_timeout_multiplier=10,  # a busy machine is not to end a trial
            log=folder / "agent_server.log",
            env=child_environment(TMPDIR=str(folder)),
        )
        try:
            yield server, folder
        finally:
            server.stop()


async def _measure(server: AgentServer, alone: int, together: int) -> Findings:
    policy = ScriptedPolicy()
    sessions = SessionServer(SessionStore(policy, max_context=MAX_SEQ_LEN))
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
        # As the plugins ask: none waits for a connection, and none is sent into one that is just being closed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=TRIAL_SECONDS, limits=limits, trust_env=False)

    async def trial(self) -> float:
        """Plays the next task rightly; the seconds from asking to the reply. Raises RecipeError."""
        start = time.perf_counter()
        answer = await self.play()
        if answer.get("reward") != 1:
            raise RecipeError("a trial went wrong", expected="reward 1", found=answer)
        return time.perf_counter() - start

    async def play(self, name: str = "", checks: int = 1) -> dict[str, Any]:
        """The next task's right command, its check so many times, a final message; the answer and its session_id."""
        task = next(self._tasks)
        behaviour = SMOKE_BEHAVIOURS[task]
        session = self._sessions.store.open()
        turns = camel_turns([behaviour.right, *[behaviour.check] * checks])
        self._policy.play(session.id, turns)
        body = {
            "instance_id": task,
            "trial_name": name,
            "base_url": f"{session.base_url}/v1",
            "session_server_instance_id": self._sessions.instance_id,
            "model": "openai/tiny",
            "sampling_params": {"temperature": 1.0, "max_tokens": 96, "max_iterations": len(turns) + 1},
            "agent_name": "camel",
            "max_seq_len": MAX_SEQ_LEN,
        }
        answer = await self.post("/run", body)
        await self._sessions.store.close(session.id)
        return answer | {"session_id": session.id}

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The agent server's answer."""
        answer: dict[str, Any] = (await self._http.post(f"{self._url}{path}", json=body)).json()
        return answer

    async def close(self) -> None:
        """Closes the connections to the agent server."""
        await self._http.aclose()
