"""The formulas of the GRPO step as pure functions over flat tensors.

One entry per trained token; `lengths` gives how many consecutive entries belong to each sample. Sources: GRPO
(arXiv 2402.03300), clip-higher (DAPO, arXiv 2503.14476), dual clip (arXiv 1912.09729), truncated importance
sampling and the reductions as in Miles at the commit that `pins/` names for the recipes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipe.algorithm import GRPO, Algorithm


def group_advantages(rewards: Tensor, algorithm: Algorithm = GRPO) -> Tensor:
    """(r - mean) / (std + epsilon) within each group of `rewards` [groups, samples]; std divides by N - 1."""
    centred = rewards - rewards.mean(dim=-1, keepdim=True)
    return centred / (rewards.std(dim=-1, keepdim=True) + algorithm.advantage_epsilon)


def token_weights(lengths: Tensor, samples: int | None = None) -> Tensor:
    """1 / (tokens of the sample x samples) for each token; `samples` is the whole batch's count.

    Their weighted sum is the mean over samples of each one's mean: long and short samples weigh the same.
    """
    count = len(lengths) if samples is None else samples
    return (1.0 / (lengths * count)).repeat_interleave(lengths)


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss [tokens], and what is observed of it: the ratio's clipping and the importance weights."""

    loss: Tensor
    clipped: Tensor
    importance: Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    algorithm: Algorithm = GRPO,
) -> TokenLoss:
    """The clipped surrogate times the truncated importance weight, per token; all arguments [tokens].

    `old_logprobs` are the trainer's before the step, `rollout_logprobs` those the engine sampled from.
    """
    bound = algorithm.log_ratio_bound
    ratio = (logprobs - old_logprobs).clamp(-bound, bound).exp()
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high) * advantages
    loss = torch.maximum(plain, clipped)
    loss = torch.where(advantages < 0, torch.minimum(loss, -algorithm.clip_dual * advantages), loss)
    importance = (old_logprobs - rollout_logprobs).exp()
    return TokenLoss(
        loss=loss * importance.clamp(0.0, algorithm.importance_cap).detach(),
        clipped=(clipped > plain).float(),
        importance=importance,
    )


def low_variance_kl(logprobs: Tensor, reference_logprobs: Tensor, algorithm: Algorithm = GRPO) -> Tensor:
    """The k3 estimate exp(d) - 1 - d with d = reference - policy, per token (http://joschu.net/blog/kl-approx)."""
    difference = (reference_logprobs - logprobs).clamp(-algorithm.log_ratio_bound, algorithm.log_ratio_bound)
    return (difference.exp() - 1 - difference).clamp(-algorithm.kl_bound, algorithm.kl_bound)
