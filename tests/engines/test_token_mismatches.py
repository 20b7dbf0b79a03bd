"""Where the ids of a conversation and its history rendered anew differ, each kind of difference is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inkling_text import ids_of, ordinary
from scripted_engine import reply

from recipe.engines.local.audit import mismatches
from recipe.engines.local.conversation import ChatRequest, Conversation

MM, TEXT, THINKING, END = (
    "<|message_model|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|end_message|>",
)
STOP = "<|content_model_end_sampling|>"
GOOD = ids_of(f"{THINKING}so{END}{MM}{TEXT}hello{END}{STOP}")


def talk(*replies, finish="stop", effort=None):
    """A conversation in which the policy says `replies`, and a user something after each."""
    conversation, messages = Conversation(), [{"role": "user", "content": "go on"}]
    for number, ids in enumerate(replies, start=1):
        request = ChatRequest(messages=list(messages), effort=effort)
        last = number == len(replies)
        said = replace(reply(ids), finish=finish if last else "stop")
        shown = conversation.record(request, conversation.prompt(request), said)
        messages += [shown.message, {"role": "user", "content": "and then?"}]
    return conversation


def kinds(conversation):
    return [one["type"] for one in mismatches(conversation)]


def test_what_the_template_writes_itself_is_no_difference():
    assert mismatches(Conversation()) == []
    assert mismatches(talk(GOOD, GOOD)) == []


def test_a_text_sampled_in_other_pieces_is_the_policys_spelling():
    pieces = [*ids_of(TEXT), *ordinary("hel"), *ordinary("lo"), *ids_of(f"{END}{STOP}")]
    assert mismatches(talk(pieces, GOOD)) == [
        {"type": "assistant_text", "expected_text": "hello", "actual_text": "hello"}
    ]


def test_a_block_that_is_lost_is_told_as_a_whole():
    (told,) = mismatches(talk(ids_of(f"{TEXT}a{END}{MM}{TEXT}cut"), GOOD))
    assert told["type"] == "special_token_count"
    assert "cut" in told["actual_text"]
    assert "cut" not in told["expected_text"]


def test_the_last_reply_cut_by_its_limit_is_never_replayed_and_so_no_difference():
    for cut in (f"{TEXT}cut", TEXT, THINKING):
        assert kinds(talk(GOOD, ids_of(cut), finish="length")) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda conversation: setattr(conversation, "effort", "low"), "non_assistant_text"),
        (lambda conversation: conversation.messages[0].update(content="go away"), "non_assistant_text"),
        (lambda conversation: conversation.messages[2].update(role="system"), "special_token_type"),
    ],
)
def test_an_edit_that_nobody_noticed_is_told_by_its_kind(change, kind):
    conversation = talk(GOOD, GOOD)
    change(conversation)
    assert kinds(conversation) == [kind]


def test_blocks_in_another_order_are_told():
    conversation = talk(GOOD, GOOD)
    first = conversation.turns[0]
    assert first.blocks is not None
    conversation.turns[0] = replace(first, blocks=first.blocks[::-1])
    assert "special_token_type" in kinds(conversation)
