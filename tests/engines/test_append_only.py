"""Conversations of any kind only ever append: sampled ids never change, and exactly they are trained."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inkling_text import ids_of
from scripted_engine import CALL, DONE, STOP, ScriptedEngine, reply

from recipe.engines.local.conversation import ChatRequest, HistoryEditedError, rerendered
from recipe.engines.local.rendering import Block, reply_ids
from recipe.engines.local.reply_rules import MARKER
from recipe.engines.local.sessions import SessionStore

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # control characters too
MARKERS = st.sampled_from(
    [
        "<|end_message|>",
        "<|message_model|>",
        "<|content_text|>",
        "<think>",
        "</think>",
        '{"a":',
        "\\ud800",
        "\0",
    ]
)
OUTPUTS = st.lists(TEXTS | MARKERS, max_size=3).map("".join)
BLOCKS = st.lists(st.builds(Block, st.sampled_from(["text", "thinking"]), OUTPUTS), min_size=1, max_size=4)
FRAMED = BLOCKS.map(lambda blocks: reply_ids(blocks)[1:])
SAMPLED = (
    FRAMED
    | st.lists(st.integers(0, 201023) | st.integers(199998, 200060), max_size=8)
    | st.sampled_from([ids_of(text) for text in (CALL, DONE, CALL.removesuffix(STOP))])
)
NEW = st.lists(st.tuples(st.sampled_from(["tool", "user", "system"]), OUTPUTS), min_size=1, max_size=3)
REPEATS = st.sampled_from([0, 0, 0, 1])  # how often a turn's request is sent again
TURNS = st.lists(st.tuples(SAMPLED, NEW, REPEATS), min_size=1, max_size=4)


def as_replayed(message: dict[str, Any]) -> dict[str, Any]:
    """The message as an HTTP client sends it back, with a key of its own."""
    return {**json.loads(json.dumps(message)), "provider_specific_fields": {}}


@pytest.mark.parametrize("agent", ["camel", "terminus-2"])
@settings(max_examples=200, deadline=None)
@given(instruction=OUTPUTS, turns=TURNS)
def test_no_conversation_breaks_append_only_or_changes_a_sampled_id(agent, instruction, turns):
    async def scenario():
        engine = ScriptedEngine([reply(sampled) for sampled, _, repeats in turns for _ in range(repeats + 1)])
        store = SessionStore(engine, max_context=10**6, agent=agent)
        session, messages = store.open(), [{"role": "user", "content": instruction}]
        kept = []
        for sampled, appended, repeats in turns:
            for _ in range(repeats + 1):
                said = await store.chat(session.id, ChatRequest([as_replayed(one) for one in messages]))
                assert "content_blocks" not in said.message
            kept.append((engine.requests[-1].ids, sampled))
            messages.append(said.message)
            messages += [{"role": role, "content": text, "tool_call_id": "call_0"} for role, text in appended]
        sample = store.collect(session.id, 10**6)
        await store.close(session.id)

        for (prompt, sampled), (later, _) in itertools.pairwise(kept):
            assert later[: len(prompt) + len(sampled)] == prompt + sampled
        assert sample.ids == kept[-1][0] + kept[-1][1]
        mask = [0] * len(sample.ids)
        for prompt, sampled in kept:
            mask[len(prompt) : len(prompt) + len(sampled)] = [1] * len(sampled)
        assert sample.loss_mask == mask
        assert (sample.refused, sample.turns) == (0, len(turns))
        assert sample.regenerated == sum(repeats for _, _, repeats in turns)

    asyncio.run(scenario())


@pytest.mark.parametrize("agent", ["camel", "terminus-2"])
@settings(max_examples=200, deadline=None)
@given(instruction=OUTPUTS, turns=st.lists(st.tuples(BLOCKS, NEW), min_size=1, max_size=4))
def test_a_history_of_framed_replies_is_rendered_anew_to_its_very_ids(agent, instruction, turns):
    if agent == "terminus-2":  # reads a spelled marker as one
        turns = [
            ([replace(one, text=MARKER.sub("", one.text)) for one in blocks], new) for blocks, new in turns
        ]

    async def scenario():
        engine = ScriptedEngine([reply(reply_ids(blocks)[1:]) for blocks, _ in turns])
        store = SessionStore(engine, max_context=10**6, agent=agent)
        session, messages = store.open(), [{"role": "user", "content": instruction}]
        for _, appended in turns:
            said = await store.chat(session.id, ChatRequest([as_replayed(one) for one in messages]))
            messages.append(said.message)
            messages += [{"role": role, "content": text} for role, text in appended]
        await store.close(session.id)
        assert rerendered(session.conversation) == session.conversation.ids

    asyncio.run(scenario())


@settings(max_examples=200, deadline=None)
@given(turns=TURNS, edits=st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_histories_that_terminus_2_edits_train_only_what_was_sampled_and_still_stands(turns, edits):
    async def scenario():
        engine = ScriptedEngine([reply(sampled) for sampled, _, _ in turns])
        store = SessionStore(engine, max_context=10**6, agent="terminus-2")
        session, messages = store.open(), [{"role": "user", "content": "go"}]
        for (_, appended, _), edit in zip(turns, edits, strict=False):
            sent = [{**one, "content": "edited"} if at == edit else one for at, one in enumerate(messages)]
            try:
                said = await store.chat(session.id, ChatRequest(sent))
            except HistoryEditedError:  # more than one turn would go
                sent = messages
                said = await store.chat(session.id, ChatRequest(sent))
            messages = [*sent, said.message]
            messages += [{"role": role, "content": text} for role, text in appended]
        sample, turns_left = store.collect(session.id, 10**6), session.conversation.turns
        await store.close(session.id)
        for turn in turns_left:
            assert sample.ids[turn.prompt_length : turn.end] == turn.reply.ids
        assert sum(sample.loss_mask) == sum(len(turn.reply.ids) for turn in turns_left)
        assert len(turns_left) + sample.regenerated == len(turns)
        assert sample.ids[: turns_left[-1].prompt_length] == engine.requests[-1].ids

    asyncio.run(scenario())
