"""The values that cross the session server's seams: a turn asked for, its reply, the training form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Finish = Literal["stop", "length", "abort"]
Status = Literal["completed", "truncated", "aborted"]


@dataclass(frozen=True)
class GenerateRequest:
    """One turn asked of the engine."""

    session_id: str
    ids: list[int]  # the whole prompt of this turn, ends with <|message_model|>
    max_new_tokens: int
    stream: tuple[int, ...]  # keys the random stream: (seed, rollout, sample index, turn)


@dataclass(frozen=True)
class GenerateReply:
    """What the engine sampled for one turn."""

    ids: list[int]  # the sampled ids, the stop token included when it was sampled
    logprobs: list[float]  # nats, of the distribution each id was sampled from
    routes: np.ndarray | None  # int8 [len(prompt) + len(ids) - 1, sparse_layers, experts_per_token]
    finish: Finish


class TurnEngine(Protocol):
    """What the session server needs of an engine."""

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Samples one turn; cancelling the call ends the generation."""
        ...

    async def close_session(self, session_id: str) -> None:
        """Forgets the session and ends its running generation with "abort"; an unknown session is fine."""
        ...


@dataclass(frozen=True)
class Trajectory:
    """A session's training form: one flat row of tokens."""

    ids: list[int]
    loss_mask: list[int]  # [len(ids)], 1 on sampled ids (the stop token included), 0 elsewhere
    logprobs: list[float]  # [len(ids)], nats, 0.0 where loss_mask is 0
    routes: (
        np.ndarray | None
    )  # int8 [len(ids) - 1, sparse_layers, experts_per_token]; None: the engine sent none
    status: Status
    turns: int  # turns inside ids
    parse_errors: list[str]  # one per malformed turn inside ids
    refused: int  # requests refused because they edited the history
    regenerated: int  # turns taken back, which are not trained
    mismatches: list[
        dict[str, str]
    ]  # where a history rendered anew differs, as in Miles' tito_session_mismatch
