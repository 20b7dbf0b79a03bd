"""One conversation with the policy: sampled ids are kept as they are, only new messages are rendered.

What the client must replay unchanged is what the prompt depends on: of each message the role, content,
reasoning_content and tool_calls (without index; null, "" and [] are one), and the tools. What else comes is an
edited history: by its agent's rules (reply_rules.py) it is refused, or one turn is taken back. When exactly the
last request is repeated, its turn is taken back and sampled anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe.engines.local.parsing import ParsedReply
from recipe.engines.local.rendering import Block, Message, first_prompt, increment, reply_ids
from recipe.engines.local.reply_rules import RULES, ReplyRules
from recipe.engines.local.types import GenerateReply
from recipe.errors import RecipeError

Replayed = tuple[Any, ...]  # what must come back unchanged of a message


class HistoryEditedError(RecipeError):
    """A request does not continue the conversation, or declares tools where the agent has none."""


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
    blocks: tuple[Block, ...] | None  # of the reply, as far as they can be rendered anew in their order

    @property
    def end(self) -> int:
        """Ids of the conversation up to and with this turn's reply."""
        return self.prompt_length + len(self.reply.ids)


@dataclass
class Conversation:
    """All messages and ids so far, and the turns that the policy sampled."""

    rules: ReplyRules = RULES["camel"]
    ids: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)  # as last replayed, and the last reply
    turns: list[Turn] = field(default_factory=list)
    tools: list[Message] | None = None
    effort: str | float | None = None  # of the last request; the prompt has the first one's
    tool_names: dict[str, str] = field(default_factory=dict)  # by tool-call id, each one minted once
    refused: int = 0  # requests that edited the history
    regenerated: int = 0  # turns taken back

    def prompt(self, request: ChatRequest) -> list[int]:
        """The ids to sample the next turn from. Raises HistoryEditedError, UnrenderableMessageError."""
        if request.tools and not self.rules.takes_tools:
            raise self._edited("no tools: this agent declares none", f"{len(request.tools)} tools")
        if self.turns and (request.tools or None) != self.tools:
            raise self._edited("the tools of the first request", "other tools")
        self._take_back(request.messages)
        if not self.turns:
            return first_prompt(request.messages, request.tools, request.effort)
        new = request.messages[len(self.messages) :]
        goes_on = new and all(message.get("role") != "assistant" for message in new)
        if not goes_on and not self.rules.rolls_back:
            raise self._edited("tool, user or system messages to append", f"{new or 'none'}"[:200])
        return self.ids + increment(new, self.tool_names)

    def record(self, request: ChatRequest, prompt: list[int], reply: GenerateReply) -> ChatReply:
        """Adds the turn that was sampled from `prompt`, and says what the client is to see of it."""
        parsed = self.rules.parse(reply.ids)
        message = self._assistant_message(parsed)
        self.tools, self.effort = request.tools or None, request.effort
        self.ids = prompt + reply.ids
        self.messages = [*request.messages, message]
        self.turns.append(Turn(len(prompt), reply, parsed.error, len(self.messages), parsed.blocks))
        finish = "tool_calls" if reply.finish == "stop" and parsed.tool_calls else reply.finish
        told = parsed.error if self.rules.tells_errors else None
        return ChatReply(message, finish, told, len(prompt), len(reply.ids))

    def _take_back(self, sent: Sequence[Message]) -> None:
        """Drops the last turn when `sent` repeats its request, or edits its history and the rules allow that."""
        pairs = zip(self.messages, sent, strict=False)
        matching = sum(
            1 for _ in itertools.takewhile(lambda pair: _replayed(pair[0]) == _replayed(pair[1]), pairs)
        )
        known = len(self.messages)
        if matching == known:
            return
        kept = [turn for turn in self.turns if turn.history_length <= matching]
        repeated = matching == len(sent) == known - 1
        if len(self.turns) - len(kept) > 1 or not (repeated or self.rules.rolls_back):
            raise self._edited(*_difference(self.messages, sent, matching))
        self.regenerated += len(self.turns) - len(kept)
        self.turns = kept
        self.ids = self.ids[: kept[-1].end if kept else 0]
        self.messages = self.messages[: kept[-1].history_length if kept else 0]

    def _assistant_message(self, parsed: ParsedReply) -> Message:
        message: Message = {"role": "assistant", "content": parsed.content}
        if self.rules.sends_null:
            message |= {"reasoning_content": None, "tool_calls": None}
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


def rerendered(conversation: Conversation) -> list[int]:
    """The ids of the whole history rendered anew, as it was last replayed and with the blocks that were kept.

    Without the next turn's `<|message_model|>`. Where no reply was sampled otherwise than the template writes it
    these are the conversation's ids. Raises UnrenderableMessageError (a call's arguments with NaN).
    """
    ids: list[int] = []
    done = 0
    for turn in conversation.turns:
        new = conversation.messages[done : turn.history_length - 1]
        if done:
            prompt = increment(new, conversation.tool_names)
        else:
            prompt = first_prompt(new, conversation.tools, conversation.effort)
        done = turn.history_length
        ids += prompt[:-1] + rerendered_reply(conversation, turn)
    return ids


def rerendered_reply(conversation: Conversation, turn: Turn) -> list[int]:
    """What the template writes for one of the conversation's replies, its `<|message_model|>` included."""
    if turn.blocks is not None:
        return reply_ids(turn.blocks)
    message = conversation.messages[turn.history_length - 1]
    return increment([message], conversation.tool_names)[:-1]


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


def _difference(known: Sequence[Message], sent: Sequence[Message], index: int) -> tuple[str, str]:
    if index == len(sent):
        return f"more than the {len(known)} messages so far", f"{len(sent)} messages"
    before, now = (f"message {index}: {str(_replayed(side[index]))[:200]}" for side in (known, sent))
    return before, now
