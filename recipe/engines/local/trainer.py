"""The training half of the local engine: one GRPO step over a batch of samples, with routing replay.

As in production there is one optimizer step a rollout, so the log-probabilities before the step are those of the
training forward itself; the reference model's forward runs without replay.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import InklingForCausalLM

from recipe.algorithm import GRPO
from recipe.engines.local.grpo import group_advantages, low_variance_kl, policy_loss, token_weights
from recipe.engines.local.head import token_logprobs
from recipe.engines.local.model import output_head, scaled_hidden
from recipe.engines.local.routing import UNRECORDED, RoutingTape

# Four samples a forward keep the head's weights of a smoke task's step under 200 MB.
MICRO_BATCH = 4


@dataclass(frozen=True)
class TrainingSample:
    """What a sample brings to training: all lists have one entry per id; `routes` has one row less, or is
    missing: such a sample counts in its group's advantages and in the mean, but is not trained on."""

    group: int
    ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    routes: np.ndarray | None
    reward: float

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def trainable(self) -> bool:
        return self.routes is not None and self.trained_tokens > 0


class Trainer:
    """Float32 weights, a frozen reference copy, and Adam with production's settings."""

    def __init__(self, model: InklingForCausalLM, learning_rate: float) -> None:
        self.model = model
        self.reference = copy.deepcopy(model).requires_grad_(False)
        self._tape = RoutingTape(model)
        self._optimizer = adam(model, learning_rate)

    def weights(self) -> dict[str, np.ndarray]:
        """Views of the current weights by name."""
        return {name: parameter.detach().numpy() for name, parameter in self.model.named_parameters()}

    def step(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """One optimizer step over whole groups of equal size. Returns what production logs of a step."""
        advantages = batch_advantages(samples)
        totals: dict[str, float] = {}
        self._tape.replaced = self._tape.seen = 0
        # Samples of similar length share a forward: less padding.
        trainable = [index for index, sample in enumerate(samples) if sample.trainable]
        order = sorted(trainable, key=lambda index: len(samples[index].ids))
        for chunk in _chunks(order, MICRO_BATCH):
            batch = [samples[index] for index in chunk]
            observed = self._accumulate(
                batch, torch.tensor([advantages[index] for index in chunk]), len(samples)
            )
            for name, value in observed.items():
                totals[name] = (
                    max(totals.get(name, 0.0), value)
                    if name.endswith("_max")
                    else totals.get(name, 0.0) + value
                )
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRPO.gradient_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm.item()}: the step was not taken")
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {
            **totals,
            "grad_norm": norm.item(),
            "valid_step": True,
            "learning_rate": self._optimizer.param_groups[0]["lr"],
            "samples_trained": len(trainable),
            "samples_without_routes": sum(sample.routes is None for sample in samples),
            "routes_replaced_ratio": self._tape.replaced / max(1, self._tape.seen),
        }

    def token_logprobs(self, samples: Sequence[TrainingSample]) -> Tensor:
        """Log-probabilities of all trained tokens under the current weights, with replay, [tokens]."""
        parts = []
        with torch.no_grad():
            for chunk in _chunks(samples, MICRO_BATCH):
                with self._tape.replay(replay_routes(chunk)):
                    parts.append(_logprobs_and_entropy(self.model, chunk)[0])
        return torch.cat(parts)

    def _accumulate(self, batch: list[TrainingSample], advantages: Tensor, samples: int) -> dict[str, float]:
        lengths = torch.tensor([sample.trained_tokens for sample in batch])
        weights = token_weights(lengths, samples)
        with torch.no_grad():
            reference, _ = _logprobs_and_entropy(self.reference, batch)
        with self._tape.replay(replay_routes(batch)):
            logprobs, entropy = _logprobs_and_entropy(self.model, batch)
        old = logprobs.detach()
        rollout = torch.tensor([value for sample in batch for value in _trained(sample, sample.logprobs)])
        token = policy_loss(logprobs, old, rollout, advantages.repeat_interleave(lengths))
        loss = (token.loss * weights).sum()
        if advantages.any():  # groups with equal rewards have a gradient of exactly zero
            loss.backward()
        difference = (old - rollout).abs()

        def mean(values: Tensor) -> float:
            return float((values.detach() * weights).sum())

        return {
            "loss": loss.item(),
            "kl": mean(low_variance_kl(old, reference)),
            "entropy": mean(entropy),
            "logprob_difference": mean(difference),
            "logprob_difference_max": difference.max().item(),
            "tis_mean": mean(token.importance),
            "clipped_ratio": mean(token.clipped),
            "tokens_trained": float(lengths.sum()),
        }


def adam(
    model: InklingForCausalLM, learning_rate: float, weight_decay: float = GRPO.weight_decay
) -> torch.optim.AdamW:
    """AdamW with production's betas; vectors and scalars are not decayed, as in Megatron."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = (GRPO.adam_beta1, GRPO.adam_beta2)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=GRPO.adam_epsilon, fused=True)


def batch_advantages(samples: Sequence[TrainingSample]) -> list[float]:
    """Each sample's advantage within its group; all groups have the same size."""
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    rewards = torch.tensor([[samples[index].reward for index in members] for members in groups.values()])
    advantages = [0.0] * len(samples)
    for members, values in zip(groups.values(), group_advantages(rewards).tolist(), strict=True):
        for index, value in zip(members, values, strict=True):
            advantages[index] = value
    return advantages


def replay_routes(batch: Sequence[TrainingSample]) -> Tensor:
    """Recorded experts [batch, longest, sparse layers, k], UNRECORDED for padding and for each last token."""
    recorded = [torch.tensor(sample.routes) for sample in batch if sample.routes is not None]
    longest = max(len(sample.ids) for sample in batch)
    routes = torch.full((len(batch), longest, *recorded[0].shape[1:]), UNRECORDED, dtype=torch.long)
    for row, known in zip(routes, recorded, strict=True):
        row[: len(known)] = known
    return routes


def _logprobs_and_entropy(
    model: InklingForCausalLM, batch: Sequence[TrainingSample]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (differentiable) and entropies of the trained tokens in order, each [tokens]."""
    longest = max(len(sample.ids) for sample in batch)
    ids = torch.tensor([sample.ids + [0] * (longest - len(sample.ids)) for sample in batch])
    hidden = scaled_hidden(model, ids)
    # The hidden state before a token predicts it; the head sees these positions only.
    predicting = torch.cat(
        [
            row[[position - 1 for position, trained in enumerate(sample.loss_mask) if trained]]
            for row, sample in zip(hidden, batch, strict=True)
        ]
    )
    targets = torch.tensor([token for sample in batch for token in _trained(sample, sample.ids)])
    return token_logprobs(predicting, output_head(model), targets)


def _trained[T](sample: TrainingSample, values: Sequence[T]) -> Iterator[T]:
    return (value for value, trained in zip(values, sample.loss_mask, strict=True) if trained)


def _chunks[T](items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
