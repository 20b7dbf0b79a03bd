"""What the session server adds to a model call, over real HTTP on loopback, with an engine that answers at once.

The clients run in a process of their own, as agents do, and open a connection for each call, as they do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import httpx
import numpy as np

from benchmarks.measure import Findings, Row, percentile
from recipe.engines.local.lessons import camel_turns
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import GenerateReply, GenerateRequest

SESSIONS = 8
TURNS = 10
# Each round opens new sessions; the first one warms up.
ROUNDS, QUICK_ROUNDS = 11, 4
# What an agent's tool takes between two calls. Without it the client's one thread would be measured, since
# eight sessions that call at once wait for each other there.
TOOL_SECONDS = (0.02, 0.08)
COMMAND = "sort /app/names.txt > /app/sorted.txt && head -n 3 /app/sorted.txt"
OUTPUT = "".join(f"{name}\n" for name in ("Ada", "Barbara", "Edsger", "Grace", "Ken", "Leslie")) + "[exit 0]"
TEXT = {"type": "string"}
TOOL = {
    "type": "function",
    "function": {
        "name": "shell_exec",
        "description": "Run a bash command; returns output and exit code.",
        "parameters": {"type": "object", "properties": {"command": TEXT}, "required": ["command"]},
    },
}
GOAL_MS = 5.0


class InstantEngine:
    """Answers at once with one tool call and routes of the tiny model's shape."""

    def __init__(self) -> None:
        self._ids = camel_turns([COMMAND])[0]

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """The same turn for every request."""
        routes = np.zeros((len(request.ids) + len(self._ids) - 1, 2, 2), dtype=np.int8)
        return GenerateReply(list(self._ids), [-0.5] * len(self._ids), routes, "stop")

    async def close_session(self, _session_id: str) -> None:
        """Keeps nothing."""


def run(*, quick: bool) -> Findings:
    """Milliseconds of a call beside seven other sessions, p50 and p99, and of the server's CPU."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    milliseconds, cpu = asyncio.run(_measure(rounds))
    p50 = percentile(milliseconds, 50)
    findings = Findings("Session server")
    findings.rows = [
        Row("session server call, p50", "ms", p50, goal=f"< {GOAL_MS:g} ms", met=p50 < GOAL_MS),
        Row("session server call, p99", "ms", percentile(milliseconds, 99)),
        Row("  the server's CPU of it", "ms", cpu),
    ]
    findings.notes = [
        f"{len(milliseconds)} calls of {SESSIONS} sessions at once, {TURNS} turns each: a tool call and its "
        "output, the whole history sent each time. By the wall clock as a client sees it: connecting, sending, "
        f"rendering, parsing, reading; {TOOL_SECONDS[0] * 1e3:.0f} to {TOOL_SECONDS[1] * 1e3:.0f} ms between "
        "a session's calls.",
    ]
    return findings


async def _measure(rounds: int) -> tuple[list[float], float]:
    """Milliseconds of every call after the first round, and of the server's CPU on average."""
    server = SessionServer(SessionStore(InstantEngine(), max_context=32768))
    await server.start(port=0)
    spawn = multiprocessing.get_context("spawn")
    loop = asyncio.get_running_loop()
    measured: list[float] = []
    cpu = 0.0
    try:
        with ProcessPoolExecutor(1, mp_context=spawn) as clients:
            for index in range(rounds):
                if index == 1:
                    measured, cpu = [], time.process_time()
                opened = [server.store.open() for _ in range(SESSIONS)]
                urls = [session.base_url for session in opened]
                measured += await loop.run_in_executor(clients, play, urls)
                for session in opened:
                    await server.store.close(session.id)
            return measured, (time.process_time() - cpu) / len(measured) * 1e3
    finally:
        await server.stop()


def play(urls: list[str]) -> list[float]:
    """Plays one conversation on each session, all at once; milliseconds of every call."""
    return asyncio.run(_play(urls))


async def _play(urls: list[str]) -> list[float]:
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, trust_env=False, verify=False) as http:  # noqa: S501
        played = await asyncio.gather(*(_converse(http, url, index) for index, url in enumerate(urls)))
    return [milliseconds for calls in played for milliseconds in calls]


async def _converse(http: httpx.AsyncClient, url: str, seed: int) -> list[float]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a terminal agent."},
        {"role": "user", "content": "Sort the lines of /app/names.txt into /app/sorted.txt."},
    ]
    measured = []
    for pause in np.random.default_rng(seed).uniform(*TOOL_SECONDS, TURNS):
        await asyncio.sleep(pause)
        start = time.perf_counter()
        answer = await http.post(
            f"{url}/v1/chat/completions",
            json={"model": "tiny", "messages": messages, "tools": [TOOL], "max_tokens": 96},
        )
        measured.append((time.perf_counter() - start) * 1e3)
        message = answer.raise_for_status().json()["choices"][0]["message"]
        call = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": call, "content": OUTPUT}]
    return measured
