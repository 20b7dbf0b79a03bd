"""Many trials at once are each graded once or all flushed, and neither they nor many sandboxes leave anything.

`make bench` has production's number of trials.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from proofs import cgroups_of, left_in, processes_naming, wait_until
from scripted_model import reply, shell

from recipe.harbor.sandbox import Sandbox
from recipe.harbor.server import AgentServer, start_agent_server
from recipe.process import LOOPBACK

AT_ONCE = 32
SECONDS = 300.0  # of the slowest of all trials, on a machine that does other things too
SANDBOXES, SANDBOXES_AT_ONCE = 120, 4
CHECK = 'if [ "$(cat answer)" = 12 ]; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt'
FIRST, SECOND = "printf 1 > answer", "printf 2 >> answer"


def typed(command: str, *, done: bool) -> tuple[int, Any]:
    keys = [{"keystrokes": f"{command}\n", "duration": 0.1}]
    said = {"analysis": "", "plan": "", "commands": keys, "task_complete": done}
    return reply(content=json.dumps(said))


TURNS = {
    "camel": [reply(shell(FIRST)), reply(shell(SECOND)), reply(content="Done.")],
    "terminus-2": [typed(FIRST, done=False), typed(SECOND, done=True), typed("true", done=True)],
}
ENDLESS = [reply(shell("true"))] * 10_000


@contextmanager
def model(turns: list[tuple[int, Any]]) -> Iterator[tuple[str, Counter[str]]]:
    """Plays `turns` in every session: which one is next, the request's history says. Counts each one's calls."""
    calls: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls[self.path.split("/")[2]] += 1  # of one session, only one call is under way
            played = sum(message["role"] == "assistant" for message in request["messages"])
            body = json.dumps(turns[played][1]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = AT_ONCE

    with Server((LOOPBACK, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}/sessions", calls
        server.shutdown()
        thread.join()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], AgentServer]]:
    folder = Path(tempfile.mkdtemp(prefix="inkling-grpo-test-"))
    folder.chmod(0o755)
    servers = []

    def started(agent: str) -> AgentServer:
        server = start_agent_server(
            tasks_dir=tmp_path / "tasks",
            trials_dir=tmp_path / "trials",
            agent=agent,
            backend="local",
            host=LOOPBACK,
            port=0,
            max_concurrent=AT_ONCE,
            agent_timeout_multiplier=1,
            log=tmp_path / "agent_server.log",
            env=dict(os.environ) | {"TMPDIR": str(folder)},
        )
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.stop()
    left = left_in(folder / f"inkling-grpo-{os.getuid()}"), processes_naming(folder)
    shutil.rmtree(folder)
    assert left == ([], [])


def held(pid: int) -> dict[str, int]:
    """What a process has open, how many children it has, and how many groups there are of its sandboxes."""
    children = sum(len(path.read_text().split()) for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return {
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "children": children,
        "groups": len(cgroups_of(f"{pid}-*")),
    }


def no_more(now: dict[str, int], then: dict[str, int]) -> bool:
    return all(now[name] <= then[name] for name in then)


def client(server: AgentServer) -> httpx.AsyncClient:
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=0
    )  # the server holds nothing for us
    return httpx.AsyncClient(base_url=server.url, timeout=SECONDS, limits=limits, trust_env=False)


async def play(
    http: httpx.AsyncClient, agent: str, url: str, session: str, *, turns: int = 5, instance: str = "one"
) -> dict[str, Any]:
    body = {"instance_id": "task", "base_url": f"{url}/{session}/v1", "model": "openai/tiny"}
    body |= {"agent_name": agent, "sampling_params": {"max_iterations": turns}, "max_seq_len": 4096}
    body |= {"trial_name": session, "session_server_instance_id": instance}
    return (await http.post("/run", json=body)).json()


async def held_after_one(
    http: httpx.AsyncClient, server: AgentServer, agent: str, url: str
) -> dict[str, int]:
    """What the server holds once it has opened what stays open."""
    await play(http, agent, url, "first")
    # Its connection may be closed only now: what is there then is all that may be there later.
    await asyncio.sleep(1)
    return held(server.process.leader.pid)


def assert_nothing_more(server: AgentServer, before: dict[str, int]) -> None:
    with contextlib.suppress(AssertionError):  # the next line says what there is
        wait_until(lambda: no_more(held(server.process.leader.pid), before))
    assert no_more(held(server.process.leader.pid), before), (held(server.process.leader.pid), before)


@pytest.mark.parametrize("agent", TURNS)
def test_many_trials_at_once_are_each_graded_once_and_leave_nothing(
    agent: str, make_task, tmp_path: Path, start: Callable[[str], AgentServer]
) -> None:
    make_task(test=CHECK, agent_seconds=SECONDS)
    names = [f"trial-{number}" for number in range(AT_ONCE)]

    async def main(server: AgentServer, url: str) -> list[dict[str, Any]]:
        async with client(server) as http:
            before = await held_after_one(http, server, agent, url)
            # Each is asked for twice, as by a client that repeats a request.
            replies = await asyncio.gather(*(play(http, agent, url, name) for name in [*names, *names]))
            assert_nothing_more(server, before)
        return replies

    with model(TURNS[agent]) as (url, calls):
        replies = asyncio.run(main(start(agent), url))
    assert [reply["error"] for reply in replies if reply["reward"] != 1] == []
    assert {reply["exit_status"] for reply in replies} == {"Submitted"}
    assert [reply["trial_name"] for reply in replies] == [*names, *names]
    assert replies[:AT_ONCE] == replies[AT_ONCE:]
    assert calls == dict.fromkeys(["first", *names], len(TURNS[agent]))
    graded = [path.parent.parent.name for path in (tmp_path / "trials").glob("*/verifier/reward.txt")]
    assert sorted(graded) == sorted(["first", *names])


def test_a_flush_of_many_running_trials_ends_them_all_and_no_other(
    make_task, tmp_path: Path, start: Callable[[str], AgentServer]
) -> None:
    make_task(agent_seconds=SECONDS)
    sessions = {
        f"{instance}-{number}": instance for number in range(AT_ONCE // 2) for instance in ("one", "two")
    }

    async def main(server: AgentServer, url: str, calls: Counter[str]) -> None:
        async with client(server) as http:
            with model(TURNS["camel"]) as (short, _):
                before = await held_after_one(http, server, "camel", short)
            runs = {
                session: asyncio.ensure_future(
                    play(http, "camel", url, session, turns=len(ENDLESS), instance=instance)
                )
                for session, instance in sessions.items()
            }
            async with asyncio.timeout(SECONDS):
                while not calls.keys() >= sessions.keys():
                    await asyncio.sleep(0.02)
            flushed = await http.post("/flush", json={"session_server_instance_id": "one"})
            assert flushed.json() == {"cancelled": AT_ONCE // 2}
            assert (await http.get("/health")).json()["active"] == AT_ONCE // 2
            assert (await http.post("/flush_all", json={})).json() == {"cancelled": AT_ONCE // 2}
            replies = await asyncio.gather(*runs.values())
            assert Counter(reply["exit_status"] for reply in replies) == {"Flushed": AT_ONCE}
            assert {reply["reward"] for reply in replies} == {None}
            assert_nothing_more(server, before)

    with model(ENDLESS) as (url, calls):
        asyncio.run(main(start("camel"), url, calls))
    assert not list((tmp_path / "trials").glob("[ot]*/verifier/reward.txt"))


def test_many_sandboxes_leave_no_process_descriptor_folder_or_group(scratch_root: Path) -> None:
    async def cycle() -> None:
        box = Sandbox(root=scratch_root)
        await box.start()
        try:
            command = "setsid sleep 1000 & echo x > /app/x"
            assert (await box.run(["/bin/bash", "-c", command])).code == 0
        finally:
            await box.stop()

    async def several(count: int) -> None:
        for _ in range(count):
            await cycle()

    async def main() -> None:
        await cycle()
        before = held(os.getpid())
        await asyncio.gather(*(several(SANDBOXES // SANDBOXES_AT_ONCE) for _ in range(SANDBOXES_AT_ONCE)))
        assert no_more(held(os.getpid()), before)
        assert not left_in(scratch_root)
        assert not processes_naming(scratch_root)

    asyncio.run(main())
