"""Both parsers on streams beyond the table of test_reply_matrix.py; the renderer's parser as second opinion."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inkling_text import TOKENIZER, ids_of
from tml_renderers import chat, v0

from recipe.engines.local.parsing import parse_reply
from recipe.engines.local.rendering import reply_ids
from recipe.engines.local.reply_rules import MARKER, parse_as_text

END, STOP = "<|end_message|>", "<|content_model_end_sampling|>"
TEXT, JSON = "<|content_text|>", "<|content_invoke_tool_json|>"


def test_endlessly_nested_json_is_malformed():
    assert parse_reply(ids_of(f"f{JSON}{'[' * 100_000}{END}{STOP}")).error == "malformed_tool_json"


@pytest.mark.parametrize("token", [200058, 201023, 10**9, -1])
@pytest.mark.parametrize("before", ["", TEXT, f"{TEXT}x", "f"])
def test_an_id_without_a_text_is_an_error_and_not_a_crash(token, before):
    sampled = [*ids_of(before), token, *ids_of(f"{END}{STOP}")]
    assert parse_reply(sampled).error == "undecodable_token"
    assert parse_as_text(sampled).error == "unframed_reply"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3),
)
CALLS = st.tuples(TEXTS, st.dictionaries(TEXTS, VALUES, max_size=3))
BLOCKS = st.lists(
    st.tuples(st.just("text"), TEXTS)
    | st.tuples(st.just("thinking"), TEXTS)
    | st.tuples(st.just("call"), CALLS),
    min_size=1,
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(BLOCKS)
def test_the_vendors_parser_agrees_on_what_it_renders_itself(blocks):
    ids = _render(blocks)
    ours = parse_reply(ids[1:])
    theirs = [message.content for message in _vendor_parser().parse_tokens(ids)]
    assert ours.error is None
    assert ours.content == "".join(block.text for block in theirs if isinstance(block, chat.Text))
    assert (ours.reasoning_content or "") == "".join(b.text for b in theirs if isinstance(b, chat.Thinking))
    assert [(call.name, json.loads(call.arguments)) for call in ours.tool_calls] == [
        (block.name, {argument.name: json.loads(argument.value) for argument in block.args})
        for block in theirs
        if isinstance(block, chat.InvokeTool)
    ]
    assert reply_ids(ours.blocks) == ids


@settings(max_examples=100, deadline=None)
@given(BLOCKS)
def test_both_parsers_agree_on_text_and_thinking_that_spells_no_marker(blocks):
    blocks = [(kind, MARKER.sub("", said)) for kind, said in blocks if kind != "call"]
    ids = _render(blocks)[1:]
    by_ids, by_text = parse_reply(ids), parse_as_text(ids)
    assert (by_text.content, by_text.reasoning_content) == (by_ids.content, by_ids.reasoning_content or None)
    assert by_text.blocks == (by_ids.blocks or None)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([199999, 200000, 200001, 200004, 200006, 200008, 200010, 200049, 200057, 200058])
        | st.integers(0, 201023),
        max_size=12,
    )
)
def test_no_token_stream_breaks_a_parser(ids):
    reply = parse_reply(ids)
    assert reply.error is None or reply.tool_calls == ()
    assert (parse_as_text(ids).blocks is None) == (parse_as_text(ids).error is not None)


def _vendor_parser() -> v0.Parser:
    return v0.Renderer(TOKENIZER).render_for_completion([])[1]


def _render(blocks: list[tuple[str, object]]) -> list[int]:
    contents = []
    for kind, value in blocks:
        if kind == "call":
            name, arguments = value
            call = [
                chat.ToolArg(key, json.dumps(item, ensure_ascii=False)) for key, item in arguments.items()
            ]
            contents.append(chat.InvokeTool(chat.StructuredToolCall(name, call)))
        else:
            contents.append(chat.Text(value) if kind == "text" else chat.Thinking(value))
    author = chat.Author(chat.AuthorKind.Model)
    messages = [
        chat.Message(content=content, author=author) for content in [*contents, chat.ModelEndSampling()]
    ]
    spans, _ = v0.Renderer(TOKENIZER).render_for_completion(messages)
    return [token for span in spans for token in span.span.tokens]
