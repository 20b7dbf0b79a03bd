"""Sampling is exact over the whole vocabulary, and a turn's stream depends on its key alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.engines.local.sampling import random_stream, sample
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID, VOCAB_ROWS


def spread_logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB_ROWS, generator=torch.Generator().manual_seed(seed)) * 4


def reference(logits: torch.Tensor, uniform: float) -> tuple[int, float]:
    logprobs = logits[:FIRST_UNDECODABLE_ID].double().log_softmax(-1)
    index = int(torch.searchsorted(logprobs.exp().cumsum(-1), uniform))
    return index, float(logprobs[index])


@pytest.mark.parametrize("uniform", [0.0, 1e-9, 0.123, 0.5, 0.987654321, 1 - 1e-12])
def test_the_two_level_inversion_draws_what_one_cumulative_sum_draws(uniform: float) -> None:
    logits = spread_logits(3)
    expected, logprob = reference(logits[0], uniform)
    ids, logprobs = sample(logits.clone(), torch.tensor([uniform], dtype=torch.float64))
    # Summation order may move the boundary between neighbours; their probability is below 1e-4 here.
    assert abs(int(ids[0]) - expected) <= 1
    if int(ids[0]) == expected:
        assert logprobs[0].item() == pytest.approx(logprob, abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 5))
def test_ids_without_a_text_are_never_drawn(uniform: float, seed: int) -> None:
    logits = spread_logits(seed)
    logits[:, FIRST_UNDECODABLE_ID:] += 50
    ids, logprobs = sample(logits, torch.tensor([uniform], dtype=torch.float64))
    assert int(ids[0]) < FIRST_UNDECODABLE_ID
    assert torch.isfinite(logprobs).all()


def test_draws_have_the_distribution() -> None:
    logits = torch.full((1, VOCAB_ROWS), -30.0)
    chosen = {7: 0.5, 191: 0.2, 192: 0.2, 150_000: 0.1}
    for token, probability in chosen.items():
        logits[0, token] = float(np.log(probability)) + 10
    uniforms = torch.from_numpy(random_stream((1, 2, 3)).random((40, 100)))
    ids = torch.cat([sample(logits.repeat(100, 1), row)[0] for row in uniforms])
    for token, probability in chosen.items():
        assert float((ids == token).double().mean()) == pytest.approx(probability, abs=0.03)


def test_equal_keys_give_equal_streams_and_others_differ() -> None:
    first, again = random_stream((1, 0, 5, 2)).random(4), random_stream((1, 0, 5, 2)).random(4)
    other = random_stream((1, 0, 5, 3)).random(4)
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    logits = torch.zeros(2, VOCAB_ROWS)
    logits[1, 5] = value
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(logits, torch.tensor([0.5, 0.5], dtype=torch.float64))
