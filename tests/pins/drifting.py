"""What the tests of pins share: repositories made on the spot, changed files, and what a service answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from recipe.drift.lines import Line


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, files: dict[str, str]) -> str:
    """Writes `files`, in a repository that is made when needed, and commits them; the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "state")
    return git(folder, "rev-parse", "HEAD")


def change(path: Path, old: str, new: str) -> int:
    """Replaces the first `old` in a file; the line that it is on."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text.count("\n", 0, text.index(old)) + 1


def other_digit(literal: str) -> str:
    """`literal` with another last digit."""
    return literal[:-1] + ("0" if literal[-1] != "0" else "1")


def only_drift(lines: Iterator[Line]) -> dict[str, str]:
    """The facts of the one line that is bad."""
    bad = [line for line in lines if line.bad]
    assert len(bad) == 1, [str(line) for line in bad]
    return dict(bad[0].facts)


Answer = Callable[[BaseHTTPRequestHandler], None]


def reply(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str] | None = None, body: bytes = b""
) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def git_service(folder: Path) -> Answer:
    """git's own HTTP backend over the repositories in `folder`; it serves any commit by its name."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        path, _, query = request.path.partition("?")
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.environ["GIT_CONFIG_GLOBAL"],
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": request.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding") or "",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol") or "",
        }
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=environment)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        reply(request, int(headers.pop("Status", "200").split()[0]), headers, content)

    return answer
