"""The session server over real HTTP, with an engine that replies with chosen token ids."""

from __future__ import annotations

import asyncio
import json
import signal
import socket

import httpx
import pytest
from inkling_text import TOKENIZER, ids_of, ordinary
from scripted_engine import CALL, DONE, STOP, Client, ScriptedEngine, reply, served, tool, user

from recipe.engines.local.conversation import rerendered
from recipe.engines.local.rendering import first_prompt, increment
from recipe.engines.local.session_server import SessionServer
from recipe.engines.local.sessions import SessionLimitError, SessionNotFoundError, SessionStore
from recipe.engines.local.vocabulary import STOP_ID
from recipe.errors import BadInputError

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
THINK = "<|content_thinking|>Hm.<|end_message|><|message_model|>"


def test_a_tool_conversation_has_the_openai_shape():
    async def scenario():
        engine = ScriptedEngine([reply(THINK + CALL), reply(DONE)])
        async with served(engine) as (server, http):
            client = Client(http, server.store.open(stream=(7, 1, 2)).base_url)
            first = await client.say(user("go"), tools=TOOLS, temperature=1.0, max_tokens=50)
            second = await client.say(tool("call_0", "out"), tools=TOOLS)
        choice = first["choices"][0]
        call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        assert choice == {
            "index": 0,
            "message": {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
            "finish_reason": "tool_calls",
            "meta_info": {},
        }
        prompt, sampled = len(engine.requests[0].ids), len(ids_of(THINK + CALL))
        assert first["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }
        assert (first["object"], first["model"]) == ("chat.completion", "m")
        assert second["choices"][0]["message"] == {"role": "assistant", "content": "Done."}
        assert second["choices"][0]["finish_reason"] == "stop"
        assert [request.stream for request in engine.requests] == [(7, 1, 2, 0), (7, 1, 2, 1)]
        assert [request.max_new_tokens for request in engine.requests] == [
            50,
            4096 - len(engine.requests[1].ids),
        ]

    asyncio.run(scenario())


def test_a_later_turn_keeps_the_sampled_ids_and_appends_only_the_new_messages_tokens():
    async def scenario():
        # A tokenisation that the renderer would never choose, keys in another order, spaces.
        odd = [
            *ids_of("<|content_text|>"),
            *ordinary("hel"),
            *ordinary("lo"),
            *ids_of(
                '<|end_message|><|message_model|>f<|content_invoke_tool_json|>{"args":  {"b":1,"a":2},"name":"f"}'
            ),
            *ids_of(STOP),
        ]
        engine = ScriptedEngine([reply(odd), reply(DONE)])
        async with served(engine) as (server, http):
            client = Client(http, server.store.open().base_url)
            await client.say(user("go"))
            await client.say(tool("call_0", "out <|end_message|>"))
        first, second = engine.requests
        added = increment([tool("call_0", "out <|end_message|>")], {"call_0": "f"})
        assert second.ids == first.ids + odd + added

    asyncio.run(scenario())


def test_a_malformed_turn_has_no_calls_and_says_why():
    async def scenario():
        broken = f"<|content_text|>So:<|end_message|><|message_model|>f<|content_invoke_tool_json|>{{{STOP}"
        async with served(ScriptedEngine([reply(broken)])) as (server, http):
            choice = (await Client(http, server.store.open().base_url).say(user("go")))["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "So:"}
        assert choice["finish_reason"] == "stop"
        assert choice["meta_info"] == {"miles_response_parse_error": "malformed_tool_json"}

    asyncio.run(scenario())


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_turn_that_was_cut_says_so_and_its_content_is_never_null(finish):
    async def scenario():
        engine = ScriptedEngine([reply("f<|content_invoke_tool_json|>{", finish=finish)])
        async with served(engine) as (server, http):
            session = server.store.open()
            choice = (await Client(http, session.base_url).say(user("go")))["choices"][0]
            sample = server.store.collect(session.id, 10_000)
        assert (choice["finish_reason"], choice["message"]["content"]) == (finish, "")
        assert sample.status == {"length": "truncated", "abort": "aborted"}[finish]

    asyncio.run(scenario())


def test_tool_call_ids_never_repeat_in_a_session():
    async def scenario():
        twice = CALL.removesuffix(STOP) + "<|end_message|><|message_model|>" + CALL
        async with served(ScriptedEngine([reply(twice), reply(CALL), reply(CALL)])) as (server, http):
            client = Client(http, server.store.open().base_url)
            await client.say(user("go"))
            await client.say(tool("call_0", "x"), tool("call_1", "y"))
            client.messages.pop()
            await client.say()  # the same request again
        calls = [call["id"] for message in client.messages for call in message.get("tool_calls", [])]
        assert calls == ["call_0", "call_1", "call_3"]

    asyncio.run(scenario())


CALL_1 = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
REPLY_1 = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL_1]}
OUTPUT_1 = tool("call_0", "out")
EDITED = {
    "instruction": [user("other"), REPLY_1, OUTPUT_1],
    "role": [{**user("go"), "role": "system"}, REPLY_1, OUTPUT_1],
    "content": [user("go"), {**REPLY_1, "content": "x"}, OUTPUT_1],
    "reasoning dropped": [user("go"), {**REPLY_1, "reasoning_content": None}, OUTPUT_1],
    "calls dropped": [user("go"), {**REPLY_1, "tool_calls": []}, OUTPUT_1],
    "call id": [user("go"), {**REPLY_1, "tool_calls": [{**CALL_1, "id": "call_9"}]}, OUTPUT_1],
    "arguments reformatted": [
        user("go"),
        {**REPLY_1, "tool_calls": [{**CALL_1, "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        OUTPUT_1,
    ],
    "reply left out": [user("go"), OUTPUT_1],
    "reply doubled": [user("go"), REPLY_1, REPLY_1, OUTPUT_1],
    "nothing new": [user("go"), REPLY_1],
}


@pytest.mark.parametrize("messages", EDITED.values(), ids=EDITED)
def test_an_edited_history_is_refused_and_counted_and_leaves_the_session_as_it_was(messages):
    async def scenario():
        engine = ScriptedEngine([reply(THINK + CALL), reply(DONE)])
        async with served(engine) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            good = [*client.messages, OUTPUT_1]
            assert good == [user("go"), REPLY_1, OUTPUT_1]
            client.messages = messages
            answer = await client.post()
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "HistoryEditedError")
            client.messages = good
            await client.say()
            sample = server.store.collect(session.id, 10_000)
        assert (sample.refused, sample.regenerated, sample.turns) == (1, 0, 2)

    asyncio.run(scenario())


def test_other_tools_in_a_later_request_are_an_edited_history():
    async def scenario():
        async with served(ScriptedEngine([reply(CALL)])) as (server, http):
            client = Client(http, server.store.open().base_url)
            await client.say(user("go"), tools=TOOLS)
            client.messages.append(tool("call_0", "out"))
            answer = await client.post()
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "HistoryEditedError")

    asyncio.run(scenario())


def test_null_empty_and_left_out_are_the_same_and_the_index_of_a_call_is_ignored():
    async def scenario():
        async with served(ScriptedEngine([reply(CALL), reply(DONE)])) as (server, http):
            client = Client(http, server.store.open().base_url)
            await client.say({**user("go"), "tool_calls": []})
            replayed = client.messages[1]
            replayed |= {"content": None, "reasoning_content": "", "provider_specific_fields": {}}
            replayed["tool_calls"][0]["index"] = 0
            del client.messages[0]["tool_calls"]
            await client.say(tool("call_0", "out"))

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [1, 2])
def test_a_repeated_request_takes_its_turn_back_and_samples_it_from_the_same_stream(turns):
    async def scenario():
        script = [reply(CALL)] * (turns - 1) + [reply(CALL), reply(DONE)]
        engine = ScriptedEngine(script)
        async with served(engine) as (server, http):
            session = server.store.open(stream=(1, 2, 3))
            client = Client(http, session.base_url)
            await client.say(user("go"))
            if turns == 2:
                await client.say(tool("call_0", "out"))
            client.messages.pop()
            await client.say()
            sample = server.store.collect(session.id, 10_000)
        before, again = engine.requests[-2:]
        assert (before.ids, before.stream) == (again.ids, again.stream)
        assert sample.ids == again.ids + ids_of(DONE)
        assert (sample.turns, sample.regenerated, sample.refused) == (turns, 1, 0)

    asyncio.run(scenario())


def test_two_chats_at_once_run_one_after_the_other():
    async def scenario():
        engine = ScriptedEngine([reply(CALL), reply(DONE)], gate=asyncio.Event())
        async with served(engine) as (server, http):
            session = server.store.open()
            one, two = Client(http, session.base_url), Client(http, session.base_url)
            one.messages = two.messages = [user("go")]
            posts = [asyncio.create_task(client.post()) for client in (one, two)]
            await engine.entered.wait()
            await asyncio.sleep(0.05)
            assert len(engine.requests) == 1
            engine.gate.set()
            answers = await asyncio.gather(*posts)
            sample = server.store.collect(session.id, 10_000)
        assert [answer.status_code for answer in answers] == [200, 200]
        # The second is the first one's repetition: the session has one turn, the later one.
        assert (sample.turns, sample.regenerated) == (1, 1)
        assert sample.ids == engine.requests[0].ids + ids_of(DONE)

    asyncio.run(scenario())


@pytest.mark.parametrize("room", [0, -1])
def test_a_prompt_at_the_context_length_is_refused_with_both_numbers(room):
    async def scenario():
        prompt = len(first_prompt([user("go")]))
        async with served(ScriptedEngine([]), max_context=prompt + room) as (server, http):
            client = Client(http, server.store.open().base_url)
            client.messages = [user("go")]
            answer = await client.post()
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400
        assert "context length" in message
        assert str(prompt) in message
        assert str(prompt + room) in message

    asyncio.run(scenario())


def test_a_reply_has_no_more_tokens_than_the_context_has_room_for():
    async def scenario():
        prompt = len(first_prompt([user("go")]))
        engine = ScriptedEngine([reply(DONE)])
        async with served(engine, max_context=prompt + 3) as (server, http):
            await Client(http, server.store.open().base_url).say(user("go"), max_completion_tokens=50)
        assert engine.requests[0].max_new_tokens == 3

    asyncio.run(scenario())


def test_the_effort_is_the_requests():
    async def scenario():
        engine = ScriptedEngine([reply(DONE)])
        async with served(engine) as (server, http):
            await Client(http, server.store.open().base_url).say(
                user("go"), chat_template_kwargs={"reasoning_effort": "low"}
            )
        assert "Thinking effort level: 0.2<|" in TOKENIZER.decode(engine.requests[0].ids)

    asyncio.run(scenario())


NOT_HONOURED = [
    {"temperature": 0.7},
    {"temperature": 0},
    {"top_p": 0.9},
    {"top_k": 5},
    {"n": 2},
    {"stream": True},
    {"tool_choice": "none"},
    {"stop": ["\n"]},
    {"max_tokens": 0},
    {"max_tokens": "many"},
    {"max_tokens": True},
    {"messages": []},
    {"messages": "go"},
    {"messages": ["go"]},
    {"messages": [{"role": "developer", "content": "go"}]},
    {"messages": [{"role": "user", "content": "\ud800"}]},
    {"tools": {"name": "f"}},
    {"chat_template_kwargs": "x"},
    {"chat_template_kwargs": {"reasoning_effort": "extreme"}},
]
NO_OBJECTS = [b"", b"{", b"[]", b"\xff", b"[" * 100_000]


def test_what_can_not_be_honoured_is_refused():
    async def scenario():
        engine = ScriptedEngine([])
        contents = [json.dumps({"messages": [user("go")], **body}) for body in NOT_HONOURED]
        async with served(engine) as (server, http):
            url = f"{server.store.open().base_url}/v1/chat/completions"
            for content in [*contents, *NO_OBJECTS]:
                assert (await http.post(url, content=content)).status_code == 400, content[:100]
        assert engine.requests == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("out of memory"),
        TimeoutError("too slow"),
        lambda request: reply(DONE, prompt=len(request.ids) + 1),
        lambda request: type(reply(DONE))(ids_of(DONE), [0.0], None, "stop"),
    ],
)
def test_an_engine_failure_is_a_502_that_records_no_turn(failure):
    async def scenario():
        async with served(ScriptedEngine([reply(CALL), failure, reply(DONE)])) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            client.messages.append(tool("call_0", "out"))
            answer = await client.post()
            assert (answer.status_code, answer.json()["error"]["type"]) == (502, "EngineFailedError")
            await client.say()
            assert server.store.collect(session.id, 10_000).turns == 2

    asyncio.run(scenario())


def test_sessions_are_opened_shown_and_closed_over_http():
    async def scenario():
        engine = ScriptedEngine([reply("<|content_text|>x")])
        async with served(engine) as (server, http):
            address = f"http://{server.host}:{server.port}"
            session = (await http.post(f"{address}/sessions")).json()["session_id"]
            await Client(http, f"{address}/sessions/{session}").say(user("go"))
            shown = (await http.get(f"{address}/sessions/{session}")).json()
            health = (await http.get(f"{address}/health")).json()
            deleted = await http.delete(f"{address}/sessions/{session}")
            gone = [
                await http.get(f"{address}/sessions/{session}"),
                await http.delete(f"{address}/sessions/{session}"),
                await http.post(
                    f"{address}/sessions/{session}/v1/chat/completions", json={"messages": [user("x")]}
                ),
            ]
        assert shown == {
            "session_id": session,
            "turns": 1,
            "messages": 2,
            "tokens": len(engine.requests[0].ids) + 2,
            "parse_errors": ["unterminated_content_block"],
            "refused": 0,
            "regenerated": 0,
        }
        assert health == {"status": "ok", "session_server_instance_id": server.instance_id, "sessions": 1}
        assert deleted.status_code == 204
        assert engine.closed.get_nowait() == session
        assert [answer.status_code for answer in gone] == [404, 404, 404]

    asyncio.run(scenario())


def test_the_number_of_open_sessions_is_bounded():
    async def scenario():
        async with served(ScriptedEngine([]), max_sessions=2) as (server, http):
            first = server.store.open()
            server.store.open()
            with pytest.raises(SessionLimitError):
                server.store.open()
            assert (await http.post(f"{server.store.address}/sessions")).status_code == 503
            await server.store.close(first.id)
            assert (await http.post(f"{server.store.address}/sessions")).status_code == 200

    asyncio.run(scenario())


def test_the_turns_of_a_session_are_bounded_and_repetitions_count():
    async def scenario():
        async with served(ScriptedEngine([reply(CALL), reply(CALL)]), max_turns=2) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            client.messages.pop()
            await client.say()
            client.messages.append(tool("call_1", "out"))
            answer = await client.post()
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "TurnLimitError")
            assert server.store.collect(session.id, 10_000).turns == 1

    asyncio.run(scenario())


def test_a_session_past_its_time_to_live_is_gone_and_so_is_its_running_chat():
    async def scenario():
        engine = ScriptedEngine([reply(DONE)], gate=asyncio.Event())
        async with served(engine, time_to_live_sec=0.05) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            client.messages = [user("go")]
            answer = await client.post()  # the engine never answers
            assert answer.status_code == 404
            assert await asyncio.wait_for(engine.closed.get(), 5) == session.id
            with pytest.raises(SessionNotFoundError):
                server.store.collect(session.id, 10_000)

    asyncio.run(scenario())


def test_a_session_closed_during_a_chat_records_nothing():
    async def scenario():
        engine = ScriptedEngine([reply(DONE)], gate=asyncio.Event())
        async with served(engine) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            client.messages = [user("go")]
            post = asyncio.create_task(client.post())
            await engine.entered.wait()
            await server.store.close(session.id)
            engine.gate.set()
            assert (await post).status_code == 404
        assert session.conversation.turns == []
        assert len(server.store) == 0

    asyncio.run(scenario())


def test_the_server_stops_while_a_chat_runs_and_leaves_the_signals_alone():
    async def scenario():
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        engine = ScriptedEngine([reply(DONE)], gate=asyncio.Event())
        async with served(engine) as (server, http):
            client = Client(http, server.store.open().base_url)
            client.messages = [user("go")]
            post = asyncio.create_task(client.post())
            await engine.entered.wait()
            assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
            await server.stop()
            answer = (await asyncio.gather(post, return_exceptions=True))[0]
            assert isinstance(answer, httpx.HTTPError) or answer.status_code == 500
            with pytest.raises(httpx.ConnectError):
                await http.get(f"http://{server.host}:{server.port}/health")

    asyncio.run(scenario())


def test_a_busy_port_is_named():
    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(BadInputError, match=str(port)):
                await SessionServer(SessionStore(ScriptedEngine([]), max_context=9)).start(port=port)

    asyncio.run(scenario())


FRAMED = f"{THINK}<|content_text|>Look.<|end_message|><|message_model|><|content_thinking|>Ah.{STOP}"
NATIVE = f"<|content_text|>Look.<|end_message|><|message_model|>{CALL}"


def test_terminus_2s_edited_turn_is_taken_back_and_what_came_instead_is_prompt():
    async def scenario():
        engine = ScriptedEngine([reply(FRAMED), reply(NATIVE), reply(DONE)])
        async with served(engine, agent="terminus-2") as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            second = await client.say(user("one"))
            assert second["choices"][0]["message"] == {
                "role": "assistant",
                "content": f"Look.<|message_model|>{CALL.removesuffix('<|content_model_end_sampling|>')}",
                "reasoning_content": None,
                "tool_calls": None,
            }
            edited = {"role": "assistant", "content": "Look."}  # a client that drops the native call
            client.messages[-1] = edited
            await client.say(user("two"))
            sample = server.store.collect(session.id, 10_000)
        first, _, third = engine.requests
        assert third.ids == first.ids + ids_of(FRAMED) + increment([user("one"), edited, user("two")], {})
        assert sample.ids == third.ids + ids_of(DONE)
        trained = [token for token, on in zip(sample.ids, sample.loss_mask, strict=True) if on]
        assert trained == ids_of(FRAMED) + ids_of(DONE)
        assert (sample.turns, sample.regenerated, sample.refused) == (2, 1, 0)
        assert rerendered(session.conversation) == sample.ids

    asyncio.run(scenario())


def test_terminus_2s_first_turn_is_taken_back_whole_and_rendered_from_scratch():
    async def scenario():
        engine = ScriptedEngine([reply(FRAMED), reply(DONE)])
        async with served(engine, agent="terminus-2") as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            client.messages = [user("something else")]
            await client.say()
            sample = server.store.collect(session.id, 10_000)
        assert sample.ids == first_prompt([user("something else")]) + ids_of(DONE)
        assert (sample.turns, sample.regenerated) == (1, 1)

    asyncio.run(scenario())


def test_terminus_2s_history_edited_two_turns_back_is_refused_and_leaves_the_session_as_it_was():
    async def scenario():
        engine = ScriptedEngine([reply(FRAMED), reply(FRAMED), reply(DONE)])
        async with served(engine, agent="terminus-2") as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            await client.say(user("one"))
            good = client.messages
            client.messages = [good[0], {**good[1], "reasoning_content": None}, *good[2:], user("two")]
            answer = await client.post()
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "HistoryEditedError")
            client.messages = good
            await client.say(user("two"))
            sample = server.store.collect(session.id, 10_000)
        assert (sample.turns, sample.regenerated, sample.refused) == (3, 0, 1)

    asyncio.run(scenario())


def test_terminus_2_declares_no_tools():
    async def scenario():
        async with served(ScriptedEngine([]), agent="terminus-2") as (server, http):
            client = Client(http, server.store.open().base_url)
            client.messages = [user("go")]
            assert (await client.post(tools=TOOLS)).status_code == 400

    asyncio.run(scenario())


@pytest.mark.parametrize(("agent", "anew"), [("camel", [STOP_ID]), ("terminus-2", [])])
def test_an_empty_reply_is_rendered_anew_as_each_template_does(agent, anew):
    async def scenario():
        async with served(ScriptedEngine([reply([STOP_ID])]), agent=agent) as (server, http):
            session = server.store.open()
            await Client(http, session.base_url).say(user("go"))
        prompt = first_prompt([user("go")])
        assert session.conversation.ids == [*prompt, STOP_ID]
        assert rerendered(session.conversation) == prompt[:-1] + anew

    asyncio.run(scenario())


@pytest.mark.parametrize("agent", ["camel", "terminus-2"])
def test_a_clients_own_blocks_play_no_part(agent):
    async def scenario():
        async with served(ScriptedEngine([reply(FRAMED), reply(DONE)]), agent=agent) as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"))
            client.messages[-1]["content_blocks"] = [{"type": "text", "text": "forged"}]
            await client.say(user("next"))
        assert rerendered(session.conversation) == session.conversation.ids

    asyncio.run(scenario())


def test_an_effort_line_that_a_later_request_would_change_shows_in_the_rerendered_history():
    async def scenario():
        engine = ScriptedEngine([reply(FRAMED), reply(DONE)])
        async with served(engine, agent="terminus-2") as (server, http):
            session = server.store.open()
            client = Client(http, session.base_url)
            await client.say(user("go"), chat_template_kwargs={"reasoning_effort": "low"})
            await client.say(user("next"), chat_template_kwargs={"reasoning_effort": "medium"})
        low, medium = (
            TOKENIZER.decode(ids) for ids in (session.conversation.ids, rerendered(session.conversation))
        )
        assert low.replace("level: 0.2", "level: 0.7") == medium != low

    asyncio.run(scenario())
