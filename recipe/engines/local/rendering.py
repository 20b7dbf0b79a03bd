"""OpenAI-style messages and tools to the token ids that Miles' own Inkling template gives.

Covered: the first prompt of a session, and the increment for messages appended later. The tokens equal those
of inkling_fixed.jinja at Miles 80a25cb wherever that template is safe: marker-like text (`<|end_message|>`)
in a message, a tool's output or a name stays ordinary text here; there it becomes a real control token.
A reply of the policy is never rendered into a prompt (its sampled ids are kept); from its blocks it can be
rendered anew, to be compared. Not covered: images and audio.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tml_renderers import chat, tokenizers, v0

from recipe.algorithm import GRPO
from recipe.engines.local.vocabulary import MESSAGE_MODEL_ID, STOP_ID
from recipe.errors import RecipeError

# The template's names for reasoning effort, and the most that it takes.
EFFORT_OF_NAME = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "max": 0.99}
MAX_EFFORT = 0.99
MARKER_OF_KIND = {
    "text": "content_text",
    "thinking": "content_thinking",
    "tool_json": "content_invoke_tool_json",
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """One complete block of a reply, as it was sampled; kept by the server, never sent to the client."""

    kind: str  # text, thinking, tool_json
    text: str
    recipient: str = ""  # a tool call's: the name in its header


class UnrenderableMessageError(RecipeError):
    """A message, tool or effort that has no Inkling form."""


@functools.cache
def _renderer() -> v0.Renderer:
    return v0.Renderer(tokenizers.O200kBaseChatTokenizer())


def decode(ids: Sequence[int]) -> str:
    """The text of `ids`; invalid UTF-8 becomes U+FFFD. Raises ValueError from FIRST_UNDECODABLE_ID on."""
    return _renderer().tokenizer.decode(ids)


def first_prompt(
    messages: Sequence[Message], tools: Sequence[Message] | None = None, effort: str | float | None = None
) -> list[int]:
    """The ids of a session's first prompt: tools, effort line, messages, `<|message_model|>`.

    Raises UnrenderableMessageError.
    """
    names = {
        str(call.get("id")): call["function"]["name"] for message in messages for call in _calls(message)
    }  # the last one wins, as in the template
    effort_line: Message = {"role": "system", "content": f"Thinking effort level: {_effort(effort)}"}
    others = (index for index, message in enumerate(messages) if message.get("role") != "system")
    before = next(others, len(messages))
    native = [_tool_declaration(tools)] if tools else []
    for message in [*messages[:before], effort_line, *messages[before:]]:
        native += _native(message, names)
    return _ids(native)


def increment(messages: Sequence[Message], tool_names: Mapping[str, str]) -> list[int]:
    """The ids that appended messages add to a conversation, `<|message_model|>` at the end.

    `tool_names` gives the tool's name for each tool-call id of the session. Raises UnrenderableMessageError.
    """
    return _ids([block for message in messages for block in _native(message, tool_names)])


def reply_ids(blocks: Sequence[Block]) -> list[int]:
    """The ids that the template gives for a reply of these blocks, its leading `<|message_model|>` included."""
    tokenizer = _renderer().tokenizer
    ids = []
    for block in blocks:
        ids += [MESSAGE_MODEL_ID, *tokenizer.encode_ordinary(block.recipient)]
        ids += [tokenizer.encode_special(MARKER_OF_KIND[block.kind]), *tokenizer.encode_ordinary(block.text)]
        ids.append(tokenizer.encode_special("end_message"))
    return [*ids, STOP_ID]


def _ids(native: list[chat.Message]) -> list[int]:
    try:
        spans, _ = _renderer().render_for_completion(native)
    except ValueError as error:  # numbers that have no JSON form, such as NaN in a tool's schema
        raise UnrenderableMessageError("the messages can't be rendered", found=error) from error
    ids = [
        token
        for span in spans
        if isinstance(span.span, chat.EncodedTextTokenSpan)
        for token in span.span.tokens
    ]
    return [*ids, MESSAGE_MODEL_ID]


def _effort(effort: str | float | None) -> str:
    level = GRPO.thinking_effort if effort is None else effort
    if isinstance(level, str):
        level = EFFORT_OF_NAME.get(level.strip(), -1.0)
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0.0 <= level <= MAX_EFFORT:
        raise UnrenderableMessageError(
            "no such reasoning effort",
            expected=f"{', '.join(EFFORT_OF_NAME)}, or a number from 0 to {MAX_EFFORT}",
            found=effort,
        )
    return str(float(level)) if level else "0"


def _tool_declaration(tools: Sequence[Message]) -> chat.Message:
    specifications = []
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters") or {} if isinstance(function, dict) else None
        if not isinstance(parameters, dict):
            raise UnrenderableMessageError("a tool needs an object as its parameters", found=str(tool)[:200])
        words = (tool.get("type") or "function", function.get("name"), function.get("description") or "")
        kind, name, description = map(_text, words)
        try:
            specifications.append(chat.ToolSpecJson(kind, name, description, parameters))
        except ValueError as error:  # half a character in them
            raise UnrenderableMessageError("a tool's parameters can't be rendered", found=error) from error
    return _block(chat.AuthorKind.System, chat.ToolDeclareJson(specifications), "tool_declare")


def _native(message: Message, tool_names: Mapping[str, str]) -> list[chat.Message]:
    content = message.get("content")
    match message.get("role"):
        case "system":
            return [_block(chat.AuthorKind.System, chat.Text(text)) for text in _texts(content)]
        case "user":
            return [_block(chat.AuthorKind.User, chat.Text(text)) for text in _texts(content)]
        case "tool":
            name = message.get("name") or tool_names.get(str(message.get("tool_call_id"))) or None
            return [_block(chat.AuthorKind.Tool, chat.Text(_text(content or "")), name and _text(name))]
        case "assistant":
            return _native_assistant(message)
        case role:
            raise UnrenderableMessageError(
                "no such role", expected="system, user, tool or assistant", found=role
            )


def _native_assistant(message: Message) -> list[chat.Message]:
    native = [_block(chat.AuthorKind.Model, chat.Text(text)) for text in _texts(message.get("content"))]
    if reasoning := message.get("reasoning_content"):
        native.insert(0, _block(chat.AuthorKind.Model, chat.Thinking(_text(reasoning))))
    native += [
        _block(chat.AuthorKind.Model, chat.InvokeTool(_structured_call(call["function"])))
        for call in _calls(message)
    ]
    if native:
        native.append(_block(chat.AuthorKind.Model, chat.ModelEndSampling()))
    return native


def _structured_call(function: Message) -> chat.StructuredToolCall:
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise UnrenderableMessageError("a tool call's arguments are not JSON", found=error) from error
    if not isinstance(arguments, dict):
        raise UnrenderableMessageError(
            "a tool call's arguments must be an object", found=type(arguments).__name__
        )
    # The renderer sorts the arguments' own names only; the template sorts every object inside them too.
    values = {
        name: json.dumps(value, ensure_ascii=False, sort_keys=True) for name, value in arguments.items()
    }
    return chat.StructuredToolCall(
        _text(function["name"]), [chat.ToolArg(_text(name), _text(value)) for name, value in values.items()]
    )


def _calls(message: Message) -> list[Message]:
    calls = message.get("tool_calls") or []
    if message.get("role") != "assistant":
        return []
    if not isinstance(calls, list):
        raise UnrenderableMessageError("tool_calls must be a list", found=type(calls).__name__)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UnrenderableMessageError("a tool call needs function.name as text", found=call)
    return calls


def _texts(content: object) -> list[str]:
    """The text blocks of a content; empty content gives no block, as in the template."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [_text(content)]
    if not isinstance(content, list):
        raise UnrenderableMessageError("content must be text or text parts", found=type(content).__name__)
    return [_part_text(part) for part in content]


def _part_text(part: object) -> str:
    if isinstance(part, dict) and part.get("type", "text") in ("text", "input_text"):
        part = part.get("text")
    return _text(part)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UnrenderableMessageError("expected text", found=type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnrenderableMessageError("text is not valid Unicode", found=error) from error
    return value


def _block(kind: chat.AuthorKind, content: Any, name: str | None = None) -> chat.Message:
    return chat.Message(content=content, author=chat.Author(kind, name))
