"""A chat-completions server on loopback that plays a script of replies, and a shell to run commands in."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harbor.environments.base import ExecResult


@dataclass
class Script:
    """The replies to come, (HTTP status, body) with a text body sent as it is; the requests that came."""

    replies: list[tuple[int, dict[str, Any] | str]]
    delay: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""


def call(arguments: str, *, name: str = "shell_exec", call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def shell(command: str, **arguments: object) -> dict[str, Any]:
    return call(json.dumps({"command": command, **arguments}))


def reply(
    *calls: dict[str, Any], content: str = "", finish: str | None = None, **message: Any
) -> tuple[int, Any]:
    """A reply with `calls`; keys of `message` beginning with `choice_` go beside the message."""
    beside = {
        key.removeprefix("choice_"): message.pop(key) for key in list(message) if key.startswith("choice_")
    }
    said = {
        "role": "assistant",
        "content": content,
        **message,
        **({"tool_calls": list(calls)} if calls else {}),
    }
    choice = {
        "index": 0,
        "finish_reason": finish or ("tool_calls" if calls else "stop"),
        "message": said,
        **beside,
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return 200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}


@contextmanager
def serve(*replies: tuple[int, Any], delay: float = 0.0) -> Iterator[Script]:
    """Plays `replies` in order, the last one for ever."""
    script = Script(list(replies), delay)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    script.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            script.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(script.delay)
            status, body = script.replies[min(len(script.requests), len(script.replies)) - 1]
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class Shell:
    """The one method of a Harbor environment that the agent uses, run in a folder of this host."""

    def __init__(self, folder: Path, failure: Exception | None = None) -> None:
        self.folder = folder
        self.failure = failure

    async def exec(self, command: str, timeout_sec: int | None = None) -> ExecResult:
        if self.failure is not None:
            raise self.failure
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_sec):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        decoded = (out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape"))
        return ExecResult(stdout=decoded[0], stderr=decoded[1], return_code=process.returncode)
