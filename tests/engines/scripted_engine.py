"""An engine that replies with chosen token ids, and the session server and client around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from inkling_text import ids_of

from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import Finish, GenerateReply, GenerateRequest

STOP = "<|end_message|><|content_model_end_sampling|>"
DONE = f"<|content_text|>Done.{STOP}"
CALL = f'f<|content_invoke_tool_json|>{{"name":"f","args":{{"a":1}}}}{STOP}'


def reply(text: str | list[int], *, finish: Finish = "stop", prompt: int | None = None) -> GenerateReply:
    """A reply of these tokens; with routes when the prompt's length is given."""
    ids = ids_of(text) if isinstance(text, str) else text
    routes = (
        None if prompt is None else np.arange((prompt + len(ids) - 1) * 2, dtype=np.int8).reshape(-1, 1, 2)
    )
    return GenerateReply(ids, [-0.5 - index for index in range(len(ids))], routes, finish)


@dataclass
class ScriptedEngine:
    """Plays `script`, whose entries are replies, errors, or functions of the request."""

    script: list[GenerateReply | Exception | Callable[[GenerateRequest], GenerateReply]]
    requests: list[GenerateRequest] = field(default_factory=list)
    closed: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    gate: asyncio.Event | None = None  # generation waits for it
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        entry = self.script.pop(0)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(entry, Exception):
            raise entry
        return entry(request) if callable(entry) else entry

    async def close_session(self, session_id: str) -> None:
        self.closed.put_nowait(session_id)


class Client:
    """An OpenAI-style client of one session that keeps its messages."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url
        self.messages: list[dict[str, Any]] = []

    async def post(self, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"{self.url}/v1/chat/completions", json={"model": "m", "messages": self.messages, **body}
        )

    async def say(self, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
        """Adds messages, posts, adds the answer; the whole completion."""
        self.messages += messages
        answer = await self.post(**body)
        assert answer.status_code == 200, answer.text
        completion: dict[str, Any] = answer.json()
        self.messages.append(completion["choices"][0]["message"])
        return completion


@asynccontextmanager
async def served(
    engine: ScriptedEngine, **limits: Any
) -> AsyncIterator[tuple[SessionServer, httpx.AsyncClient]]:
    server = SessionServer(SessionStore(engine, **{"max_context": 4096, **limits}))
    await server.start(port=0)
    try:
        async with httpx.AsyncClient(timeout=30, verify=False) as http:
            yield server, http
    finally:
        await server.stop()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}
