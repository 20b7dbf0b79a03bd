"""A small agent server on loopback, whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


@dataclass
class AgentServer:
    """`answer` gives (status, body) for a request's path and body."""

    answer: Callable[[str, dict[str, Any]], Answer]
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""


class _Http(ThreadingHTTPServer):
    request_queue_size = 128  # many trials connect at once


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[AgentServer]:
    server = AgentServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.requests.append((self.path, body))
            status, content = server.answer(self.path, body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with _Http(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def answering(**answer: Any) -> Callable[[str, dict[str, Any]], Answer]:
    return lambda _path, _body: (200, json.dumps(answer).encode())
