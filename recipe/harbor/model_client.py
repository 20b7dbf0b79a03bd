"""One trial's model: each call is posted exactly once, and what was said goes back exactly as it came.

A session server that continues the sampled tokens records every call and refuses a history that was edited.
What every agent's options have in common, the sampling above all, is here too.
"""

from __future__ import annotations

import functools
import json
import re
import ssl
from collections.abc import Iterable
from typing import Any

import httpx
from harbor.agents.options import AgentOptions
from pydantic import BaseModel, Field, ValidationError

from recipe.errors import RecipeError
from recipe.harbor.trial_record import TrialRecord

Message = dict[str, Any]

SAMPLING = {"max_tokens", "temperature", "top_p", "top_k", "skip_special_tokens", "no_stop_trim"}
# How servers word a 400 for a prompt that no longer fits (OpenAI's code is context_length_exceeded).
LENGTH_REFUSAL = re.compile(
    r"context[ _](length|window)|(sequence|prompt)[ _]length|max_seq_len", re.IGNORECASE
)


class ConversationEndedError(Exception):
    """The trial is over, and no failure: its record says how it ended."""


class ModelOptions(AgentOptions):
    """An agent's keyword arguments; an unknown one is refused when the trial is created (ValueError)."""

    api_base: str = Field(description="URL that `/chat/completions` is appended to")
    max_iterations: int = Field(ge=1, description="turns (model calls) of the trial at most")
    max_seq_len: int | None = Field(None, ge=1, description="prompt and reply tokens that end the trial")
    request_timeout: float = Field(3600, gt=0, description="seconds of one model call at most")
    max_tokens: int | None = Field(None, ge=1, description="tokens of one reply at most")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """What goes into every request beside its messages."""
        return self.model_dump(include=SAMPLING, exclude_none=True)


class Function(BaseModel):
    name: str
    arguments: Any


class Call(BaseModel):
    id: str
    function: Function


class Reply(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(BaseModel):
    message: Reply
    finish_reason: str | None = None
    meta_info: dict[str, Any] | None = None


class Usage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(BaseModel):
    """The part of a chat completion that the agents read; the raw message is kept beside it."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


class ModelClient:
    """The conversation with `{http.base_url}chat/completions`. `history`: its messages as they are on the wire."""

    def __init__(
        self, name: str, http: httpx.AsyncClient, record: TrialRecord, options: ModelOptions
    ) -> None:
        self.history: list[Message] = []
        self._http = http
        self._record = record
        self._settings = {"model": name.removeprefix("openai/"), **options.sampling}
        self._max_seq_len = options.max_seq_len
        self._used = 0  # tokens, as the last reply counts them

    def append(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._record.write(message=message)
            self.history.append(message)

    async def ask(self, **more: Any) -> Choice:
        """The reply to the history, now a part of it; `more` goes into the request.

        Raises ConversationEndedError when the server refuses the prompt for its length, RecipeError for no
        answer and for every other one that is no chat completion.
        """
        with self._record.timed("model_query_time_sum"):
            raw = await self._post({"messages": self.history, **more, **self._settings})
        try:
            completion = Completion.model_validate(raw)
        except ValidationError as error:
            raise self._failed(str(error)) from error
        choice, usage = completion.choices[0], completion.usage or Usage()
        self.history.append(raw["choices"][0]["message"])
        self._record.write(message=self.history[-1], finish_reason=choice.finish_reason)
        self._record.metrics["turns"] += 1
        self._record.add_usage(usage.prompt_tokens, usage.completion_tokens)
        self._used = usage.prompt_tokens + usage.completion_tokens
        return choice

    @property
    def full(self) -> bool:
        """Whether the conversation has reached max_seq_len."""
        return self._max_seq_len is not None and self._used >= self._max_seq_len

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
            self._record.end("context")
            raise ConversationEndedError(answer.text)
        if answer.status_code != httpx.codes.OK:
            raise self._failed(f"HTTP {answer.status_code}: {answer.text[:500]}")
        try:
            return answer.json()
        except ValueError as error:
            raise self._failed(answer.text[:500]) from error

    def _failed(self, found: str) -> RecipeError:
        where = f"{self._http.base_url}chat/completions"
        return RecipeError("a model call failed", expected="a chat completion", found=found, where=where)


def http_client(options: ModelOptions) -> httpx.AsyncClient:
    """For one trial's calls, none of which it repeats."""
    return httpx.AsyncClient(
        base_url=options.api_base,
        timeout=options.request_timeout,
        trust_env=False,  # a proxy of the host has no business between the agent and its model
        verify=_tls(),
        # A kept connection may be closed by the server at the very moment of the next turn, which would
        # fail a call that must not be repeated; a new one costs less than a millisecond.
        limits=httpx.Limits(max_keepalive_connections=0),
    )


@functools.cache
def _tls() -> ssl.SSLContext:
    """Shared: reading the certificates costs 23 ms of CPU, which each trial would pay."""
    return httpx.create_ssl_context()
