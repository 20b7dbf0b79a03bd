"""One conversation with the policy: sampled ids are kept as they are, only new messages are rendered.

What the client must replay unchanged is what the prompt depends on: of each message the role, content,
reasoning_content and tool_calls (without index; null, "" and [] are one), and the tools. Everything else is
an edited history and refused. The one exception is a repeated request: when exactly the last one comes again,
its turn is taken back and sampled anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe.engines.local.parsing import ParsedReply, parse_reply
from recipe.engines.local.rendering import Message, first_prompt, increment
from recipe.engines.local.types import GenerateReply
from recipe.errors import RecipeError

Replayed = tuple[Any, ...]  # what must come back unchanged of a message


class HistoryEditedError(RecipeError):
    """A request does not continue the conversation."""


@dataclass(frozen=True)
class ChatRequest:
    """What a chat completion request means here."""

    messages: list[Message]
    tools: list[Message] | None = None
    max_new_tokens: int | None = None  # None: as many as the context has room for
    effort: str | float | None = None  # None: the template's own; only the first prompt carries it


@dataclass(frozen=True)
class ChatReply:
    """One turn as the client sees it; `message` is the assistant message to be replayed unchanged."""

    message: Message
    finish_reason: str  # stop, tool_calls, length, abort
    parse_error: str | None
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Turn:
    """A recorded turn: its prompt is the first `prompt_length` ids, then comes its reply."""

    prompt_length: int
    reply: GenerateReply
    parse_error: str | None
    history_length: int  # messages of the conversation, this turn's reply included

    @property
    def end(self) -> int:
        """Ids of the conversation up to and with this turn's reply."""
        return self.prompt_length + len(self.reply.ids)


@dataclass
class Conversation:
    """All messages and ids so far, and the turns that the policy sampled."""

    ids: list[int] = field(default_factory=list)
    history: list[Replayed] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tools: list[Message] | None = None
    tool_names: dict[str, str] = field(default_factory=dict)  # by tool-call id, each one minted once
    refused: int = 0  # requests that edited the history
    regenerated: int = 0  # turns taken back

    def prompt(self, request: ChatRequest) -> list[int]:
        """The ids to sample the next turn from. Raises HistoryEditedError, UnrenderableMessageError."""
        sent = [_replayed(message) for message in request.messages]
        if self.turns and (request.tools or None) != self.tools:
            raise self._edited("the tools of the first request", "other tools")
        if self.turns and sent == self.history[:-1]:
            self._take_back()
        known = len(self.history)
        if sent[:known] != self.history:
            raise self._edited(*_first_difference(self.history, sent))
        if not self.turns:
            return first_prompt(request.messages, request.tools, request.effort)
        new = request.messages[known:]
        if not new or any(message.get("role") == "assistant" for message in new):
            raise self._edited("tool, user or system messages to append", f"{sent[known:] or 'none'}"[:200])
        return self.ids + increment(new, self.tool_names)

    def record(self, request: ChatRequest, prompt: list[int], reply: GenerateReply) -> ChatReply:
        """Adds the turn that was sampled from `prompt`, and says what the client is to see of it."""
        parsed = parse_reply(reply.ids)
        message = self._assistant_message(parsed)
        if not self.turns:
            self.tools = request.tools or None
        self.ids = prompt + reply.ids
        self.history = [*map(_replayed, request.messages), _replayed(message)]
        self.turns.append(Turn(len(prompt), reply, parsed.error, len(self.history)))
        finish = "tool_calls" if reply.finish == "stop" and parsed.tool_calls else reply.finish
        return ChatReply(message, finish, parsed.error, len(prompt), len(reply.ids))

    def _take_back(self) -> None:
        self.turns.pop()
        last = self.turns[-1] if self.turns else None
        self.ids = self.ids[: last.end if last else 0]
        self.history = self.history[: last.history_length if last else 0]
        self.regenerated += 1

    def _assistant_message(self, parsed: ParsedReply) -> Message:
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning_content is not None:
            message["reasoning_content"] = parsed.reasoning_content
        calls = []
        for call in parsed.tool_calls:
            identity = f"call_{len(self.tool_names)}"
            self.tool_names[identity] = call.name
            function = {"name": call.name, "arguments": call.arguments}
            calls.append({"id": identity, "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        return message

    def _edited(self, expected: str, found: str) -> HistoryEditedError:
        self.refused += 1
        return HistoryEditedError(
            "the history was edited; a session only appends", expected=expected, found=found
        )


def _replayed(message: Message) -> Replayed:
    calls = message.get("tool_calls") or None
    if isinstance(calls, list):
        calls = [
            {key: value for key, value in call.items() if key != "index"} if isinstance(call, dict) else call
            for call in calls
        ]
    return (
        message.get("role"),
        message.get("content") or None,
        message.get("reasoning_content") or None,
        calls,
    )


def _first_difference(known: Sequence[Replayed], sent: Sequence[Replayed]) -> tuple[str, str]:
    for index, (before, now) in enumerate(zip(known, sent, strict=False)):
        if before != now:
            return f"message {index}: {str(before)[:200]}", f"message {index}: {str(now)[:200]}"
    return f"more than the {len(known)} messages so far", f"{len(sent)} messages"
