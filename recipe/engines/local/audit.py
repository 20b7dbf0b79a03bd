"""Where a conversation's ids differ from its history rendered anew, told as Miles' session server tells it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from recipe.engines.local.conversation import Conversation, rerendered, rerendered_reply
from recipe.engines.local.parsing import FIRST_CONTROL_ID
from recipe.engines.local.rendering import UnrenderableMessageError, decode
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, MESSAGE_MODEL_ID

# The markers that open a message; what follows <|message_model|> was said by the policy.
MESSAGE_IDS = frozenset({200000, MESSAGE_MODEL_ID, 200002, 200003})

Segment = tuple[int, ...]  # one control id, or a run of ordinary text


def mismatches(conversation: Conversation) -> list[dict[str, str]]:
    """Each difference: type, expected_text (the rendering's), actual_text; empty when there is none.

    Types as in Miles: special_token_count ends the comparison; special_token_type, non_assistant_text and
    assistant_text are told segment by segment.
    """
    if not conversation.turns:
        return []
    try:
        expected, actual = rerendered(conversation), conversation.ids
        last = conversation.turns[-1]
        if last.reply.finish != "stop":  # a reply that was cut can't be replayed
            expected = expected[: len(expected) - len(rerendered_reply(conversation, last))]
            actual = actual[: last.prompt_length - 1]
    except UnrenderableMessageError as error:
        return [_told("special_token_count", str(error), "")]
    if expected == actual:
        return []
    wanted, found = _segments(expected), _segments(actual)
    if list(map(_is_control, wanted)) != list(map(_is_control, found)):
        return [_told("special_token_count", _shown(expected), _shown(actual))]
    differences, by_policy = [], False
    for one, other in zip(wanted, found, strict=True):
        if _is_control(one) and one[0] in MESSAGE_IDS:
            by_policy = one[0] == MESSAGE_MODEL_ID
        if one != other:
            kind = "assistant_text" if by_policy else "non_assistant_text"
            kind = "special_token_type" if _is_control(one) else kind
            differences.append(_told(kind, _shown(one), _shown(other)))
    return differences


def _segments(ids: Sequence[int]) -> list[Segment]:
    runs = (tuple(run) for _, run in groupby(ids, key=lambda token: token >= FIRST_CONTROL_ID))
    return [part for run in runs for part in ([(token,) for token in run] if _is_control(run) else [run])]


def _is_control(segment: Segment) -> bool:
    return segment[0] >= FIRST_CONTROL_ID


def _told(kind: str, expected: str, actual: str) -> dict[str, str]:
    return {"type": kind, "expected_text": expected, "actual_text": actual}


def _shown(ids: Sequence[int]) -> str:
    return decode([token for token in ids if token < FIRST_UNDECODABLE_ID])
