"""A camel-ai model backend that sends every message exactly as it first went over the wire.

ChatAgent keeps its own account of a reply: reasoning dropped, arguments re-serialised. Here the n-th assistant
message of a request is the n-th raw reply, and everything else may only ever be appended to.

A turn that is cut or malformed ends the trajectory: ChatAgent is shown a reply without calls, and stops.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from recipe.errors import RecipeError
from recipe.harbor.camel_library import BaseModelBackend, BaseTokenCounter, ChatCompletion
from recipe.harbor.model_client import Call, Choice, Message, ModelClient
from recipe.harbor.trial_record import TrialRecord


class NoTokenCounter(BaseTokenCounter):
    """The server counts tokens; camel's own counter would download a vocabulary."""

    def count_tokens_from_messages(self, _messages: list[Any]) -> int:
        return 0

    def encode(self, _text: str) -> list[int]:
        return []

    def decode(self, _ids: list[int]) -> str:
        return ""


class VerbatimModel(BaseModelBackend):
    """`client`'s conversation, as ChatAgent's model.

    Raises what `client` does, and RecipeError when ChatAgent changed what was already sent.
    """

    def __init__(self, client: ModelClient, record: TrialRecord) -> None:
        super().__init__("model", token_counter=NoTokenCounter())
        self._client = client
        self._record = record

    @property
    def token_counter(self) -> BaseTokenCounter:
        return NoTokenCounter()

    def preprocess_messages(self, messages: list[Any]) -> list[Any]:
        return messages  # the base class reorders tool results and strips <think>

    def _run(self, *_: Any) -> NoReturn:
        raise NotImplementedError("ChatAgent is only stepped asynchronously here")

    async def _arun(self, messages: list[Any], _format: Any = None, tools: Any = None) -> ChatCompletion:
        self.append(messages)
        choice = await self._client.ask(tools=tools)
        if end := ending(choice) or ("context" if self._client.full else None):
            self._record.end(end)
            return _for_chat_agent(choice.message.content, [])
        calls = choice.message.tool_calls or []
        self._record.metrics["tool_calls"] += len(calls)
        return _for_chat_agent(choice.message.content, calls)

    def append(self, messages: list[Any]) -> None:
        """Takes over what ChatAgent added since the last reply; `messages` is its whole history."""
        known = self._client.history
        current = [_sendable(message) for message in messages]
        added = current[len(known) :]
        kept = len(current) >= len(known) and all(map(_same, known, current))
        if not kept or any(message["role"] == "assistant" for message in added):
            raise RecipeError("ChatAgent changed the conversation", expected="tool results appended to it")
        self._client.append(added)


def ending(choice: Choice) -> str | None:
    """How this turn ends the trajectory (trial_record.EXIT_STATUS); None when its calls are to be run."""
    if choice.finish_reason == "length":
        return "length"
    if error := (choice.meta_info or {}).get("miles_response_parse_error"):
        return f"malformed:{error}"
    calls = choice.message.tool_calls or []
    if not all(map(_runnable, calls)):
        return "malformed:arguments"
    return None if calls else "done"


def _runnable(call: Call) -> bool:
    """Whether the arguments are the text of a JSON object."""
    try:
        return isinstance(json.loads(call.function.arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False


def _same(sent: Message, current: Message) -> bool:
    """Whether ChatAgent still holds a message as it was sent (of a reply it holds its own version)."""
    return sent["role"] == "assistant" == current["role"] or sent == current


def _sendable(message: Message) -> Message:
    """`message` with what is no text (lone surrogates of a tool's output or name) replaced by `?`."""
    return {**message, "content": message["content"].encode(errors="replace").decode()}


def _for_chat_agent(content: str | None, calls: list[Call]) -> ChatCompletion:
    """What ChatAgent must act on, in the form that it expects."""
    tool_calls = [{**call.model_dump(), "type": "function"} for call in calls] or None
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return ChatCompletion.model_validate(
        {"id": "", "created": 0, "model": "", "object": "chat.completion", "choices": [choice]}
    )
