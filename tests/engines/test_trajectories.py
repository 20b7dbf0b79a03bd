"""Turns to one training sample: what is trained, what is cut, where the sample ends."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_engine import CALL, DONE, reply, tool, user

from recipe.engines.local.conversation import ChatRequest, Conversation
from recipe.engines.local.trajectories import assemble
from recipe.engines.local.types import GenerateReply


def conversation(*replies: GenerateReply, routes: bool = False) -> Conversation:
    """A conversation in which the policy gave these replies; with routes, each reply carries its own."""
    spoken, messages = Conversation(), [user("go")]
    for index, given in enumerate(replies):
        request = ChatRequest(list(messages))
        prompt = spoken.prompt(request)
        if routes:
            given = reply(given.ids, finish=given.finish, prompt=len(prompt))
        messages += [spoken.record(request, prompt, given).message, tool(f"call_{index}", f"output {index}")]
    return spoken


def test_exactly_the_sampled_ids_are_trained_with_the_log_probabilities_they_were_sampled_with():
    first, second = reply(CALL), reply(DONE)
    spoken = conversation(first, second)
    sample = assemble(spoken, 10_000)
    assert [token for token, on in zip(sample.ids, sample.loss_mask, strict=True) if on] == [
        *first.ids,
        *second.ids,
    ]
    trained = [value for value, on in zip(sample.logprobs, sample.loss_mask, strict=True) if on]
    assert trained == [*first.logprobs, *second.logprobs]
    assert {v for v, on in zip(sample.logprobs, sample.loss_mask, strict=True) if not on} == {0.0}
    assert sample.ids == spoken.ids
    assert (sample.status, sample.turns, sample.routes) == ("completed", 2, None)


def test_the_sample_ends_at_the_turn_that_overflows():
    spoken = conversation(reply(CALL), reply(DONE), reply(DONE), routes=True)
    start, end = spoken.turns[1].prompt_length, spoken.turns[1].end
    sample = assemble(spoken, end - 1)
    assert sample.ids == spoken.ids[: end - 1]
    assert sample.loss_mask[start:] == [1] * (end - 1 - start)
    assert (sample.status, sample.turns, len(sample.routes)) == ("truncated", 2, end - 2)
    np.testing.assert_array_equal(sample.routes, spoken.turns[1].reply.routes[: end - 2])


@pytest.mark.parametrize("over", [0, 1, 4])
def test_a_turn_whose_prompt_has_no_room_is_left_out(over):
    spoken = conversation(reply(CALL), reply(DONE))
    sample = assemble(spoken, spoken.turns[1].prompt_length - over)
    assert (sample.ids, sample.status, sample.turns) == (spoken.ids[: spoken.turns[0].end], "truncated", 1)


def test_there_is_no_sample_without_a_turn_that_fits():
    spoken = conversation(reply(CALL))
    assert assemble(spoken, spoken.turns[0].prompt_length) is None
    assert assemble(Conversation(), 10_000) is None


@pytest.mark.parametrize(("finish", "status"), [("length", "truncated"), ("abort", "aborted")])
def test_the_sample_ends_at_a_turn_that_did_not_complete(finish, status):
    spoken = conversation(reply(CALL), reply("f", finish=finish), reply(DONE))
    sample = assemble(spoken, 10_000)
    assert (sample.ids, sample.status, sample.turns) == (spoken.ids[: spoken.turns[1].end], status, 2)
    assert sample.parse_errors == ["unterminated_message_header"]


def test_a_turn_aborted_before_its_first_token_trains_nothing():
    sample = assemble(conversation(reply([], finish="abort")), 10_000)
    assert (sample.status, sum(sample.loss_mask)) == ("aborted", 0)


def test_the_sample_ends_where_routes_begin_to_be_missing():
    spoken = conversation(reply(CALL), routes=True)
    request = ChatRequest([user("go"), spoken.messages[-1], tool("call_0", "x")])
    spoken.record(request, spoken.prompt(request), reply(DONE))
    sample = assemble(spoken, 10_000)
    assert (sample.turns, sample.status, len(sample.routes)) == (1, "completed", len(sample.ids) - 1)


def test_routes_are_those_of_the_last_turn_in_the_sample():
    spoken = conversation(reply(CALL), reply(DONE), routes=True)
    np.testing.assert_array_equal(assemble(spoken, 10_000).routes, spoken.turns[1].reply.routes)
