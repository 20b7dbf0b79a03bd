"""The token audit: how the ids that are trained compare with the engine's, and with a history rendered anew.

Both engines leave in a sample's metadata `accumulated_token_ids`, the engine's own, and `tito_session_mismatch`,
the differences from a re-rendering, in Miles' words (miles/utils/chat_template_utils/token_seq_comparator.py at
80a25cb). Classes of a trajectory, the first that applies:

wrong_ids            trained ids are not the engine's
native_tool_block    Terminus-2's reply holds a tool call of Inkling's own form, which the habit of JSON forbids
malformed            a reply is no sequence of whole blocks: the policy's own doing, which no template writes
special_token_count  a block, such as a tool call, is in one history and not in the other
special_token_type   a block has moved, or has another kind
changed_effort       the line with the thinking effort is another one
non_assistant_text   a message of the client reads otherwise
benign               only the spelling of a reply differs: it was sampled in other pieces than the template writes
exact                no difference
unjudged             the engine has left nothing to compare
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from recipe.plugins import journal
from recipe.plugins.environment import optional, required
from recipe.plugins.reward import verifier_reward

STRICT = (
    *("wrong_ids", "native_tool_block", "special_token_count", "special_token_type"),
    *("changed_effort", "non_assistant_text"),
)
CLASSES = (*STRICT, "malformed", "benign", "exact", "unjudged")
# The ids that open a tool call in Inkling's vocabulary: as JSON, and as text.
NATIVE_TOOL_BLOCK = frozenset({200049, 200057})
# Inkling's control ids by what they do in a reply: m opens a message, o a text or thinking block, c a tool call, e
# ends a block, s the reply. Ordinary text, x, has the ids below them.
FIRST_CONTROL_ID = 199998
CONTROL = {200001: "m", 200004: "o", 200008: "o", 200049: "c", 200057: "c", 200010: "e", 200006: "s"}
WHOLE_REPLY = re.compile(r"(o|x*c)x*e(m(o|x*c)x*e)*s")
EFFORT_LINE = "Thinking effort level"
# More than a stray one: twice the share of the first rollout, and a tenth of the rewarded trajectories.
GROWTH, LEAST_RATIO = 2.0, 0.1


class StrictMismatchError(Exception):
    """More trajectories than AUDIT_MAX_STRICT allows are not what the engine sampled or the agent replayed."""


def audit(samples: Iterable[Any]) -> dict[str, float]:
    """Classifies every trajectory of a rollout; the journal has an example of a difference, decoded.

    audit/<class> (trajectories), audit/strict_ratio, for Terminus-2 audit/native_tool_block_rewarded_ratio.
    Raises StrictMismatchError, with an example.
    """
    samples = list(samples)
    classes = [trajectory_class(sample) for sample in samples]
    counts = Counter(classes)
    strict = sum(counts[name] for name in STRICT) / max(1, len(samples))
    metrics = {f"audit/{name}": float(counts[name]) for name in CLASSES if counts[name]}
    metrics["audit/strict_ratio"] = strict
    if optional("HARBOR_AGENT_NAME") == "terminus-2":
        rewarded = [one for one, sample in zip(classes, samples, strict=True) if verifier_reward(sample)]
        native = rewarded.count("native_tool_block") / max(1, len(rewarded))
        metrics["audit/native_tool_block_rewarded_ratio"] = native
    example = next(filter(None, map(_example, samples)), None)
    if example:
        journal.write("audit", example=example)
    limit = required("AUDIT_MAX_STRICT", float)
    if strict > limit:
        found = {name: counts[name] for name in STRICT if counts[name]}
        raise StrictMismatchError(
            f"{strict:.0%} of the trajectories have tokens that nobody sampled or replayed so; at most {limit:.0%} "
            f"may (AUDIT_MAX_STRICT): {found}; for example {example or 'ids that the engine did not sample'}"
        )
    return metrics


def trajectory_class(sample: Any) -> str:
    """The class of one trajectory, a name of CLASSES."""
    metadata = sample.metadata or {}
    mismatches = metadata.get("tito_session_mismatch")
    if _has_wrong_ids(sample, metadata):
        return "wrong_ids"
    if native_blocks(replies(sample)):
        return "native_tool_block"
    if mismatches is None:
        return "unjudged"
    kinds = {_kind(mismatch) for mismatch in mismatches}
    if kinds & {"special_token_count", "special_token_type"} and not all(map(_is_whole, replies(sample))):
        return "malformed"
    return next((name for name in STRICT if name in kinds), "benign" if kinds else "exact")


def grown(first: float, now: float) -> bool:
    """Whether native tool blocks among rewarded trajectories are becoming a habit: shares of two rollouts."""
    return now >= LEAST_RATIO and now > GROWTH * first


def replies(sample: Any) -> list[list[int]]:
    """The policy's replies: the runs of trained ids. Miles' mask covers the response only, the last ids."""
    mask = sample.loss_mask or []
    ids = sample.tokens[len(sample.tokens) - len(mask) :]
    runs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return [[token for token, _ in run] for trained, run in runs if trained]


def native_blocks(of_the_policy: Iterable[list[int]]) -> int | None:
    """How many tool calls of Inkling's own form its replies hold; None where they are the habit (CAMEL)."""
    if optional("HARBOR_AGENT_NAME") != "terminus-2":
        return None
    return sum(token in NATIVE_TOOL_BLOCK for reply in of_the_policy for token in reply)


def _kind(mismatch: dict[str, Any]) -> str:
    texts = f"{mismatch.get('expected_text')} {mismatch.get('actual_text')}"
    effort = mismatch["type"] == "non_assistant_text" and EFFORT_LINE in texts
    return "changed_effort" if effort else str(mismatch["type"])


def _has_wrong_ids(sample: Any, metadata: dict[str, Any]) -> bool:
    engine = metadata.get("accumulated_token_ids")
    if engine is None:
        return False
    # A template may trim the last ids of a turn (of Inkling's none).
    end = min(len(sample.tokens), len(engine)) - metadata.get("max_trim_tokens", 0)
    return list(sample.tokens[:end]) != list(engine[:end])


def _is_whole(reply: list[int]) -> bool:
    signs = (CONTROL.get(token, "?") if token >= FIRST_CONTROL_ID else "x" for token in reply)
    return WHOLE_REPLY.fullmatch("".join(signs)) is not None


def _example(sample: Any) -> str | None:
    for mismatch in (sample.metadata or {}).get("tito_session_mismatch") or []:
        expected, actual = (str(mismatch.get(name))[:200] for name in ("expected_text", "actual_text"))
        return f"{_kind(mismatch)}: {actual!r} was sampled or replayed, the template writes {expected!r}"
    return None
