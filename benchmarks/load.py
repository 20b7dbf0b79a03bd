"""160 trials at once, production's number: what they cost, that none is lost or doubled, and how fast a flush is.

Real are the agent server, CAMEL, the sandboxes, the verifiers and the session server; the engine is scripted, and
takes as long for a call as a seed says. A trial that is lost or doubled fails the benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.measure import Findings, Row, percentile
from benchmarks.trials import MAX_SEQ_LEN, Player, agent_server
from recipe.engines.local.conversation import ChatReply, ChatRequest
from recipe.engines.local.lessons import ScriptedPolicy
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.errors import RecipeError
from recipe.harbor.server import AgentServer

AT_ONCE = 160  # AGENT_MAX_CONCURRENT of a cluster's run
TRIALS, QUICK_TRIALS = 480, 160
CHECKS = 4  # after the right command; with the final message, six turns
# Of one call. A busy engine takes ten times as long for 160 trials, a warm and idle one a tenth: with that, two cores
# would be measured that can't keep up with 160 agents and their sandboxes.
CALL_SECONDS = (2.0, 8.0)
SEED = 1
LONG = 50  # checks of a trial that is to run until it is flushed: minutes
BEGIN_SECONDS, FLUSH_SECONDS = 300.0, 60.0
GOAL_SECONDS = 2.0


class SlowEngine(ScriptedPolicy):
    """Plays the script; how long each call takes is drawn, and noted by session."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._closed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """The next turn of the script, after a while; as the session is closed, nothing."""
        seconds = float(np.random.default_rng((SEED, *request.stream)).uniform(*CALL_SECONDS))
        self.seconds[request.session_id].append(seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed[request.session_id].wait(), seconds)
        if request.session_id not in self._turns:  # it may have been closed before this call began
            return GenerateReply([], [], None, "abort")
        return await super().generate(request)

    async def close_session(self, session_id: str) -> None:
        """Ends its call, as a real engine does."""
        await super().close_session(session_id)
        if session_id in self._closed:
            self._closed.pop(session_id).set()


class TimedStore(SessionStore):
    """Notes the seconds of each call from the read request to the reply, the engine's own among them."""

    def __init__(self, engine: SlowEngine) -> None:
        super().__init__(engine, max_context=MAX_SEQ_LEN)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    async def chat(self, session_id: str, request: ChatRequest) -> ChatReply:
        """A turn, timed."""
        start = time.perf_counter()
        reply = await super().chat(session_id, request)
        self.seconds[session_id].append(time.perf_counter() - start)
        return reply


@dataclass
class Load:
    """Both servers, who asks them, and what was found so far."""

    folder: Path
    server: AgentServer
    engine: SlowEngine
    sessions: SessionServer
    player: Player
    findings: Findings = field(default_factory=lambda: Findings("Load"))

    @property
    def store(self) -> TimedStore:
        assert isinstance(self.sessions.store, TimedStore)
        return self.sessions.store

    def add(self, subject: str, unit: str, value: float, limit: float | None = None) -> None:
        """A row; with a `limit`, the goal is to stay below it."""
        goal = "" if limit is None else f"< {limit:g} {unit}"
        self.findings.rows.append(
            Row(subject, unit, value, goal=goal, met=None if limit is None else value < limit)
        )


def run(*, quick: bool) -> Findings:
    """Throughput, latency, memory, seconds of a flush. Raises RecipeError."""
    with agent_server(AT_ONCE) as (server, folder):
        return asyncio.run(_measure(folder, server, QUICK_TRIALS if quick else TRIALS))


async def _measure(folder: Path, server: AgentServer, trials: int) -> Findings:
    engine = SlowEngine()
    sessions = SessionServer(TimedStore(engine))
    await sessions.start(port=0)
    load = Load(folder, server, engine, sessions, Player(server, sessions, engine))
    try:
        await load.player.trial()  # imports, and the sandbox's first files
        await _work(load, trials)
        await _flush(load, "/flush")
        await _flush(load, "/flush_all")
    finally:
        await load.player.close()
        await sessions.stop()
    return load.findings


async def _work(load: Load, trials: int) -> None:
    names = [f"load-{number:04d}" for number in range(trials)]
    before = _finished(load.server)
    busy, start = _cpu(load.server), time.perf_counter()
    answers = await asyncio.gather(*(load.player.play(name, CHECKS) for name in names))
    seconds = time.perf_counter() - start
    server, own = (after - before for after, before in zip(_cpu(load.server), busy, strict=True))
    wrong = misgraded(load.folder / "trials", names, answers, _finished(load.server) - before)
    if wrong:
        raise RecipeError(f"{len(wrong)} of {trials} trials went wrong", found="; ".join(wrong[:5]))
    load.add(f"trials, {AT_ONCE} at once", "trials/s", trials / seconds)
    _latencies(load, names, answers)
    load.findings.notes.append(
        f"{trials} trials of {CHECKS + 2} turns, of which {AT_ONCE} ran at once, by the wall clock, on "
        f"{psutil.cpu_count()} cores; a call of the engine takes {CALL_SECONDS[0]:g} to {CALL_SECONDS[1]:g} s. "
        f"CPU of a trial: {server / trials * 1e3:.0f} ms of the agent server's process (sandboxes not counted), "
        f"{own / trials * 1e3:.0f} ms of the session server's."
    )


def _finished(server: AgentServer) -> int:
    """How many trials the server has run so far, whoever got their answers."""
    return int(httpx.get(f"{server.url}/health", trust_env=False).json()["finished"])


def misgraded(trials_dir: Path, names: list[str], answers: list[dict[str, Any]], finished: int) -> list[str]:
    """What is wrong with trials that should each have been graded once, with reward 1."""
    wrong = [] if finished == len(names) else [f"the server ran {finished} trials for {len(names)} requests"]
    answered = Counter(answer["trial_name"] for answer in answers)
    wrong += [f"{name}: {count} answers" for name in names if (count := answered[name]) != 1]
    wrong += [f"{name}: no folder" for name in names if not (trials_dir / name).is_dir()]
    for answer in answers:
        if answer["reward"] != 1 or answer["agent_metrics"].get("turns") != CHECKS + 2:
            wrong.append(f"{answer['trial_name']}: {answer}")
    return wrong


def _latencies(load: Load, names: list[str], answers: list[dict[str, Any]]) -> None:
    """What a call takes beyond the engine's own seconds, as the agent sees it and inside of the session server."""
    agents, store = [], []
    for name, answer in zip(names, answers, strict=True):
        engine = load.engine.seconds[answer["session_id"]]
        seen = list(seen_by_agent(load.folder / "trials" / name / "agent" / "trajectory.jsonl"))
        agents += added(seen, engine, name)
        store += added(load.store.seconds[answer["session_id"]], engine, name)
    for percent in (50, 99):
        load.add(f"added to a model call, p{percent}", "ms", percentile(agents, percent))
        load.add(f"  of it in the session store, p{percent}", "ms", percentile(store, percent))
    load.findings.notes.append(
        f"Added: {len(agents)} calls as the agent sees them (from the last message that it added to the reply, by its "
        "own trajectory.jsonl), without the seconds that the engine was to take. The agents share one event loop."
    )


def added(calls: Sequence[float], engine: Sequence[float], name: str) -> list[float]:
    """Milliseconds of each call beyond the engine's. Raises RecipeError when the engine had more calls, or fewer."""
    if len(calls) != len(engine):
        raise RecipeError(
            "a trial has calls without a reply", expected=len(calls), found=len(engine), where=name
        )
    return [(one - other) * 1e3 for one, other in zip(calls, engine, strict=True)]


def seen_by_agent(trajectory: Path) -> Iterator[float]:
    """Seconds of each model call of a trial."""
    asked = 0.0
    for line in trajectory.read_text().splitlines():
        told = json.loads(line)
        if told.get("message", {}).get("role") == "assistant":
            yield told["time"] - asked
        asked = told["time"]


async def _flush(load: Load, path: str) -> None:
    """Ends AT_ONCE running trials by a flush, and measures what they take before and how long they take to go."""
    idle, idle_self = memory(load.server), psutil.Process().memory_full_info().pss
    known = len(load.engine.seconds)
    name = path.removeprefix("/")
    plays = (load.player.play(f"{name}-{number:04d}", LONG) for number in range(AT_ONCE))
    runs = [asyncio.create_task(play) for play in plays]
    async with _within(BEGIN_SECONDS, f"the start of the trials for {path}"):
        while len(load.engine.seconds) < known + AT_ONCE:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)
    peak, peak_self = memory(load.server), psutil.Process().memory_full_info().pss
    if path == "/flush":
        load.add(f"agent server and {AT_ONCE} sandboxes", "MB", peak / 1e6)
        load.add("  of it, a trial", "MB", (peak - idle) / AT_ONCE / 1e6)
        load.add(f"session server, {AT_ONCE} sessions", "MB", (peak_self - idle_self) / 1e6)
    start = time.perf_counter()
    body = {"session_server_instance_id": load.sessions.instance_id}
    async with _within(FLUSH_SECONDS, path):
        cancelled = (await load.player.post(path, body))["cancelled"]
        load.add(f"{path} until its reply", "s", time.perf_counter() - start, limit=GOAL_SECONDS)
        answers = await asyncio.gather(*runs)
        while left(load.server, load.folder):  # noqa: ASYNC110 - nor of these
            await asyncio.sleep(0.02)
    load.add(f"{path} until nothing is left", "s", time.perf_counter() - start, limit=GOAL_SECONDS)
    statuses = Counter(answer["exit_status"] for answer in answers)
    if cancelled != AT_ONCE or statuses != {"Flushed": AT_ONCE}:
        raise RecipeError(
            f"{path} lost trials",
            expected=f"{AT_ONCE} cancelled and Flushed",
            found=f"{cancelled}, {statuses}",
        )


@contextlib.asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises RecipeError after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise RecipeError(f"{what} took more than {seconds:g} s") from error


def left(server: AgentServer, folder: Path) -> list[object]:
    """Folders of sandboxes, and processes, that are still there."""
    scratch = [path for root in folder.glob("inkling-grpo-*") for path in root.iterdir()]
    return scratch or psutil.Process(server.process.leader.pid).children(recursive=True)


def memory(server: AgentServer) -> int:
    """Bytes of the agent server and all its descendants; what several share counts once (PSS)."""
    process = psutil.Process(server.process.leader.pid)
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total


def _cpu(server: AgentServer) -> tuple[float, float]:
    """Seconds of CPU so far: of the agent server's process, and of this one, which has the session server."""
    of_both = (psutil.Process(server.process.leader.pid), psutil.Process())
    first, second = (sum(process.cpu_times()[:2]) for process in of_both)
    return first, second
