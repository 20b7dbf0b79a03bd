"""Many trials at once all finish, and many sandboxes one after another leave nothing: the counts are equal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
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

AT_ONCE = 64
SECONDS = 300.0  # of the slowest of all trials, on a machine that does other things too
SANDBOXES, SANDBOXES_AT_ONCE = 500, 4
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


@contextmanager
def model(turns: list[tuple[int, Any]]) -> Iterator[str]:
    """Plays `turns` in every session: which one is next, the request's history says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
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
        yield f"http://{LOOPBACK}:{server.server_port}/sessions"
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


@pytest.mark.parametrize("agent", TURNS)
def test_64_trials_of_three_turns_at_once_all_score_and_leave_nothing(
    agent: str, make_task, start: Callable[[str], AgentServer]
) -> None:
    make_task(test=CHECK, agent_seconds=SECONDS)

    async def play(http: httpx.AsyncClient, url: str, session: str) -> dict[str, Any]:
        body = {"instance_id": "task", "base_url": f"{url}/{session}/v1", "model": "openai/tiny"}
        body |= {"agent_name": agent, "sampling_params": {"max_iterations": 5}, "max_seq_len": 4096}
        return (await http.post("/run", json=body)).json()

    async def main(server: AgentServer, url: str) -> list[dict[str, Any]]:
        limits = httpx.Limits(max_keepalive_connections=0)  # the server holds no descriptor for us
        async with httpx.AsyncClient(
            base_url=server.url, timeout=SECONDS, limits=limits, trust_env=False
        ) as http:
            await play(http, url, "first")  # what it opens once stays open
            # Its connection may be closed only now: what is there then is all that may be there later.
            await asyncio.sleep(1)
            before = held(server.process.leader.pid)
            replies = await asyncio.gather(*(play(http, url, str(number)) for number in range(AT_ONCE)))
            with contextlib.suppress(AssertionError):  # the next line says what there is
                wait_until(lambda: no_more(held(server.process.leader.pid), before))
            assert no_more(held(server.process.leader.pid), before), (held(server.process.leader.pid), before)
        return replies

    with model(TURNS[agent]) as url:
        replies = asyncio.run(main(start(agent), url))
    assert [reply["error"] for reply in replies if reply["reward"] != 1] == []
    assert {reply["exit_status"] for reply in replies} == {"Submitted"}
    assert {reply["agent_metrics"]["turns"] for reply in replies} == {3}


def test_500_sandboxes_leave_no_process_descriptor_folder_or_group(scratch_root: Path) -> None:
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
