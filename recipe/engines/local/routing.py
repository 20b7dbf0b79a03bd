"""Rollout routing replay: the experts chosen while sampling are forced in the training forward.

Hooks on the routers either record each token's chosen experts or replay recorded ones; the replayed experts'
weights are recomputed from the current logits, so that the router still learns (Miles' rollout routing replay).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import InklingForCausalLM
from transformers.models.inkling.modeling_inkling import InklingTopkRouter

UNRECORDED = -1


def expert_weights(router: InklingTopkRouter, hidden: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the given `experts` [tokens, k] and of the shared ones, as InklingTopkRouter computes them."""
    logits = F.linear(hidden.reshape(-1, router.hidden_dim).float(), router.weight.float())
    routed, shared = logits[:, : router.num_experts], logits[:, router.num_experts :]
    log_scores = F.logsigmoid(torch.cat([routed.gather(-1, experts), shared], dim=-1))
    # Written as the router writes it, not as a softmax: the bits are to be the same.
    weights = (log_scores - log_scores.logsumexp(dim=-1, keepdim=True)).exp()
    weights = weights * router.route_scale * router.global_scale.float()
    return weights[:, : router.top_k].contiguous(), weights[:, router.top_k :].contiguous()


class RoutingTape:
    """Records or replays the experts of every sparse layer of one model, one forward at a time."""

    def __init__(self, model: InklingForCausalLM) -> None:
        self._mode = "off"
        self._recorded: list[Tensor] = []
        self._replayed: Iterator[Tensor] = iter(())
        self.replaced = 0
        self.seen = 0
        routers = [module for module in model.modules() if isinstance(module, InklingTopkRouter)]
        self.layers = len(routers)
        for router in routers:
            router.register_forward_hook(self._hook)

    @contextmanager
    def record(self) -> Iterator[list[Tensor]]:
        """Yields a list that holds, after one forward, the experts of each sparse layer, [tokens, k]."""
        self._mode, self._recorded = "record", []
        try:
            yield self._recorded
        finally:
            self._mode = "off"

    @contextmanager
    def replay(self, routes: Tensor) -> Iterator[None]:
        """Forces `routes` [batch, length, layers, k] in one forward; rows of UNRECORDED keep the router's choice."""
        self._mode = "replay"
        self._replayed = iter(routes.flatten(0, 1).unbind(1))
        try:
            yield
        finally:
            self._mode = "off"

    def _hook(self, router: InklingTopkRouter, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> Any:
        if self._mode == "record":
            self._recorded.append(output[2])
        if self._mode != "replay":
            return None
        logits, _, own, _ = output
        recorded = next(self._replayed)
        known = recorded != UNRECORDED
        experts = torch.where(known, recorded, own)
        self.seen += int(known.sum())
        self.replaced += int((known & (experts.sort().values != own.sort().values)).sum())
        weights, shared = expert_weights(router, inputs[0], experts)
        return logits, weights, experts, shared
