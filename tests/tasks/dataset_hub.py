"""A small stand-in for the Hugging Face hub on the loopback: one dataset at one commit, as the real one serves it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`files`: content by path; those in `large` are served as LFS files. `served`: paths that were downloaded."""

    def __init__(self, repository: str, files: dict[str, bytes], large: tuple[str, ...] = ()) -> None:
        self.repository, self.files, self.large = repository, files, large
        self.listed = dict(files)
        self.served: list[str] = []
        self.stalls = ""  # of this file only the first half comes, until `free` is set
        self.half_sent, self.free = threading.Event(), threading.Event()
        self.url = ""

    def tree(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = [
            {"type": "directory", "path": path.rpartition("/")[0], "oid": "0" * 40, "size": 0}
            for path in self.files
            if "/" in path
        ]
        for path, content in self.listed.items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
            if path in self.large:
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        return entries

    @contextmanager
    def running(self) -> Iterator[Hub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            self.free.set()
            server.shutdown()
            thread.join()
            server.server_close()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, *, send: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        tree = f"/api/datasets/{self.hub.repository}/tree/{REVISION}"
        files = f"/datasets/{self.hub.repository}/resolve/{REVISION}/"
        if path == tree:
            self.reply(json.dumps(self.hub.tree()).encode(), {"Content-Type": "application/json"}, send=send)
        elif path.startswith(files) and path.removeprefix(files) in self.hub.files:
            self.file(path.removeprefix(files), send=send)
        else:
            self.reply(b"", {"X-Error-Code": "RepoNotFound"}, status=404, send=send)

    def file(self, path: str, *, send: bool) -> None:
        content = self.hub.files[path]
        if send:
            self.hub.served.append(path)
        tag = sha256(content) if path in self.hub.large else blob_id(content)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(
            content[start:], headers, status=206 if start else 200, send=send, stall=path == self.hub.stalls
        )

    def reply(
        self,
        body: bytes,
        headers: dict[str, str],
        *,
        status: int = 200,
        send: bool,
        stall: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if send and stall:
            self.wfile.write(body[: len(body) // 2])
            self.hub.half_sent.set()
            self.hub.free.wait()
        elif send:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
