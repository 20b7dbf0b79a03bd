"""What only the head node is asked: whether its router passes on what a rollout needs, and how fast session servers
start there. Standard library only."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
CHAT = "/v1/chat/completions"
# Token-in/token-out and the replay of routes rest on them; the router that PyPI has drops them in silence.
NEEDED = {"input_ids": [1, 2], "return_meta_info": True, "return_routed_experts": True}
# A router answers within a second or two of its start.
ROUTER_SECONDS = 30.0
POST_SECONDS = 5.0
# Two servers took 45 s on two cores; the head of a cluster has a hundred.
SESSION_SECONDS = 90.0
# One session server of Miles, as its manager starts it; what it is not told here it has a default for.
SESSION_SERVER = """
import sys
from types import SimpleNamespace
from miles.rollout.session.server import run_session_server
port, model = sys.argv[1:]
run_session_server(
    SimpleNamespace(
        session_server_ip="127.0.0.1",
        session_server_port=int(port),
        session_server_instance_id="probe",
        use_session_server=True,
        hf_checkpoint=model,
        tito_model="inkling",
    ),
    "http://127.0.0.1:1",
)
"""


def router(module: str = "sglang_router.launch_router") -> dict[str, Any]:
    """`dropped`: of NEEDED what does not arrive behind a router; or `skipped`/`error` with the reason."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return {"skipped": f"this Python has no {module.partition('.')[0]}"}
    with _Engine((LOOPBACK, 0), _Handler) as engine, tempfile.TemporaryFile() as log:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        address, metrics = _free_port(), _free_port()
        command = [sys.executable, "-m", module, "--host", LOOPBACK, "--port", str(address)]
        command += ["--prometheus-port", str(metrics), "--log-level", "warn"]
        command += ["--worker-urls", f"http://{LOOPBACK}:{engine.server_port}"]
        # Else it asks Hugging Face for a tokenizer of the model's name.
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            _post_until(engine, process, f"http://{LOOPBACK}:{address}{CHAT}")
        finally:
            # It has nothing to bring in order, and a router that is asked to end takes seconds.
            process.kill()
            process.wait()
            engine.shutdown()
        if engine.chat is not None:
            return {"dropped": [name for name, value in NEEDED.items() if engine.chat.get(name) != value]}
        log.seek(0)
        said = log.read().decode(errors="replace").strip()[-300:]
        return {"error": f"no request arrived within {ROUTER_SECONDS:g} s: {said or 'it said nothing'}"}


def session_servers(miles: str, megatron: str, model: str) -> dict[str, Any]:
    """Starts two at once and ends them: `seconds` until both listen, `cpu_seconds` of each, `cores` here; or
    `skipped`/`error` with the reason."""
    if not Path(miles, "miles", "rollout", "session", "server.py").is_file():
        return {"skipped": f"{miles} has no session server"}
    env = {**os.environ, "PYTHONPATH": f"{megatron}:{miles}", "HF_HUB_OFFLINE": "1"}
    ports = (_free_port(), _free_port())
    with tempfile.TemporaryFile() as log:
        start, cpu_start = time.monotonic(), _children_cpu_seconds()
        servers = []
        try:
            for port in ports:
                command = [sys.executable, "-P", "-c", SESSION_SERVER, str(port), model]
                servers.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd="/"))
            listening = all(
                _listens(port, server, start) for port, server in zip(ports, servers, strict=True)
            )
            seconds = time.monotonic() - start
        finally:
            for server in servers:
                server.kill()
                server.wait()
        if listening:
            cpu_seconds = (_children_cpu_seconds() - cpu_start) / len(servers)
            return {"seconds": seconds, "cpu_seconds": cpu_seconds, "cores": len(os.sched_getaffinity(0))}
        log.seek(0)
        said = log.read().decode(errors="replace").strip()[-300:]
        return {"error": f"not both listened within {SESSION_SECONDS:g} s: {said or 'they said nothing'}"}


def _children_cpu_seconds() -> float:
    """Of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _listens(port: int, server: subprocess.Popen[bytes], start: float) -> bool:
    while server.poll() is None and time.monotonic() - start < SESSION_SECONDS:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
        time.sleep(0.1)
    return False


class _Engine(ThreadingHTTPServer):
    """What a router takes for an engine; `chat` is the request that arrived."""

    daemon_threads = True
    chat: dict[str, Any] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: _Engine

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == CHAT:
            self.server.chat = json.loads(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(
            b'{"id": "0", "object": "chat.completion", "created": 0, "model": "m", "choices": []}'
        )

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


def _post_until(engine: _Engine, process: subprocess.Popen[bytes], url: str) -> None:
    """Until a request has arrived, the router has ended, or it is too late."""
    message = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **NEEDED}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)  # noqa: S310 - loopback
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + ROUTER_SECONDS
    while engine.chat is None and process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):  # until it listens and has found its engine, it refuses
            direct.open(request, timeout=POST_SECONDS).close()
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
