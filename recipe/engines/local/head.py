"""The head at the trained positions only: log-probabilities and entropies over the whole vocabulary.

Autograd's own chain (linear, logsumexp, gather, softmax) walks the 200,058 columns about twice as often; on a CPU
that is most of a training step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(hidden, head)
        largest = logits.amax(-1, keepdim=True)
        weights = (logits - largest).exp_()
        total = weights.sum(-1, keepdim=True)
        normalizer = largest + total.log()
        logprobs = logits.gather(1, targets[:, None]) - normalizer
        entropy = normalizer[:, 0] - torch.linalg.vecdot(weights, logits) / total[:, 0]
        ctx.save_for_backward(hidden, head, targets, weights, total)
        ctx.mark_non_differentiable(entropy)
        return logprobs[:, 0], entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, head, targets, weights, total = ctx.saved_tensors
        gradient = gradients[0]
        # d logprob / d logits = (1 at the target) - probabilities; `weights` is ours alone and is used up here.
        by_logits = weights.mul_(-gradient[:, None] / total)
        by_logits[torch.arange(len(targets)), targets] += gradient
        return by_logits @ head, by_logits.T @ hidden, None


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (differentiable once) and entropies (not differentiable), each [tokens], in nats.

    `hidden` [tokens, width] predicts `targets` [tokens] through `head` [vocabulary, width].
    """
    return _TokenLogprobs.apply(hidden, head, targets)  # type: ignore[no-untyped-call, no-any-return]
