"""The session store over HTTP: OpenAI chat completions at /sessions/<id>/v1/chat/completions.

Requests are read as plain JSON, because every model call of every trial passes here. What a request may not
ask for is how tokens are drawn: the engine samples from the policy itself. Not covered: streaming.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

from recipe.engines.local.conversation import ChatReply, ChatRequest, HistoryEditedError
from recipe.engines.local.rendering import UnrenderableMessageError
from recipe.engines.local.sessions import (
    ContextLengthError,
    EngineFailedError,
    SessionLimitError,
    SessionNotFoundError,
    SessionStore,
    TurnLimitError,
)
from recipe.errors import BadInputError, RecipeError
from recipe.process import LOOPBACK

logger = logging.getLogger(__name__)

# Chats that still run when the server stops belong to no trial any more.
STOP_SECONDS = 1
# Longer than any client keeps an idle connection (httpx: 5 s), so that the client is the one that closes it:
# a request sent into a closing connection would fail.
KEEP_ALIVE_SECONDS = 60

# The only values that mean "sample from the policy itself, once"; a field left out or null means the same.
POLICY_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1,),
    "min_p": (0,),
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "stop": ([],),
    "stream": (False,),
    "tool_choice": ("auto",),
}


class BadChatError(RecipeError):
    """The body of a request is not a chat completion request that can be honoured."""


STATUS_OF_ERROR: dict[type[RecipeError], int] = {
    BadChatError: 400,
    UnrenderableMessageError: 400,
    HistoryEditedError: 400,
    ContextLengthError: 400,
    TurnLimitError: 400,
    SessionNotFoundError: 404,
    EngineFailedError: 502,
    SessionLimitError: 503,
}


def application(store: SessionStore, instance_id: str) -> FastAPI:
    """The HTTP routes over `store`."""
    app = FastAPI(openapi_url=None)

    @app.exception_handler(RecipeError)
    async def refuse(_: Request, error: RecipeError) -> Response:
        if isinstance(error, EngineFailedError):
            logger.error("a model call failed", exc_info=error)
        status = STATUS_OF_ERROR.get(type(error), 500)
        return _json({"error": {"message": str(error), "type": type(error).__name__, "code": status}}, status)

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "session_server_instance_id": instance_id, "sessions": len(store)})

    @app.post("/sessions")
    async def open_session() -> Response:
        return _json({"session_id": store.open().id})

    @app.get("/sessions/{session_id}")
    async def show_session(session_id: str) -> Response:
        return _json(store.get(session_id).summary())

    @app.delete("/sessions/{session_id}")
    async def close_session(session_id: str) -> Response:
        await store.close(store.get(session_id).id)
        return Response(status_code=204)

    @app.post("/sessions/{session_id}/v1/chat/completions")
    async def chat(request: Request, session_id: str) -> Response:
        body = _body(await request.body())
        reply = await store.chat(session_id, _chat_request(body))
        return _json(_completion(body.get("model"), reply))

    return app


class SessionServer:
    """Serves one store inside the running event loop."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.instance_id = uuid.uuid4().hex  # by which /flush of the agent server names this server's trials

    async def start(self, *, port: int, host: str = LOOPBACK) -> None:
        """Serves at host:port (0: any free port) and sets the store's address. Raises BadInputError."""
        listener = _listen(host, port)
        self.host, self.port = host, int(listener.getsockname()[1])
        self.store.address = f"http://{self.host}:{self.port}"
        config = uvicorn.Config(
            application(self.store, self.instance_id),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = _Server(config)
        # No wait: the socket listens already, and queues connections until the task runs.
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Ends the server; chats that still run are cancelled after STOP_SECONDS."""
        self._server.should_exit = True
        await self._task


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process that the server is a guest of."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise BadInputError(
            "the session server can't listen",
            expected="a free port",
            found=error,
            where=f"{host}:{port}",
            run="SESSION_SERVER_PORT=0 takes any free port",
        ) from error
    # Inherited by each connection. Without it a reply's body waits up to 40 ms for the client to acknowledge its
    # header: asyncio sets this only on sockets that name their protocol, which create_server's don't.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadChatError("the body is not JSON", found=error) from error
    if not isinstance(body, dict):
        raise BadChatError("the body must be an object", found=type(body).__name__)
    return body


def _chat_request(body: dict[str, Any]) -> ChatRequest:
    for name, allowed in POLICY_SAMPLING.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            raise BadChatError(
                f"{name} can't be chosen: the engine samples from the policy itself",
                expected=f"{allowed[0]} or nothing",
                found=value,
            )
    # It is sent back, and not all that Python reads is JSON.
    if not isinstance(body.get("model"), str | None):
        raise BadChatError("model must be text", found=type(body["model"]).__name__)
    template = body.get("chat_template_kwargs") or {}
    if not isinstance(template, dict):
        raise BadChatError("chat_template_kwargs must be an object", found=type(template).__name__)
    return ChatRequest(
        messages=_objects(body, "messages"),
        tools=_objects(body, "tools") if body.get("tools") else None,
        max_new_tokens=_max_new_tokens(body),
        effort=template.get("reasoning_effort"),
    )


def _objects(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = body.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadChatError(f"{name} must be a list of at least one object", found=str(value)[:200])
    return value


def _max_new_tokens(body: dict[str, Any]) -> int | None:
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise BadChatError("max_tokens must be a whole number from 1", found=value)
    return value


def _completion(model: object, reply: ChatReply) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": reply.message,
                "finish_reason": reply.finish_reason,
                "meta_info": {"miles_response_parse_error": reply.parse_error} if reply.parse_error else {},
            }
        ],
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value), status_code=status, media_type="application/json")
