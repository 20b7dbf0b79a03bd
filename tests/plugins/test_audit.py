"""The token audit tells each class apart, shows one example, and stops a rollout above its limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from recipe.plugins.audit import CLASSES, StrictMismatchError, audit, grown, trajectory_class

CALL = 200049


@pytest.fixture(autouse=True)
def _job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_MAX_STRICT", "0.5")
    monkeypatch.setenv("HARBOR_AGENT_NAME", "terminus-2")


WHOLE = (1, 200004, 3, 200010, 200006)
CUT = WHOLE[:3]


def sample(*kinds: str, tokens: tuple[int, ...] = WHOLE, **metadata: Any) -> SimpleNamespace:
    texts = {"changed_effort": ("Thinking effort level: 0.9", "Thinking effort level: 0.2")}
    told = [
        {
            "type": "non_assistant_text" if kind == "changed_effort" else kind,
            "expected_text": texts.get(kind, ("this", ""))[0],
            "actual_text": texts.get(kind, ("", "that"))[1],
        }
        for kind in kinds
    ]
    given = {"tito_session_mismatch": told, "accumulated_token_ids": list(tokens), **metadata}
    # As Miles' mask: of the response alone.
    return SimpleNamespace(tokens=list(tokens), loss_mask=[1] * (len(tokens) - 1), metadata=given)


EXAMPLES = {
    "wrong_ids": sample(accumulated_token_ids=[1, 9, 3]),
    "native_tool_block": sample("special_token_count", tokens=(1, CALL, 3, 200010, 200006)),
    "malformed": sample("special_token_count", tokens=CUT),
    "special_token_count": sample("special_token_count"),
    "special_token_type": sample("assistant_text", "special_token_type"),
    "changed_effort": sample("changed_effort"),
    "non_assistant_text": sample("non_assistant_text", "assistant_text"),
    "benign": sample("assistant_text"),
    "exact": sample(),
    "unjudged": sample(tito_session_mismatch=None, accumulated_token_ids=None),
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_told_apart(name):
    assert trajectory_class(EXAMPLES[name]) == name


def test_a_truncated_trajectory_is_compared_as_far_as_it_goes():
    assert trajectory_class(sample(tokens=CUT, accumulated_token_ids=WHOLE)) == "exact"
    assert trajectory_class(sample(accumulated_token_ids=CUT)) == "exact"
    assert trajectory_class(sample(tokens=(1, 9), accumulated_token_ids=WHOLE)) == "wrong_ids"


def test_a_tool_call_is_native_to_camel_and_what_the_client_said_is_nobodys_habit(monkeypatch):
    in_prompt = sample(tokens=(CALL, *WHOLE[1:]))
    assert trajectory_class(in_prompt) == "exact"
    monkeypatch.setenv("HARBOR_AGENT_NAME", "camel")
    assert trajectory_class(EXAMPLES["native_tool_block"]) == "special_token_count"


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        (WHOLE[1:], "special_token_count"),
        ((200008, 5, 200010, 200001, *WHOLE[1:]), "special_token_count"),
        (WHOLE[1:-1], "malformed"),
        ((200001, *WHOLE[1:]), "malformed"),
        ((7, *WHOLE[1:]), "malformed"),
        ((200004, 200008, 200010, 200006), "malformed"),
        ((*WHOLE[1:], 5), "malformed"),
        ((200006,), "malformed"),
    ],
)
def test_a_reply_that_is_no_whole_blocks_is_the_policys_own_doing(reply, name):
    assert trajectory_class(sample("special_token_count", tokens=(1, *reply))) == name


def test_the_metrics_count_trajectories_and_keep_an_example():
    rewarded = {"reward": 1.0}
    native = EXAMPLES["native_tool_block"]
    native = sample(tokens=native.tokens, **(native.metadata | rewarded))
    told = audit([sample(**rewarded), sample("assistant_text"), native])
    assert told == {
        "audit/exact": 1.0,
        "audit/benign": 1.0,
        "audit/native_tool_block": 1.0,
        "audit/strict_ratio": pytest.approx(1 / 3),
        "audit/native_tool_block_rewarded_ratio": 0.5,
    }


def test_more_than_the_limit_stops_the_rollout_with_the_classes_and_an_example():
    audit([sample("special_token_type"), sample()])
    with pytest.raises(StrictMismatchError, match=r"67%.*AUDIT_MAX_STRICT.*special_token_type.*'that'"):
        audit([sample("special_token_type"), sample("special_token_type"), sample()])


def test_a_rollout_without_samples_has_nothing_to_stop_for():
    assert audit([])["audit/strict_ratio"] == 0.0


@pytest.mark.parametrize(
    ("first", "now", "told"), [(0.0, 0.1, True), (0.0, 0.09, False), (0.1, 0.2, False), (0.1, 0.21, True)]
)
def test_native_blocks_are_a_habit_once_they_grow(first, now, told):
    assert grown(first, now) is told
