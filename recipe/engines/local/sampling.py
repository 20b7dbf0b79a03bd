"""Exact temperature-1 sampling over the whole vocabulary, with one random stream per turn.

Two-level inversion of the cumulative distribution (block sums, then inside one block) is exact and 10 times
faster than `torch.multinomial` over 200,000 ids. A stream is keyed by (seed, rollout, sample, turn), never by the
order of arrival, so that the same seed draws the same numbers whatever the concurrency.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID

# 201024 rows are 1047 blocks of 192.
BLOCK = 192


def random_stream(key: tuple[int, ...]) -> np.random.Generator:
    """Uniform numbers that depend on `key` alone."""
    return np.random.default_rng(key)


def sample(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one id per row of `logits` [batch, vocabulary rows] by `uniforms` [batch] in [0, 1), float64.

    Returns ids [batch] and their log-probabilities [batch] under the distribution that they were drawn from.
    Ids without a decoding have probability zero. `logits` are used up. Raises FloatingPointError for logits of
    weights that are NaN or infinite.
    """
    logits[:, FIRST_UNDECODABLE_ID:] = -torch.inf
    weights = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    blocks = weights.view(len(weights), -1, BLOCK)
    # The sum of one block is as exact as its float32 weights are; float64 sums would copy all of them.
    cumulative = blocks.sum(-1).double().cumsum(-1)
    total = cumulative[:, -1:]
    if not torch.isfinite(total).all():
        raise FloatingPointError(
            "the policy's probabilities are not finite, as its weights are no numbers any more"
        )
    target = uniforms[:, None] * total
    block = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks[torch.arange(len(blocks)), block[:, 0]].double().cumsum(-1)
    # Rounding between the two sums may put the target just past the block: its last id with weight is right then.
    last = inside[:, -1:]
    target = torch.minimum(target - before, last.nextafter(torch.zeros_like(last)))
    ids = block * BLOCK + torch.searchsorted(inside, target, right=True)
    return ids[:, 0], (weights.gather(1, ids).double() / total).log().float()[:, 0]
