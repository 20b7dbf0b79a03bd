"""A stand-in of the hub on the loopback: one repository at one revision, as huggingface_hub asks for it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY, REVISION = "thinkingmachines/Inkling-Small", "8c" * 20


class Hub:
    """What is served, what was asked, and what goes wrong on purpose."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.lies: dict[str, bytes] = {}  # served in place of what is listed
        self.unlisted: set[str] = set()
        self.cut: dict[str, int] = {}  # the connection breaks after so many bytes, once
        self.stall: dict[str, int] = {}  # nothing more comes after so many bytes
        self.stalled = threading.Event()
        self.ended = threading.Event()
        self.requests: list[tuple[str, str, str | None]] = []
        self.tokens: set[str | None] = set()
        self.commits: list[str] = []
        self.url = ""

    def listing(self) -> list[dict[str, object]]:
        return [self._entry(name, data) for name, data in self.files.items() if name not in self.unlisted]

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": blob(data)}
        if name.endswith(".safetensors"):
            sha256 = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
        return entry

    def etag(self, name: str) -> str:
        entry = self._entry(name, self.files[name])
        lfs = entry.get("lfs")
        return str(lfs["oid"] if isinstance(lfs, dict) else entry["oid"])


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        self.server.hub.tokens.add(self.headers.get("Authorization"))
        if f"/models/{REPOSITORY}/tree/{REVISION}" in self.path:
            self._json(200, self.server.hub.listing())
        elif "/tree/" in self.path:
            self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        elif found := re.fullmatch(f"/{REPOSITORY}/resolve/{REVISION}/(.+)", self.path.partition("?")[0]):
            self._file(found[1])
        else:
            self._json(404, {"error": "not found"}, {"X-Error-Code": "EntryNotFound"})

    def do_POST(self) -> None:
        hub, body = self.server.hub, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply: dict[str, object] = {}
        if "/preupload/" in self.path:
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            reply = {"files": [{"path": asked["path"], **mode} for asked in json.loads(body)["files"]]}
        elif "/commit/" in self.path:
            hub.commits.append(body.decode())
            reply = {"commitUrl": f"{hub.url}/someone/model/commit/{REVISION}", "commitOid": REVISION}
        elif self.path.endswith("/repos/create"):
            hub.commits.append(body.decode())
            reply = {"url": f"{hub.url}/someone/{json.loads(body)['name']}"}
        self._json(200, reply)

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _file(self, name: str) -> None:
        data = self.server.hub.lies.get(name, self.server.hub.files[name])
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{self.server.hub.etag(name)}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.server.hub.stall:
            self.wfile.write(data[start : self.server.hub.stall[name]])
            self.wfile.flush()
            self.server.hub.stalled.set()
            self.server.hub.ended.wait(60)
            self.close_connection = True
        elif (end := self.server.hub.cut.pop(name, None)) is not None:
            self.wfile.write(data[start:end])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """The stand-in while it serves."""
    hub = Hub(files)
    server = _Server(hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
