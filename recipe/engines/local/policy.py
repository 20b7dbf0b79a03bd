"""The serving half of the local engine: continuous batching of many sessions over one model.

Prompts are prefilled one at a time, on the session's own state where the prompt extends it and on a sibling's
where the prompt is the same; running rows are decoded together, one token a step. A request's
log-probabilities are those of the distribution that its ids were sampled from. Weights change only while
nothing is in flight.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import InklingForCausalLM

from recipe.engines.local.cache import Row, ServingCache
from recipe.engines.local.model import load_weights
from recipe.engines.local.routing import RoutingTape
from recipe.engines.local.sampling import random_stream, sample
from recipe.engines.local.types import Finish, GenerateReply, GenerateRequest
from recipe.engines.local.vocabulary import STOP_ID

# The first prompts of the groups in flight; a group's samples share one.
STORED_PROMPTS = 64


@dataclass
class Turn:
    """One request while it is served."""

    request: GenerateRequest
    done: Callable[[GenerateReply], None]
    uniforms: np.random.Generator = field(init=False)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uniforms = random_stream(self.request.stream)

    @property
    def finish(self) -> Finish | None:
        if self.ids and self.ids[-1] == STOP_ID:
            return "stop"
        return "length" if len(self.ids) >= self.request.max_new_tokens else None

    def reply(self, finish: Finish) -> GenerateReply:
        routes = torch.cat(self.routes).numpy() if self.routes and finish != "abort" else None
        return GenerateReply(ids=self.ids, logprobs=self.logprobs, routes=routes, finish=finish)


class Policy:
    """Serves requests over `model` with up to `max_batch` rows of up to `max_length` tokens; single-threaded."""

    def __init__(self, model: InklingForCausalLM, *, max_batch: int, max_length: int) -> None:
        self.model = model
        self.max_batch = max_batch
        self.max_length = max_length
        self._tape = RoutingTape(model)
        self._waiting: deque[Turn] = deque()
        self._running: list[Turn] = []
        # Twice the longest row, so that rows are seldom moved to the front.
        self._cache = ServingCache(model.config, max_batch, 2 * max_length)
        self._sessions: dict[str, tuple[list[int], Row]] = {}
        self._prompts: OrderedDict[tuple[int, ...], Row] = OrderedDict()

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, request: GenerateRequest, done: Callable[[GenerateReply], None]) -> None:
        """Queues a request; `done` is called with its reply. Raises ValueError when it can't fit."""
        if len(request.ids) + request.max_new_tokens > self.max_length:
            raise ValueError(
                f"prompt of {len(request.ids)} plus {request.max_new_tokens} new tokens exceeds {self.max_length}"
            )
        self._waiting.append(Turn(request, done))

    @torch.inference_mode()
    def step(self) -> None:
        """Admits waiting requests, then decodes one token of every running one."""
        self._admit()
        if self._running:
            self._decode()

    def abort_all(self) -> None:
        """Ends everything in flight; what was sampled so far is returned with finish 'abort'."""
        for turn in (*self._running, *self._waiting):
            turn.done(turn.reply("abort"))
        self._waiting.clear()
        self._running.clear()
        self._cache = ServingCache(self.model.config, self.max_batch, 2 * self.max_length)

    def close_session(self, session_id: str) -> None:
        """Forgets a session's state; its turn in flight ends with finish 'abort'."""
        self._sessions.pop(session_id, None)
        for turn in [turn for turn in self._waiting if turn.request.session_id == session_id]:
            self._waiting.remove(turn)
            turn.done(turn.reply("abort"))
        for index in reversed(range(len(self._running))):
            turn = self._running[index]
            if turn.request.session_id == session_id:
                self._leave(index)
                turn.done(turn.reply("abort"))

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copies new weights in and forgets all state of the old ones. Raises RuntimeError when in flight."""
        if self.busy:
            raise RuntimeError("weights may change only while nothing is in flight")
        load_weights(self.model, weights)
        self._sessions.clear()
        self._prompts.clear()

    def _admit(self) -> None:
        admitted: list[tuple[Turn, Row]] = []
        while self._waiting and len(self._running) + len(admitted) < self.max_batch:
            turn = self._waiting.popleft()
            row = self._prefill(turn.request)
            turn.routes.append(row.routes)
            admitted.append((turn, row))
        if not admitted:
            return
        hidden = torch.stack([row.hidden for _, row in admitted if row.hidden is not None])
        self._sample([turn for turn, _ in admitted], hidden)
        for turn, row in admitted:
            if turn.finish:
                self._finish(turn, row)
                continue
            self._cache.join(row)
            self._running.append(turn)

    def _prefill(self, request: GenerateRequest) -> Row:
        ids = request.ids
        known, row = self._sessions.pop(request.session_id, (None, None))
        if known is not None and row is not None and len(known) < len(ids) and ids[: len(known)] == known:
            return self._extend(row, ids)
        key = tuple(ids)
        if key not in self._prompts:
            self._prompts[key] = self._extend(None, ids)
            if len(self._prompts) > STORED_PROMPTS:
                self._prompts.popitem(last=False)
        self._prompts.move_to_end(key)
        return self._prompts[key]

    def _extend(self, row: Row | None, ids: list[int]) -> Row:
        cache = ServingCache(self.model.config, 1, len(ids))
        if row is not None:
            cache.join(row)
        else:
            cache.rows, cache.lengths = 1, [0]
        start = cache.lengths[0]
        hidden, routes = self._forward(torch.tensor([ids[start:]]), cache)
        routes = routes[0] if row is None else torch.cat([row.routes, routes[0]])
        extended = cache.read(0, routes)
        extended.hidden = hidden[0]
        return extended

    def _forward(self, ids: Tensor, cache: ServingCache) -> tuple[Tensor, Tensor]:
        """Hidden states of the last tokens [rows, width] and routes [rows, length, sparse layers, k]."""
        with self._tape.record() as recorded:
            output = self.model.model(
                input_ids=ids, attention_mask=cache.masks(ids.shape[1]), cache=cache, use_cache=True
            )
        cache.advance(ids.shape[1])
        routes = torch.stack(recorded, dim=1).to(torch.int8)
        return output.last_hidden_state[:, -1], routes.view(*ids.shape, *routes.shape[1:])

    def _decode(self) -> None:
        self._cache.reserve(1)
        hidden, routes = self._forward(torch.tensor([[turn.ids[-1]] for turn in self._running]), self._cache)
        for turn, chosen in zip(self._running, routes, strict=True):
            turn.routes.append(chosen)
        self._sample(self._running, hidden)
        for index in reversed(range(len(self._running))):
            turn = self._running[index]
            if turn.finish:
                self._finish(turn, self._cache.read(index, torch.cat(turn.routes)))
                self._leave(index)

    def _leave(self, index: int) -> None:
        self._cache.leave(index)
        self._running[index] = self._running[-1]
        self._running.pop()

    def _sample(self, turns: list[Turn], hidden: Tensor) -> None:
        logits = F.linear(hidden / self.model.config.logits_mup_width_multiplier, self.model.lm_head.weight)
        uniforms = torch.tensor([turn.uniforms.random() for turn in turns], dtype=torch.float64)
        ids, logprobs = sample(logits, uniforms)
        for turn, token, logprob in zip(turns, ids.tolist(), logprobs.tolist(), strict=True):
            turn.ids.append(token)
            turn.logprobs.append(logprob)

    def _finish(self, turn: Turn, row: Row) -> None:
        request = turn.request
        # The last sampled id was never fed to the model: the next turn's prefill starts with it.
        self._sessions[request.session_id] = (request.ids + turn.ids[:-1], row)
        turn.done(turn.reply(turn.finish or "stop"))
