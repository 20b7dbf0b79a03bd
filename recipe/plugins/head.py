"""What only the head node is asked: whether its router passes on what a rollout needs. Standard library only."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"
CHAT = "/v1/chat/completions"
# Token-in/token-out and the replay of routes rest on them; the router that PyPI has drops them in silence.
NEEDED = {"input_ids": [1, 2], "return_meta_info": True, "return_routed_experts": True}
# A router answers within a second or two of its start.
ROUTER_SECONDS = 30.0
POST_SECONDS = 5.0


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
