"""Whatever is sent to a session server: it answers with a completion or with an error that is the client's."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

import httpx
from fuzzing import ANY, cut, nearly, no_hang, strict, text_of, tried
from hypothesis import example, given
from hypothesis import strategies as st

from recipe.engines.local.session_server import application
from recipe.engines.local.sessions import SessionStore
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.vocabulary import MESSAGE_MODEL_ID, STOP_ID

CALL = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0", "name": "f", "content": "out"},
]
BODY = {
    "model": "m",
    "messages": MESSAGES,
    "max_tokens": 50,
    "temperature": 1.0,
    "top_p": 1,
    "stop": [],
    "stream": False,
    "tool_choice": "auto",
    "chat_template_kwargs": {"reasoning_effort": "low"},
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "It does.",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            },
        }
    ],
}
# What a policy may sample: text, the markers of blocks and of calls, and ids that are no token.
SAMPLED = st.lists(
    st.integers(0, 300)
    | st.sampled_from([200004, 200008, 200010, 200049, MESSAGE_MODEL_ID, STOP_ID, 201087, 2**31]),
    max_size=12,
)


@dataclass
class Engine:
    """Replies the same to every request."""

    ids: list[int]

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        return GenerateReply(self.ids, [-1.0] * len(self.ids), None, "stop")

    async def close_session(self, session_id: str) -> None:
        """There is nothing to end."""


def chat(bodies: list[bytes], ids: list[int], agent: str, *, goes_on: bool) -> None:
    """Sends them one after the other; with `goes_on`, each goes on where the one before it ended."""

    async def scenario() -> None:
        store = SessionStore(Engine(ids), max_context=4096, agent=agent)
        http = httpx.AsyncClient(transport=httpx.ASGITransport(application(store, "x")), base_url="http://x")
        session, history = store.open(), []
        url = f"/sessions/{session.id}/v1/chat/completions"
        for body in bodies:
            sent = continued(body, history) if goes_on else body
            answer = await http.post(url, content=sent)
            told = strict(answer.content)
            if answer.status_code == 200:
                history = [*json.loads(sent)["messages"], told["choices"][0]["message"]]
            else:
                assert 400 <= answer.status_code < 500, (answer.status_code, told)
                assert told["error"].keys() == {"message", "type", "code"}
        assert (store.collect(session.id, 4096) is None) == (not history)
        assert (await http.get(f"/sessions/{session.id}")).status_code == 200
        assert (await http.delete(f"/sessions/{session.id}")).status_code == 204
        await http.aclose()

    with no_hang():
        asyncio.run(scenario())


def continued(body: bytes, history: list[Any]) -> bytes:
    try:
        asked = json.loads(body)
        return json.dumps({**asked, "messages": [*history, *asked["messages"]]}).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return body


BODIES = st.lists(
    cut(st.one_of(nearly(BODY), nearly(BODY), nearly(BODY), ANY).map(text_of)), min_size=1, max_size=3
)


DEEP_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 3000}}]}


def sent(**changed: Any) -> bytes:
    return json.dumps(BODY | changed).encode()


@given(BODIES, SAMPLED, st.sampled_from(["camel", "terminus-2"]), st.booleans())
@example([sent(messages=[{"role": "user", "content": [{"type": [], "text": "Go on."}]}])], [], "camel", False)
@example([sent(messages=[{"role": "user", "content": 5}])], [], "camel", False)
@example([sent(model=math.nan)], [STOP_ID], "camel", False)
@example([sent(messages=[DEEP_CALL])], [], "camel", False)
@example([sent(tools=[{"function": {"name": "f", "parameters": {"type": "\ud800"}}}])], [], "camel", False)
@tried(60)
def test_any_request_is_answered_and_the_session_goes_on(bodies, ids, agent, goes_on):
    chat(bodies, ids, agent, goes_on=goes_on)
