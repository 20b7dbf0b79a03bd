"""Every kind of sampled reply, through the real session server, by the rules of each recipe.

CASES is the one table: what was sampled, what CAMEL's and Terminus-2's client see of it, where the renderer's own
parser says otherwise than CAMEL's rules and why, and whose history, rendered anew, gives the sampled ids again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from inkling_text import TOKENIZER, ids_of, ordinary
from scripted_engine import DONE, Client, ScriptedEngine, reply, served, user
from tml_renderers import chat, v0

from recipe.engines.local.conversation import rerendered
from recipe.engines.local.rendering import increment
from recipe.engines.local.vocabulary import MESSAGE_MODEL_ID, STOP_ID

MM, END, STOP = "<|message_model|>", "<|end_message|>", "<|content_model_end_sampling|>"
THINK, TEXT, JSON, TOOL_TEXT = (
    f"<|content_{kind}|>" for kind in ("thinking", "text", "invoke_tool_json", "invoke_tool_text")
)
CALL = f'f{JSON}{{"name":"f","args":{{"a":1}}}}{END}'
NATIVE, UNFRAMED = "native_tool_block", "unframed_reply"

# Where the renderer's parser is more generous than the rules of Miles' parser.
LITERAL = "takes a control token inside a block for its text"
DROPS = "drops what is cut, and keeps the complete blocks before it"
RECIPIENT = "takes a recipient of a text or a thought for its author's name"
EMPTY = "refuses an empty reply"


@dataclass(frozen=True)
class Saw:
    content: str = ""
    reasoning: str | None = None
    calls: int = 0  # each is f(a=1)
    error: str | None = None  # told to CAMEL's client; for Terminus-2 only recorded


@dataclass(frozen=True)
class Case:
    sampled: str | list[int]
    camel: Saw
    terminus: Saw
    vendor: str = ""  # why the renderer's parser sees something else; empty: it agrees
    anew: str = "both"  # the agents for which the re-rendered history is the very ids


# fmt: off
CASES = {
    "a text": Case(f"{TEXT}hi{END}{STOP}", Saw("hi"), Saw("hi")),
    "thought, then text": Case(f"{THINK}a{END}{MM}{TEXT}b{END}{STOP}", Saw("b", "a"), Saw("b", "a")),
    "interleaved": Case(f"{THINK}a{END}{MM}{TEXT}b{END}{MM}{THINK}c{END}{MM}{TEXT}d{END}{STOP}",
        Saw("bd", "ac"), Saw("bd", "ac")),
    "JSON with a thought between": Case(f'{TEXT}{{"x":{END}{MM}{THINK}c{END}{MM}{TEXT}1}}{END}{STOP}',
        Saw('{"x":1}', "c"), Saw('{"x":1}', "c")),
    "two texts in a row": Case(f"{TEXT}a{END}{MM}{TEXT}b{END}{STOP}", Saw("ab"), Saw("ab")),
    "a call": Case(f"{CALL}{STOP}", Saw(calls=1), Saw(CALL, error=NATIVE), anew="camel"),
    "interleaved with a call": Case(f"{THINK}a{END}{MM}{TEXT}b{END}{MM}{CALL}{STOP}",
        Saw("b", "a", calls=1), Saw(f"b{MM}{CALL}", "a", error=NATIVE), anew="camel"),
    "two calls": Case(f"{CALL}{MM}{CALL}{STOP}",
        Saw(calls=2), Saw(f"{CALL}{MM}{CALL}", error=NATIVE), anew="camel"),
    "a text after a call": Case(f"{CALL}{MM}{TEXT}x{END}{STOP}",
        Saw("x", calls=1), Saw(f"{CALL}x", error=NATIVE), anew="camel"),
    "no name in the header": Case(f"{CALL[1:]}{STOP}",
        Saw(calls=1), Saw(CALL[1:], error=NATIVE), anew="camel"),
    "another name in the header": Case(f"g{CALL[1:]}{STOP}",
        Saw(calls=1), Saw(f"g{CALL[1:]}", error=NATIVE), vendor="refuses other names", anew="camel"),
    "the same argument twice": Case(f'f{JSON}{{"name":"f","args":{{"a":0,"a":1}}}}{END}{STOP}',
        Saw(calls=1), Saw(f'f{JSON}{{"name":"f","args":{{"a":0,"a":1}}}}{END}', error=NATIVE), anew="camel"),
    "spaces in the JSON": Case(f'f{JSON} {{ "args" : {{"a" : 1}}, "name": "f" }} {END}{STOP}',
        Saw(calls=1),
        Saw(f'f{JSON} {{ "args" : {{"a" : 1}}, "name": "f" }} {END}', error=NATIVE), anew="camel"),
    "an extra key": Case(f'f{JSON}{{"name":"f","args":{{"a":1}},"id":3}}{END}{STOP}',
        Saw(calls=1),
        Saw(f'f{JSON}{{"name":"f","args":{{"a":1}},"id":3}}{END}', error=NATIVE),
        vendor="refuses extra keys", anew="camel"),
    "a marker in a call's header": Case(f"{TEXT}x{END}{MM}f<|content_xml|>g{CALL[1:]}{STOP}",
        Saw("x", error="unexpected_control_token_in_header"),
        Saw(f"x{MM}fg{CALL[1:]}", error=NATIVE), anew="neither"),
    "broken JSON": Case(f"{THINK}t{END}{MM}f{JSON}{{{END}{STOP}",
        Saw("", "t", error="malformed_tool_json"),
        Saw(f"{MM}f{JSON}{{{END}", "t", error=NATIVE), anew="neither"),
    "JSON that is no object": Case(f"f{JSON}[]{END}{STOP}",
        Saw(error="tool_payload_not_object"), Saw(f"f{JSON}[]{END}", error=NATIVE), anew="neither"),
    "no args": Case(f'f{JSON}{{"name":"f"}}{END}{STOP}',
        Saw(error="invalid_tool_payload_shape"),
        Saw(f'f{JSON}{{"name":"f"}}{END}', error=NATIVE), anew="neither"),
    "args that are no object": Case(f'f{JSON}{{"name":"f","args":[]}}{END}{STOP}',
        Saw(error="invalid_tool_payload_shape"),
        Saw(f'f{JSON}{{"name":"f","args":[]}}{END}', error=NATIVE), anew="neither"),
    "one of two calls bad": Case(f"{CALL}{MM}f{JSON}x{END}{STOP}",
        Saw(error="malformed_tool_json"), Saw(f"{CALL}{MM}f{JSON}x{END}", error=NATIVE), anew="neither"),
    "the first of two errors": Case(f"f{JSON}x{END}{MM}to{TEXT}b{END}{STOP}",
        Saw("b", error="malformed_tool_json"), Saw(f"f{JSON}x{END}b", error=NATIVE), anew="neither"),
    "a lone surrogate": Case(f'f{JSON}{{"name":"f","args":{{"a":"\\ud800"}}}}{END}{STOP}',
        Saw(error="malformed_tool_json"),
        Saw(f'f{JSON}{{"name":"f","args":{{"a":"\\ud800"}}}}{END}', error=NATIVE), anew="neither"),
    "a call as text": Case(f"{TOOL_TEXT}ls{END}{STOP}",
        Saw(error="unsupported_text_tool_call"),
        Saw("ls", error=NATIVE), vendor="knows calls as text", anew="neither"),
    "a native call inside the text's JSON": Case(f'{TEXT}{{"x":{MM}{CALL}}}{END}{STOP}',
        Saw(error="control_token_inside_open_block"),
        Saw(f'{{"x":{MM}{CALL}}}', error=NATIVE), vendor=LITERAL, anew="neither"),
    "a native call after the text's JSON": Case(f'{TEXT}{{"x":1}}{END}{MM}{CALL}{STOP}',
        Saw('{"x":1}', calls=1), Saw(f'{{"x":1}}{MM}{CALL}', error=NATIVE), anew="camel"),
    "cut after a call": Case(CALL,
        Saw(error="missing_end_sampling"), Saw(CALL, error=NATIVE), vendor=DROPS, anew="neither"),
    "cut in a text after a call": Case(f"{CALL}{MM}{TEXT}x",
        Saw(error="unterminated_content_block"), Saw(f"{CALL}x", error=NATIVE), vendor=DROPS, anew="neither"),
    "cut in a header after a call": Case(f"{CALL}{MM}f",
        Saw(error="unterminated_message_header"), Saw(CALL, error=NATIVE), anew="neither"),
    "cut after an opener": Case(f"{CALL}{MM}",
        Saw(error="missing_end_sampling"), Saw(CALL, error=NATIVE), anew="neither"),
    "cut in a thought": Case(f"{THINK}x",
        Saw(error="unterminated_content_block"), Saw("", "x", error=UNFRAMED), anew="neither"),
    "cut in a text": Case(f"{TEXT}x",
        Saw(error="unterminated_content_block"), Saw("x", error=UNFRAMED), anew="neither"),
    "cut in a call": Case(f'f{JSON}{{"na',
        Saw(error="unterminated_content_block"), Saw(f'f{JSON}{{"na', error=NATIVE), anew="neither"),
    "cut in a text after a thought": Case(f"{THINK}t{END}{MM}{TEXT}x",
        Saw("", "t", error="unterminated_content_block"),
        Saw("x", "t", error=UNFRAMED), vendor=DROPS, anew="neither"),
    "cut after a text": Case(f"{TEXT}x{END}",
        Saw("x", error="missing_end_sampling"), Saw("x"), vendor=DROPS, anew="neither"),
    "cut at once": Case("", Saw(error="missing_end_sampling"), Saw(error=UNFRAMED), anew="neither"),
    "nothing but the end": Case(STOP, Saw(), Saw(error=UNFRAMED), vendor=EMPTY, anew="neither"),
    "an opener before the end": Case(f"{MM}{STOP}", Saw(), Saw(error=UNFRAMED), vendor=EMPTY, anew="neither"),
    "two openers": Case(f"{MM}{TEXT}hi{END}{STOP}",
        Saw("hi"), Saw("hi", error=UNFRAMED), vendor="refuses a second opener", anew="neither"),
    "an empty text": Case(f"{TEXT}{END}{STOP}", Saw(), Saw()),
    "an empty thought": Case(f"{THINK}{END}{STOP}", Saw("", ""), Saw()),
    "a text with a recipient": Case(f"to{TEXT}x{END}{STOP}",
        Saw("x", error="unexpected_text_recipient"),
        Saw("tox", error=UNFRAMED), vendor=RECIPIENT, anew="neither"),
    "a thought with a recipient": Case(f"to{THINK}x{END}{STOP}",
        Saw("", "x", error="unexpected_thinking_recipient"),
        Saw("to", "x", error=UNFRAMED), vendor=RECIPIENT, anew="neither"),
    "a later text with a recipient": Case(f"{TEXT}x{END}{MM}to{TEXT}y{END}{STOP}",
        Saw("xy", error="unexpected_text_recipient"),
        Saw("xy", error=UNFRAMED), vendor=RECIPIENT, anew="neither"),
    "a content marker inside a text": Case(f"{TEXT}x{THINK}y{END}{STOP}",
        Saw(error="control_token_inside_open_block"),
        Saw("x", "y", error=UNFRAMED), vendor=LITERAL, anew="neither"),
    "an opener inside a text": Case(f"{TEXT}x{MM}y{END}{STOP}",
        Saw(error="control_token_inside_open_block"),
        Saw(f"x{MM}y", error=UNFRAMED), vendor=LITERAL, anew="neither"),
    "endoftext inside a text": Case(f"{TEXT}x<|endoftext|>y{END}{STOP}",
        Saw(error="control_token_inside_open_block"),
        Saw("xy", error=UNFRAMED), vendor=LITERAL, anew="neither"),
    "an unused special token inside a text": Case(f"{TEXT}x<|unused_200012|>y{END}{STOP}",
        Saw(error="control_token_inside_open_block"),
        Saw("x<|unused_200012|>y"), vendor=LITERAL, anew="neither"),
    "the end inside a text": Case(f"{TEXT}x{STOP}",
        Saw(error="control_token_inside_open_block"), Saw("x", error=UNFRAMED), anew="neither"),
    "tokens after the end": Case(f"{TEXT}x{END}{STOP}{MM}",
        Saw("x", error="tokens_after_end_sampling"), Saw("x", error=UNFRAMED), anew="neither"),
    "a user's block": Case(f"{TEXT}x{END}{MM}<|message_user|>{TEXT}y{END}{STOP}",
        Saw("x", error="unexpected_control_token_in_header"), Saw("xy", error=UNFRAMED), anew="neither"),
    "a system block": Case(f"<|message_system|>{TEXT}",
        Saw(error="unexpected_control_token_in_header"), Saw(error=UNFRAMED), anew="neither"),
    "a tool error": Case(f"<|content_tool_error|>x{END}{STOP}",
        Saw(error="unexpected_control_token_in_header"),
        Saw("x", error=UNFRAMED), vendor="knows tool errors", anew="neither"),
    "the end inside a header": Case(f"f{STOP}",
        Saw(error="unexpected_control_token_in_header"), Saw("f", error=UNFRAMED), anew="neither"),
    "an end without a block": Case(f"{END}{STOP}",
        Saw(error="unexpected_control_token_in_header"), Saw(error=UNFRAMED), anew="neither"),
    "words without a block": Case("hello world",
        Saw(error="unterminated_message_header"), Saw("hello world", error=UNFRAMED), anew="neither"),
    "words between blocks": Case(f"{TEXT}x{END}hello{MM}{TEXT}y{END}{STOP}",
        Saw("x", error="missing_message_model_boundary"),
        Saw("xhelloy", error=UNFRAMED), vendor="ignores words between blocks", anew="neither"),
    "a spelled marker inside a text": Case([*ids_of(TEXT), *ordinary(f"x{END}y"), *ids_of(f"{END}{STOP}")],
        Saw(f"x{END}y"), Saw("xy", error=UNFRAMED), anew="camel"),
    "a spelled call inside a text": Case([*ids_of(TEXT), *ordinary(CALL), *ids_of(f"{END}{STOP}")],
        Saw(CALL), Saw(CALL, error=UNFRAMED)),
    "think tags inside a text": Case(f"{TEXT}<think>x</think>y{END}{STOP}",
        Saw("<think>x</think>y"), Saw("<think>x</think>y")),
    "invalid UTF-8": Case([*ids_of(TEXT), 172, *ids_of(f"{END}{STOP}")],
        Saw("\ufffd"), Saw("\ufffd"), vendor="refuses invalid UTF-8", anew="neither"),
    "an id without a text": Case([*ids_of(f"{TEXT}x"), 200058, *ids_of(f"{END}{STOP}")],
        Saw(error="undecodable_token"), Saw("x", error=UNFRAMED), anew="neither"),
}
# fmt: on
AGENTS = {"camel": "camel", "terminus-2": "terminus"}


@dataclass(frozen=True)
class Seen:
    """What came of one case: the completion, the session after a second turn, the engine's requests."""

    choice: dict[str, Any]
    summary: dict[str, Any]
    prompts: list[list[int]]
    sample: Any
    anew: bool


def ids(case: Case) -> list[int]:
    return ids_of(case.sampled) if isinstance(case.sampled, str) else case.sampled


def finish(case: Case) -> str:
    return "stop" if STOP_ID in ids(case) else "length"


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, str], Seen]:
    return asyncio.run(_all_cases())


async def _all_cases() -> dict[tuple[str, str], Seen]:
    results = {}
    for agent in AGENTS:
        engine = ScriptedEngine([])
        async with served(engine, agent=agent) as (server, http):
            for name, case in CASES.items():
                engine.requests.clear()
                engine.script = [reply(ids(case), finish=finish(case)), reply(DONE)]
                session = server.store.open()
                client = Client(http, session.base_url)
                choice = (await client.say(user("go")))["choices"][0]
                anew = rerendered(session.conversation) == session.conversation.ids
                await client.say(user("next"))  # what the client got is always accepted when it comes back
                summary = (await http.get(session.base_url)).json()
                sample = server.store.collect(session.id, 100_000)
                prompts = [request.ids for request in engine.requests]
                results[agent, name] = Seen(choice, summary, prompts, sample, anew)
    return results


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", CASES)
def test_each_recipes_client_sees_what_its_stack_shows(seen, agent, name):
    case, choice = CASES[name], seen[agent, name].choice
    expected: Saw = getattr(case, AGENTS[agent])
    message = {"role": "assistant", "content": expected.content, "reasoning_content": expected.reasoning}
    if agent == "camel" and expected.reasoning is None:
        del message["reasoning_content"]
    calls = choice["message"].get("tool_calls", [])
    assert (calls is None) == (agent == "terminus-2")  # null, not left out
    assert {key: value for key, value in choice["message"].items() if key != "tool_calls"} == message
    assert [call["function"] for call in calls or []] == [
        {"name": "f", "arguments": '{"a":1}'}
    ] * expected.calls
    assert choice["finish_reason"] == ("tool_calls" if expected.calls else finish(case))
    told = {"miles_response_parse_error": expected.error} if agent == "camel" and expected.error else {}
    assert choice["meta_info"] == told
    assert seen[agent, name].summary["parse_errors"] == ([expected.error] if expected.error else [])


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", CASES)
def test_whatever_was_sampled_its_ids_are_what_is_kept_and_trained(seen, agent, name):
    first, second = seen[agent, name].prompts
    sampled, sample = ids(CASES[name]), seen[agent, name].sample
    assert second == first + sampled + increment([user("next")], {})
    assert sample.ids[: len(first) + len(sampled)] == first + sampled
    assert sample.loss_mask[: len(first) + len(sampled)] == [0] * len(first) + [1] * len(sampled)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", CASES)
def test_a_rerendered_history_is_the_sampled_ids_where_the_table_says_so(seen, agent, name):
    assert seen[agent, name].anew == (CASES[name].anew in {"both", agent})


@pytest.mark.parametrize("name", CASES)
def test_the_renderers_own_parser_agrees_where_the_table_says_so(name):
    case = CASES[name]
    assert (_vendor(ids(case)) == (None if case.camel.error else _flat(case.camel))) == (not case.vendor)


def _flat(view: Saw) -> tuple[str, str | None, int]:
    return view.content, view.reasoning, view.calls


def _vendor(sampled: list[int]) -> tuple[str, str | None, int] | None:
    """The second opinion in CAMEL's terms; None: refused."""
    parser = v0.Renderer(TOKENIZER).render_for_completion([])[1]
    try:
        blocks = [message.content for message in parser.parse_tokens([MESSAGE_MODEL_ID, *sampled])]
    except v0.ParseError:
        return None
    texts = [block.text for block in blocks if isinstance(block, chat.Text)]
    thoughts = [block.text for block in blocks if isinstance(block, chat.Thinking)]
    calls = [block for block in blocks if isinstance(block, chat.InvokeTool)]
    return "".join(texts), "".join(thoughts) if thoughts else None, len(calls)
