"""Sampled token ids to the reply that the agent sees, by the rules of Miles' own parser.

The rules are those of the session server of Miles pull request 2302. It parses token ids, so that marker-like
text never counts as a marker. Any error means: no tool calls; the complete blocks are kept; the first error is
named. Two errors are ours, where production has no answer: ids without a text, and JSON
that Python can read but a client can't replay (lone surrogates, endless nesting).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recipe.engines.local.rendering import Block, decode
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, MESSAGE_MODEL_ID, STOP_ID

# Ids below are ordinary text; from here to FIRST_UNDECODABLE_ID they are control tokens.
FIRST_CONTROL_ID = 199998
END_MESSAGE_ID = 200010
KIND_OF_CONTENT_ID = {200004: "text", 200008: "thinking", 200049: "tool_json", 200057: "tool_text"}


@dataclass(frozen=True)
class ParsedCall:
    """A tool call; `arguments` is an object as compact JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedReply:
    """A reply as the agent sees it; `error` names the first broken rule, and then there are no tool calls."""

    content: str
    reasoning_content: str | None
    tool_calls: tuple[ParsedCall, ...]
    error: str | None
    blocks: tuple[Block, ...] | None  # to be rendered anew in their order; None: only thinking, then text


class _BrokenRuleError(Exception):
    """Its text is the kind of the error."""


def parse_reply(ids: Sequence[int]) -> ParsedReply:
    """Parses one turn's sampled ids (the prompt ends with `<|message_model|>`); never raises."""
    blocks: list[Block] = []
    calls: list[ParsedCall] = []
    errors: list[str] = []
    try:
        for block in _blocks(ids):
            try:
                _read(block, blocks, calls)
            except _BrokenRuleError as error:
                errors.append(str(error))
    except _BrokenRuleError as error:
        errors.append(str(error))
    thinking = [block.text for block in blocks if block.kind == "thinking"]
    return ParsedReply(
        content="".join(block.text for block in blocks if block.kind == "text"),
        reasoning_content="".join(thinking) if thinking else None,
        tool_calls=() if errors else tuple(calls),
        error=errors[0] if errors else None,
        blocks=tuple(blocks),
    )


def _blocks(ids: Sequence[int]) -> Iterator[Block]:
    """The complete blocks in order; raises _BrokenRuleError after them when the framing is broken."""
    position = 0
    while True:
        start = position
        while start < len(ids) and ids[start] == MESSAGE_MODEL_ID:
            start += 1
        if start == len(ids):
            raise _BrokenRuleError("missing_end_sampling")
        if ids[start] == STOP_ID:
            break
        if 0 < position == start:
            raise _BrokenRuleError("missing_message_model_boundary")
        block, position = _block(ids, start)
        yield block
    if start + 1 < len(ids):
        raise _BrokenRuleError("tokens_after_end_sampling")


def _block(ids: Sequence[int], start: int) -> tuple[Block, int]:
    """The block whose header begins at `start`, and the position after it."""
    content = _end_of_text(ids, start)
    if content == len(ids):
        raise _BrokenRuleError("unterminated_message_header")
    if ids[content] not in KIND_OF_CONTENT_ID:
        raise _BrokenRuleError(_misplaced(ids[content], "unexpected_control_token_in_header"))
    end = _end_of_text(ids, content + 1)
    if end == len(ids):
        raise _BrokenRuleError("unterminated_content_block")
    if ids[end] != END_MESSAGE_ID:
        raise _BrokenRuleError(_misplaced(ids[end], "control_token_inside_open_block"))
    kind, payload = KIND_OF_CONTENT_ID[ids[content]], decode(ids[content + 1 : end])
    return Block(kind, payload, decode(ids[start:content])), end + 1


def _end_of_text(ids: Sequence[int], start: int) -> int:
    """The first position from `start` whose id is not ordinary text."""
    return next((i for i in range(start, len(ids)) if not 0 <= ids[i] < FIRST_CONTROL_ID), len(ids))


def _misplaced(token: int, control_error: str) -> str:
    decodable = FIRST_CONTROL_ID <= token < FIRST_UNDECODABLE_ID
    return control_error if decodable else "undecodable_token"


def _read(block: Block, kept: list[Block], calls: list[ParsedCall]) -> None:
    if block.kind == "tool_text":
        raise _BrokenRuleError("unsupported_text_tool_call")
    if block.kind == "tool_json":
        calls.append(_call(block.text))
        kept.append(block)
        return
    kept.append(replace(block, recipient=""))
    if block.recipient:
        raise _BrokenRuleError(f"unexpected_{block.kind}_recipient")


def _call(payload: str) -> ParsedCall:
    """The call in a JSON payload; the header's name and keys other than name and args play no part."""
    try:
        call = json.loads(payload)
        compact = json.dumps(call, ensure_ascii=False, separators=(",", ":"))
        compact.encode()
    except (ValueError, RecursionError) as error:
        raise _BrokenRuleError("malformed_tool_json") from error
    if not isinstance(call, dict):
        raise _BrokenRuleError("tool_payload_not_object")
    name, arguments = call.get("name"), call.get("args")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _BrokenRuleError("invalid_tool_payload_shape")
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
