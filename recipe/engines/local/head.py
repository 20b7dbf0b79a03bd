"""The head at the trained positions only: log-probabilities and entropies over the whole vocabulary.

On a CPU this is most of a training step. It runs in blocks of vocabulary rows whose logits stay in the cache;
autograd's own chain (linear, logsumexp, gather, softmax) walks all 200,058 columns in memory many times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Rows of the vocabulary at a time: with 100 to 200 tokens the logits are 1 MB, the size of a core's cache.
BLOCK = 2048


class _TokenLogprobs(torch.autograd.Function):
    # Everything is [vocabulary, tokens]: the matrix products of either pass run twice as fast this way round.

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        blocks = head.split(BLOCK)
        weights = hidden.new_empty(len(head) if ctx.needs_input_grad[0] else BLOCK, len(hidden))
        logits = hidden.new_empty(BLOCK, len(hidden))
        largest, total, moment = hidden.new_empty(3, len(blocks), len(hidden))
        for index, rows in enumerate(blocks):
            start = index * BLOCK if ctx.needs_input_grad[0] else 0
            weight = weights[start : start + len(rows)]
            logit = torch.mm(rows, hidden.T, out=logits[: len(rows)])
            torch.amax(logit, 0, out=largest[index])
            torch.exp(logit.sub_(largest[index]), out=weight)
            torch.sum(weight, 0, out=total[index])
            torch.sum(logit.mul_(weight), 0, out=moment[index])
        # Each block is relative to its own largest logit: bring all of them to the largest of all.
        offset = largest - largest.amax(0)
        scale = offset.exp()
        normalizer = (scale * total).sum(0)
        mean_logit = (scale * (moment + offset * total)).sum(0) / normalizer
        logprobs = (hidden * head[targets]).sum(-1) - largest.amax(0) - normalizer.log()
        entropy = normalizer.log() - mean_logit
        ctx.save_for_backward(hidden, head, targets, weights, scale / normalizer)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, head, targets, weights, scale = ctx.saved_tensors
        gradient = gradients[0]
        # d logprob / d logits = (1 at the target) - probabilities; `weights` is ours alone and is used up here.
        by_hidden = gradient[:, None] * head[targets]
        by_head = torch.empty_like(head)
        for index, weight in enumerate(weights.split(BLOCK)):
            rows = slice(index * BLOCK, index * BLOCK + len(weight))
            by_logits = weight.mul_(-gradient * scale[index])
            by_hidden.addmm_(by_logits.T, head[rows])
            torch.mm(by_logits, hidden, out=by_head[rows])
        return by_hidden, by_head.index_add_(0, targets, gradient[:, None] * hidden), None


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (differentiable once) and entropies (not differentiable), each [tokens], in nats.

    `hidden` [tokens, width] predicts `targets` [tokens] through `head` [vocabulary, width].
    """
    return _TokenLogprobs.apply(hidden, head, targets)  # type: ignore[no-untyped-call, no-any-return]
