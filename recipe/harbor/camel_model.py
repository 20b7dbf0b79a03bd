"""A camel-ai model backend that sends every message exactly as it first went over the wire.

ChatAgent keeps its own account of a reply: reasoning dropped, arguments re-serialised. A session server that
continues the sampled tokens needs the reply as it came, so the n-th assistant message of a request is the
n-th raw reply, and everything else may only ever be appended to.

A turn that is cut or malformed ends the trajectory: ChatAgent is shown a reply without calls, and stops. No
call of the model is ever repeated, because the server records each one.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import httpx
from pydantic import BaseModel, Field, ValidationError

from recipe.errors import RecipeError
from recipe.harbor.camel_library import BaseModelBackend, BaseTokenCounter, ChatCompletion
from recipe.harbor.camel_record import TrialRecord

Message = dict[str, Any]

# How servers word a 400 for a prompt that no longer fits (OpenAI's code is context_length_exceeded).
LENGTH_REFUSAL = re.compile(
    r"context[ _](length|window)|(sequence|prompt)[ _]length|max_seq_len", re.IGNORECASE
)


class SequenceLimitError(Exception):
    """The conversation no longer fits the model: the end of a trial, not a failure."""


class Function(BaseModel):
    name: str
    arguments: Any


class Call(BaseModel):
    id: str
    function: Function

    @property
    def runnable(self) -> bool:
        """Whether the arguments are the text of a JSON object."""
        try:
            return isinstance(json.loads(self.function.arguments), dict)
        except (TypeError, ValueError, RecursionError):
            return False


class Reply(BaseModel):
    content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(BaseModel):
    message: Reply
    finish_reason: str | None = None
    meta_info: dict[str, Any] | None = None

    def ending(self) -> str | None:
        """How this turn ends the trajectory (camel_record.EXIT_STATUS); None when its calls are to be run."""
        if self.finish_reason == "length":
            return "length"
        if error := (self.meta_info or {}).get("miles_response_parse_error"):
            return f"malformed:{error}"
        calls = self.message.tool_calls or []
        if not all(call.runnable for call in calls):
            return "malformed:arguments"
        return None if calls else "done"


class Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(BaseModel):
    """The part of a chat completion that the agent reads; the raw message is kept beside it."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


class NoTokenCounter(BaseTokenCounter):
    """The server counts tokens; camel's own counter would download a vocabulary."""

    def count_tokens_from_messages(self, _messages: list[Any]) -> int:
        return 0

    def encode(self, _text: str) -> list[int]:
        return []

    def decode(self, _ids: list[int]) -> str:
        return ""


class VerbatimModel(BaseModelBackend):
    """One trial's conversation with `{http.base_url}chat/completions`.

    Raises SequenceLimitError when the server refuses a prompt for its length, RecipeError for every other
    answer that is no chat completion, for no answer, and when ChatAgent changed what was already sent.
    """

    def __init__(
        self,
        name: str,
        http: httpx.AsyncClient,
        record: TrialRecord,
        *,
        sampling: dict[str, Any],
        max_seq_len: int | None,
    ) -> None:
        super().__init__(name, token_counter=NoTokenCounter())
        self._http = http
        self._record = record
        self._settings = {"model": name, **sampling}
        self._max_seq_len = max_seq_len
        self._history: list[Message] = []

    @property
    def token_counter(self) -> BaseTokenCounter:
        return NoTokenCounter()

    def preprocess_messages(self, messages: list[Any]) -> list[Any]:
        return messages  # the base class reorders tool results and strips <think>

    def _run(self, *_: Any) -> NoReturn:
        raise NotImplementedError("ChatAgent is only stepped asynchronously here")

    async def _arun(self, messages: list[Any], _format: Any = None, tools: Any = None) -> ChatCompletion:
        self.append(messages)
        with self._record.timed("model_query_time_sum"):
            raw = await self._post({"messages": self._history, "tools": tools, **self._settings})
        completion = self._read(raw)
        choice, usage = completion.choices[0], completion.usage or Usage()
        self._note(raw["choices"][0], usage)
        if end := choice.ending() or self._limit(usage):
            self._record.end(end)
            return _for_chat_agent(choice.message.content, [])
        calls = choice.message.tool_calls or []
        self._record.metrics["tool_calls"] += len(calls)
        return _for_chat_agent(choice.message.content, calls)

    def append(self, messages: list[Any]) -> None:
        """Takes over what ChatAgent added since the last reply; `messages` is its whole history."""
        current = [_sendable(message) for message in messages]
        added = current[len(self._history) :]
        kept = len(current) >= len(self._history) and all(map(_same, self._history, current))
        if not kept or any(message["role"] == "assistant" for message in added):
            raise RecipeError("ChatAgent changed the conversation", expected="tool results appended to it")
        for message in added:
            self._record.write(message=message)
        self._history += added

    def _note(self, choice: Message, usage: Usage) -> None:
        self._history.append(choice["message"])
        self._record.metrics["turns"] += 1
        self._record.add_usage(usage.prompt_tokens, usage.completion_tokens)
        self._record.write(message=choice["message"], finish_reason=choice.get("finish_reason"))

    def _limit(self, usage: Usage) -> str | None:
        used = usage.prompt_tokens + usage.completion_tokens
        return "context" if self._max_seq_len is not None and used >= self._max_seq_len else None

    async def _post(self, body: Message) -> Any:
        # Escaped to ASCII: a reply may hold lone surrogates, which go back as they came but fit no UTF-8.
        content = json.dumps(body).encode()
        try:
            answer = await self._http.post(
                "chat/completions", content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        if answer.status_code == httpx.codes.BAD_REQUEST and LENGTH_REFUSAL.search(answer.text):
            raise SequenceLimitError(answer.text)
        if answer.status_code != httpx.codes.OK:
            raise self._failed(f"HTTP {answer.status_code}: {answer.text[:500]}")
        try:
            return answer.json()
        except ValueError as error:
            raise self._failed(answer.text[:500]) from error

    def _read(self, raw: Any) -> Completion:
        try:
            return Completion.model_validate(raw)
        except ValidationError as error:
            raise self._failed(str(error)) from error

    def _failed(self, found: str) -> RecipeError:
        where = f"{self._http.base_url}chat/completions"
        return RecipeError("a model call failed", expected="a chat completion", found=found, where=where)


def _same(sent: Message, current: Message) -> bool:
    """Whether ChatAgent still holds a message as it was sent (of a reply it holds its own version)."""
    return sent["role"] == "assistant" == current["role"] or sent == current


def _sendable(message: Message) -> Message:
    """`message` with what is no text (lone surrogates of a tool's output or name) replaced by `?`."""
    return {**message, "content": message["content"].encode(errors="replace").decode()}


def _for_chat_agent(content: str | None, calls: list[Call]) -> ChatCompletion:
    """What ChatAgent must act on, in the form that it expects."""
    tool_calls = [{**call.model_dump(), "type": "function"} for call in calls] or None
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return ChatCompletion.model_validate(
        {"id": "", "created": 0, "model": "", "object": "chat.completion", "choices": [choice]}
    )
