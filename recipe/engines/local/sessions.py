"""The open sessions of an engine: each has one conversation, one chat at a time, and a bounded life.

A session lives until it is closed, at most its time to live; a chat that comes while another one of its
session runs waits for it. An error records no turn.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any

from recipe.engines.local.conversation import ChatReply, ChatRequest, Conversation
from recipe.engines.local.reply_rules import RULES
from recipe.engines.local.trajectories import assemble
from recipe.engines.local.types import GenerateReply, GenerateRequest, Trajectory, TurnEngine
from recipe.errors import RecipeError

# Bounds that no sound run meets; each has an error that names it. Agents end after about 50 turns.
MAX_TURNS = 1000
# A rollout has at most 280 trials in flight at production's settings.
MAX_SESSIONS = 1024
# A trial's own deadline is 3 hours at production's settings.
TIME_TO_LIVE_SECONDS = 24 * 3600.0


class SessionNotFoundError(RecipeError):
    """No such session is open: it was never opened, is closed, or is past its time to live."""


class SessionLimitError(RecipeError):
    """As many sessions are open as may be."""


class TurnLimitError(RecipeError):
    """The session has sampled as many turns as it may."""


class ContextLengthError(RecipeError):
    """The prompt leaves no room for a reply."""


class EngineFailedError(RecipeError):
    """The engine raised an error, or broke the contract of GenerateReply."""


@dataclass
class Session:
    """One open session; `base_url` + "/v1" is its OpenAI endpoint."""

    id: str
    base_url: str
    stream: tuple[int, ...]  # keys its random streams: (seed, rollout, sample index)
    deadline: float  # of the event loop's clock
    expiry: asyncio.TimerHandle
    conversation: Conversation
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    closed: bool = False

    def summary(self) -> dict[str, Any]:
        """Counts, for people."""
        conversation = self.conversation
        return {
            "session_id": self.id,
            "turns": len(conversation.turns),
            "messages": len(conversation.messages),
            "tokens": len(conversation.ids),
            "parse_errors": [turn.parse_error for turn in conversation.turns if turn.parse_error],
            "refused": conversation.refused,
            "regenerated": conversation.regenerated,
        }


class SessionStore:
    """The open sessions of one engine, used inside one event loop; `address` is the running server's."""

    def __init__(
        self,
        engine: TurnEngine,
        *,
        max_context: int,
        agent: str = "camel",
        max_turns: int = MAX_TURNS,
        max_sessions: int = MAX_SESSIONS,
        time_to_live_sec: float = TIME_TO_LIVE_SECONDS,
    ) -> None:
        """`max_context` bounds the tokens of a prompt and its reply together; `agent` names the rules."""
        self.address = ""
        self._engine = engine
        self._max_context = max_context
        self._rules = RULES[agent]
        self._max_turns = max_turns
        self._max_sessions = max_sessions
        self._time_to_live_sec = time_to_live_sec
        self._sessions: dict[str, Session] = {}
        self._opened = 0
        self._expiring: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, stream: tuple[int, ...] | None = None) -> Session:
        """A new session; without a `stream` its ordinal keys its random streams. Raises SessionLimitError."""
        if len(self._sessions) >= self._max_sessions:
            raise SessionLimitError(
                "too many sessions are open",
                expected=f"at most {self._max_sessions}",
                run="close sessions when their trials end",
            )
        loop = asyncio.get_running_loop()
        identity = uuid.uuid4().hex
        deadline = loop.time() + self._time_to_live_sec
        session = Session(
            id=identity,
            base_url=f"{self.address}/sessions/{identity}",
            stream=(self._opened,) if stream is None else stream,
            deadline=deadline,
            expiry=loop.call_at(deadline, self._expire, identity),
            conversation=Conversation(self._rules),
        )
        self._opened += 1
        self._sessions[identity] = session
        return session

    def get(self, session_id: str) -> Session:
        """The open session of this id. Raises SessionNotFoundError."""
        session = self._sessions.get(session_id)
        if session is None:
            raise self._not_found(session_id)
        return session

    def collect(self, session_id: str, max_seq_len: int) -> Trajectory | None:
        """The session's training sample of at most `max_seq_len` tokens; None when no turn fits in it.

        Raises SessionNotFoundError.
        """
        return assemble(self.get(session_id).conversation, max_seq_len)

    async def close(self, session_id: str) -> None:
        """Forgets the session and ends its running chat; an unknown session is fine."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.closed = True
            session.expiry.cancel()
            await self._engine.close_session(session_id)

    async def chat(self, session_id: str, request: ChatRequest) -> ChatReply:
        """One turn. Raises this module's errors, HistoryEditedError and UnrenderableMessageError."""
        session = self.get(session_id)
        try:
            async with asyncio.timeout_at(session.deadline), session.lock:
                return await self._turn(session, request)
        except TimeoutError:
            raise self._not_found(session_id) from None

    async def _turn(self, session: Session, request: ChatRequest) -> ChatReply:
        conversation = session.conversation
        self._check_open(session)
        if len(conversation.turns) + conversation.regenerated >= self._max_turns:
            raise TurnLimitError("the session is at its turn limit", expected=f"at most {self._max_turns}")
        prompt = conversation.prompt(request)
        generate = GenerateRequest(
            session_id=session.id,
            ids=prompt,
            max_new_tokens=self._room(len(prompt), request.max_new_tokens),
            stream=(*session.stream, len(conversation.turns)),
        )
        reply = await self._generate(generate)
        self._check_open(session)
        return conversation.record(request, prompt, reply)

    def _room(self, prompt_length: int, asked: int | None) -> int:
        """The tokens that the reply may have. Raises ContextLengthError."""
        room = self._max_context - prompt_length
        if room <= 0:
            raise ContextLengthError(
                f"This model's maximum context length is {self._max_context} tokens, "
                f"and the prompt alone has {prompt_length} tokens"
            )
        return room if asked is None else min(room, asked)

    async def _generate(self, request: GenerateRequest) -> GenerateReply:
        try:
            reply = await self._engine.generate(request)
        except Exception as error:
            raise EngineFailedError("the engine failed", found=repr(error)) from error
        rows = len(request.ids) + len(reply.ids) - 1
        if len(reply.logprobs) != len(reply.ids) or (reply.routes is not None and len(reply.routes) != rows):
            raise EngineFailedError(
                "the engine's reply does not fit together",
                expected=f"{len(reply.ids)} log-probabilities; routes None or {rows} rows",
                found=f"{len(reply.logprobs)}; {reply.routes if reply.routes is None else len(reply.routes)}",
            )
        return reply

    def _check_open(self, session: Session) -> None:
        if session.closed:
            raise self._not_found(session.id)

    def _not_found(self, session_id: str) -> SessionNotFoundError:
        return SessionNotFoundError(
            "no such session is open",
            expected=f"one that was opened at most {self._time_to_live_sec:g} s ago and not closed",
            found=session_id,
        )

    def _expire(self, session_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.close(session_id))
        self._expiring.add(task)
        task.add_done_callback(self._expiring.discard)
