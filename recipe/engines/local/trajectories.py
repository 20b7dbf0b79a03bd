"""A session's turns to one training sample, as Miles' session server assembles it.

Truncated first, then joined: tokens past `max_seq_len` are cut, and the sample ends at the first turn that
did not complete, or where routes begin to be missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from recipe.engines.local.audit import mismatches
from recipe.engines.local.conversation import Conversation, Turn
from recipe.engines.local.types import Status, Trajectory


def assemble(conversation: Conversation, max_seq_len: int) -> Trajectory | None:
    """The sample of a conversation; None when no turn fits `max_seq_len` tokens."""
    kept, status = _kept(conversation.turns, max_seq_len)
    if not kept:
        return None
    end = min(kept[-1].end, max_seq_len)
    loss_mask, logprobs = [0] * end, [0.0] * end
    for turn in kept:
        sampled = slice(turn.prompt_length, min(turn.end, end))
        count = sampled.stop - sampled.start
        loss_mask[sampled] = [1] * count
        logprobs[sampled] = turn.reply.logprobs[:count]
    routes = kept[-1].reply.routes
    return Trajectory(
        ids=conversation.ids[:end],
        loss_mask=loss_mask,
        logprobs=logprobs,
        routes=None if routes is None else routes[: end - 1],
        status=status,
        turns=len(kept),
        parse_errors=[turn.parse_error for turn in kept if turn.parse_error],
        refused=conversation.refused,
        regenerated=conversation.regenerated,
        mismatches=mismatches(conversation),
    )


def _kept(turns: Sequence[Turn], max_seq_len: int) -> tuple[list[Turn], Status]:
    kept: list[Turn] = []
    for turn in turns:
        if kept and kept[-1].reply.routes is not None and turn.reply.routes is None:
            break
        if turn.prompt_length >= max_seq_len:
            return kept, "truncated"  # Miles calls this sample completed; here what was left out shows
        kept.append(turn)
        if turn.end > max_seq_len or turn.reply.finish == "length":
            return kept, "truncated"
        if turn.reply.finish == "abort":
            return kept, "aborted"
    return kept, "completed"
