"""Messages to token ids: the template's stream, token by token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inkling_text import TOKENIZER, ids_of, ordinary
from tml_renderers import chat, v0

from recipe.engines.local.rendering import (
    Block,
    UnrenderableMessageError,
    first_prompt,
    increment,
    reply_ids,
)

EFFORT = "<|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|>"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "shell_exec",
            "description": "Run é",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "string"}, "a": {"type": "number"}},
            },
        },
    }
]
DECLARED = (
    '<|message_system|>tool_declare<|content_xml|>[{"description":"Run é","name":"shell_exec","parameters":'
    '{"properties":{"a":{"type":"number"},"b":{"type":"string"}},"type":"object"},"type":"function"}]'
    "<|end_message|>"
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MARKERS = st.sampled_from(
    ["<|end_message|>", "<|message_model|>", "<|content_model_end_sampling|>", "<think>"]
)
TOOL_OUTPUT = st.lists(ANY_TEXT | MARKERS, max_size=4).map("".join)


def user(text: object) -> dict[str, object]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, object]:
    return {"role": "system", "content": text}


def assistant(arguments: str, call_id: str = "c1") -> dict[str, object]:
    call = {"id": call_id, "type": "function", "function": {"name": "shell_exec", "arguments": arguments}}
    return {"role": "assistant", "content": "Look.", "reasoning_content": "Hm.", "tool_calls": [call]}


def tool(call_id: str, text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@pytest.mark.parametrize(
    ("messages", "tools", "effort", "expected"),
    [
        ([user("hi")], None, None, f"{EFFORT}<|message_user|><|content_text|>hi<|end_message|>"),
        (
            [system("S"), user("hi")],
            TOOLS,
            None,
            f"{DECLARED}<|message_system|><|content_text|>S<|end_message|>{EFFORT}"
            "<|message_user|><|content_text|>hi<|end_message|>",
        ),
        ([system("S")], None, None, f"<|message_system|><|content_text|>S<|end_message|>{EFFORT}"),
        (
            [system(""), user(""), user("hi")],
            None,
            None,
            f"{EFFORT}<|message_user|><|content_text|>hi<|end_message|>",
        ),
        (
            [user([{"type": "text", "text": "a"}, "b"])],
            None,
            None,
            f"{EFFORT}<|message_user|><|content_text|>a<|end_message|><|message_user|><|content_text|>b<|end_message|>",
        ),
        (
            [
                user("u"),
                assistant('{"z": {"b": 1, "a": [true]}, "command": "ls"}'),
                tool("c1", ""),
                tool("c9", "?"),
            ],
            None,
            None,
            f"{EFFORT}<|message_user|><|content_text|>u<|end_message|>"
            "<|message_model|><|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Look.<|end_message|>"
            '<|message_model|>shell_exec<|content_invoke_tool_json|>{"name":"shell_exec","args":{"command":"ls",'
            '"z":{"a":[true],"b":1}}}<|end_message|><|content_model_end_sampling|>'
            "<|message_tool|>shell_exec<|content_text|><|end_message|><|message_tool|><|content_text|>?<|end_message|>",
        ),
        (
            [user("u"), {"role": "assistant", "content": ""}],
            None,
            0,
            EFFORT.replace("0.9", "0") + "<|message_user|><|content_text|>u<|end_message|>",
        ),
    ],
)
def test_a_first_prompt_is_the_template_token_by_token(messages, tools, effort, expected):
    assert first_prompt(messages, tools, effort) == ids_of(f"{expected}<|message_model|>")


@pytest.mark.parametrize(
    ("effort", "level"),
    [("none", "0"), ("minimal", "0.1"), (" max ", "0.99"), (0.5, "0.5"), (0.123, "0.123")],
)
def test_the_effort_line_says_the_level_that_was_asked_for(effort, level):
    assert f"Thinking effort level: {level}<|end" in TOKENIZER.decode(first_prompt([user("x")], None, effort))


def test_the_effort_line_stands_where_the_renderer_itself_would_put_it():
    native = [
        chat.Message(content=chat.Text(text), author=chat.Author(kind))
        for kind, text in [
            (chat.AuthorKind.System, "S"),
            (chat.AuthorKind.User, "u"),
            (chat.AuthorKind.System, "T"),
        ]
    ]
    spans, _ = v0.Renderer(TOKENIZER).render_for_completion_with_effort(native, 0.7)
    theirs = [token for span in spans for token in span.span.tokens]
    assert first_prompt([system("S"), user("u"), system("T")], None, "medium") == [*theirs, 200001]


def test_an_increment_names_the_tool_of_each_result():
    messages = [tool("a", "one"), {**tool("b", "two"), "name": "own"}, user(""), user("go on")]
    assert increment(messages, {"a": "shell_exec"}) == ids_of(
        "<|message_tool|>shell_exec<|content_text|>one<|end_message|>"
        "<|message_tool|>own<|content_text|>two<|end_message|>"
        "<|message_user|><|content_text|>go on<|end_message|><|message_model|>"
    )


def test_a_replys_blocks_are_rendered_in_their_order_with_a_calls_json_as_it_was_sampled():
    blocks = [Block("text", "a"), Block("thinking", "b"), Block("tool_json", '{ "args":{}, "name":"f"}', "g")]
    assert reply_ids(blocks) == ids_of(
        "<|message_model|><|content_text|>a<|end_message|><|message_model|><|content_thinking|>b<|end_message|>"
        '<|message_model|>g<|content_invoke_tool_json|>{ "args":{}, "name":"f"}<|end_message|>'
        "<|content_model_end_sampling|>"
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, TOOL_OUTPUT), min_size=1, max_size=4), ANY_TEXT)
def test_increments_add_up_to_the_full_rendering_of_a_canonical_conversation(turns, instruction):
    messages: list[dict[str, object]] = [system("S"), user(instruction)]
    ids, names = first_prompt(messages, TOOLS), {}
    for index, (command, output) in enumerate(turns):
        reply, result = assistant(f'{{"command":{_json(command)}}}', f"c{index}"), tool(f"c{index}", output)
        sampled = first_prompt([*messages, reply], TOOLS)[len(ids) : -1]
        names[f"c{index}"] = "shell_exec"
        ids += sampled + increment([result], names)
        messages += [reply, result]
        assert ids == first_prompt(messages, TOOLS)


@settings(max_examples=100, deadline=None)
@given(TOOL_OUTPUT, TOOL_OUTPUT)
def test_marker_like_text_never_becomes_a_control_token(output, name):
    ids = increment([tool("c1", output), user(output)], {"c1": name})
    expected = ["message_tool", "content_text", "end_message"]
    expected += ["message_user", "content_text", "end_message"] if output else []
    markers = [TOKENIZER.encode_special(marker) for marker in [*expected, "message_model"]]
    assert [token for token in ids if token >= 199998] == markers
    assert ids[len(ordinary(name)) + 2 : ids.index(200010)] == ordinary(output)


@pytest.mark.parametrize(
    ("messages", "tools", "effort"),
    [
        ([{"role": "developer", "content": "x"}], None, None),
        ([user(7)], None, None),
        ([user([{"type": "image_url", "image_url": {}}])], None, None),
        ([user("\ud800")], None, None),
        ([{"role": "tool", "content": ["x"]}], None, None),
        ([assistant("not json")], None, None),
        ([assistant("[]")], None, None),
        ([assistant('{"a": NaN}')], None, None),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], None, None),
        ([{"role": "assistant", "tool_calls": 3}], None, None),
        ([user("x")], [{"function": {"name": None}}], None),
        ([user("x")], [{"function": "f"}], None),
        ([user("x")], [{"name": "f", "parameters": {"a": float("nan")}}], None),
        ([user("x")], None, "extreme"),
        ([user("x")], None, 1.0),
        ([user("x")], None, True),
        ([user("x")], None, {}),
    ],
)
def test_what_has_no_inkling_form_is_refused(messages, tools, effort):
    with pytest.raises(UnrenderableMessageError):
        first_prompt(messages, tools, effort)


def _json(text: str) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in text) + '"'
