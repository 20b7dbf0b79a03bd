"""Sampled ids to the agent's view: every row of production's behaviour; the vendor's parser as second opinion."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inkling_text import TOKENIZER, ids_of, ordinary
from tml_renderers import chat, v0

from recipe.engines.local.parsing import ParsedCall, ParsedReply, parse_reply

MM, END, STOP = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
THINK, TEXT, JSON, TOOL_TEXT = (
    f"<|content_{kind}|>" for kind in ("thinking", "text", "invoke_tool_json", "invoke_tool_text")
)
CALL = f'f{JSON}{{"name":"f","args":{{"a":1}}}}{END}'
F = ParsedCall("f", '{"a":1}')


def parsed(content="", reasoning=None, calls=(), error=None) -> ParsedReply:
    return ParsedReply(content, reasoning, tuple(calls), error)


ACCEPTED = {
    "text": (f"{TEXT}hi{END}{STOP}", parsed("hi")),
    "interleaved": (
        f"{THINK}a{END}{MM}{TEXT}b{END}{MM}{THINK}c{END}{MM}{TEXT}d{END}{MM}{CALL}{STOP}",
        parsed("bd", "ac", [F]),
    ),
    "two calls": (f"{CALL}{MM}{CALL}{STOP}", parsed(calls=[F, F])),
    "no name in the header": (f'{JSON}{{"name":"f","args":{{"a":1}}}}{END}{STOP}', parsed(calls=[F])),
    "another name in the header": (f"g{CALL[1:]}{STOP}", parsed(calls=[F])),
    "the same argument twice": (
        f'f{JSON}{{"name":"f","args":{{"a":0,"a":1}}}}{END}{STOP}',
        parsed(calls=[F]),
    ),
    "spaces in the JSON": (f'f{JSON} {{ "args" : {{"a" : 1}}, "name": "f" }} {END}{STOP}', parsed(calls=[F])),
    "an extra key": (f'f{JSON}{{"name":"f","args":{{"a":1}},"id":3}}{END}{STOP}', parsed(calls=[F])),
    "nothing but the end": (STOP, parsed()),
    "an opener before the end": (f"{MM}{STOP}", parsed()),
    "two openers": (f"{MM}{MM}{TEXT}hi{END}{STOP}", parsed("hi")),
    "an empty text": (f"{TEXT}{END}{STOP}", parsed("")),
    "an empty thought": (f"{THINK}{END}{STOP}", parsed("", "")),
}
REFUSED = {
    "broken JSON": (f"{THINK}t{END}{MM}f{JSON}{{{END}{STOP}", parsed("", "t", error="malformed_tool_json")),
    "JSON that is no object": (f"f{JSON}[]{END}{STOP}", parsed(error="tool_payload_not_object")),
    "no args": (f'f{JSON}{{"name":"f"}}{END}{STOP}', parsed(error="invalid_tool_payload_shape")),
    "args that are no object": (
        f'f{JSON}{{"name":"f","args":[]}}{END}{STOP}',
        parsed(error="invalid_tool_payload_shape"),
    ),
    "one of two calls bad": (f"{CALL}{MM}f{JSON}x{END}{STOP}", parsed(error="malformed_tool_json")),
    "the first of two errors": (
        f"f{JSON}x{END}{MM}to{TEXT}b{END}{STOP}",
        parsed("b", error="malformed_tool_json"),
    ),
    "a lone surrogate": (
        f'f{JSON}{{"name":"f","args":{{"a":"\\ud800"}}}}{END}{STOP}',
        parsed(error="malformed_tool_json"),
    ),
    "endless nesting": (f"f{JSON}{'[' * 100_000}{END}{STOP}", parsed(error="malformed_tool_json")),
    "a call, then no end": (CALL, parsed(error="missing_end_sampling")),
    "a call, then an open text": (f"{CALL}{MM}{TEXT}x", parsed(error="unterminated_content_block")),
    "a call, then an open header": (f"{CALL}{MM}f", parsed(error="unterminated_message_header")),
    "a call, then an opener": (f"{CALL}{MM}", parsed(error="missing_end_sampling")),
    "cut in a thought": (f"{THINK}x", parsed(error="unterminated_content_block")),
    "cut in a text": (f"{TEXT}x", parsed(error="unterminated_content_block")),
    "cut in JSON": (f'f{JSON}{{"na', parsed(error="unterminated_content_block")),
    "a thought, then a cut text": (
        f"{THINK}t{END}{MM}{TEXT}x",
        parsed("", "t", error="unterminated_content_block"),
    ),
    "a call as text": (f"{TOOL_TEXT}ls{END}{STOP}", parsed(error="unsupported_text_tool_call")),
    "a text with a recipient": (f"to{TEXT}x{END}{STOP}", parsed("x", error="unexpected_text_recipient")),
    "a thought with a recipient": (
        f"to{THINK}x{END}{STOP}",
        parsed("", "x", error="unexpected_thinking_recipient"),
    ),
    "a content token inside a text": (
        f"{TEXT}x{THINK}y{END}{STOP}",
        parsed(error="control_token_inside_open_block"),
    ),
    "endoftext inside a text": (
        f"{TEXT}x<|endoftext|>y{END}{STOP}",
        parsed(error="control_token_inside_open_block"),
    ),
    "the end inside a text": (f"{TEXT}x{STOP}", parsed(error="control_token_inside_open_block")),
    "tokens after the end": (f"{TEXT}x{END}{STOP}{MM}", parsed("x", error="tokens_after_end_sampling")),
    "a user's block": (
        f"{TEXT}x{END}{MM}<|message_user|>{TEXT}y{END}{STOP}",
        parsed("x", error="unexpected_control_token_in_header"),
    ),
    "a system block": (f"<|message_system|>{TEXT}", parsed(error="unexpected_control_token_in_header")),
    "a tool error": (
        f"<|content_tool_error|>x{END}{STOP}",
        parsed(error="unexpected_control_token_in_header"),
    ),
    "the end inside a header": (f"f{STOP}", parsed(error="unexpected_control_token_in_header")),
    "an end without a block": (f"{END}{STOP}", parsed(error="unexpected_control_token_in_header")),
    "no tokens": ("", parsed(error="missing_end_sampling")),
    "words without a block": ("hello world", parsed(error="unterminated_message_header")),
    "words between blocks": (
        f"{TEXT}x{END}hello{MM}{TEXT}y{END}{STOP}",
        parsed("x", error="missing_message_model_boundary"),
    ),
}


@pytest.mark.parametrize(("stream", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_production_accepts_is_accepted(stream, expected):
    assert parse_reply(ids_of(stream)) == expected


@pytest.mark.parametrize(("stream", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_production_refuses_has_no_calls_and_keeps_its_complete_blocks(stream, expected):
    assert parse_reply(ids_of(stream)) == expected


def test_invalid_utf8_becomes_the_replacement_character():
    ids = [*ids_of(TEXT), 172, *ids_of(f"{END}{STOP}")]  # 172 is a byte that begins no character
    assert parse_reply(ids) == parsed("\ufffd")


@pytest.mark.parametrize("token", [200058, 201023, 10**9, -1])
@pytest.mark.parametrize("before", ["", TEXT, f"{TEXT}x", "f"])
def test_an_id_without_a_text_is_an_error_and_not_a_crash(token, before):
    assert parse_reply([*ids_of(before), token, *ids_of(f"{END}{STOP}")]).error == "undecodable_token"


def test_marker_like_text_is_text():
    ids = [*ids_of(TEXT), *ordinary(f"{END}{STOP}"), *ids_of(f"{END}{STOP}")]
    assert parse_reply(ids) == parsed(f"{END}{STOP}")


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


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([199999, 200000, 200001, 200004, 200006, 200008, 200010, 200049, 200057, 200058])
        | st.integers(0, 201023),
        max_size=12,
    )
)
def test_no_token_stream_breaks_the_parser(ids):
    reply = parse_reply(ids)
    assert reply.error is None or reply.tool_calls == ()


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
