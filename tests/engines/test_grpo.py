"""The formulas of the GRPO step against values computed by hand and a plain-Python second implementation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.engines.local.grpo import (
    group_advantages,
    low_variance_kl,
    policy_loss,
    token_weights,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(ratio: float, advantage: float, importance: float = 1.0) -> float:
    old = -1.0
    token = policy_loss(
        tensor(old + math.log(ratio)), tensor(old), tensor(old - math.log(importance)), tensor(advantage)
    )
    return token.loss.item()


def test_one_success_in_eight_is_worth_seven_times_a_failure() -> None:
    advantages = group_advantages(tensor(1, 0, 0, 0, 0, 0, 0, 0)[None])
    # mean 1/8, std with N - 1: sqrt(1/8); (7/8) / sqrt(1/8) = 2.4749
    assert advantages[0].tolist() == pytest.approx([2.47487, *[-0.35355] * 7], abs=1e-4)


def test_two_samples_use_the_unbiased_deviation() -> None:
    assert group_advantages(tensor(0, 1)[None])[0].tolist() == pytest.approx([-0.70711, 0.70711], abs=1e-4)


def test_equal_rewards_have_no_advantage() -> None:
    assert group_advantages(tensor(1, 1, 1)[None]).abs().max().item() == 0.0


def test_groups_are_normalised_apart() -> None:
    rewards = torch.stack([tensor(0, 1), tensor(10, 30)])
    assert group_advantages(rewards).tolist() == pytest.approx(
        [pytest.approx([-0.70711, 0.70711], abs=1e-4)] * 2
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 1.0, -1.28),  # clipped above at 1 + 0.28
        (1.2, 1.0, -1.2),  # inside the wider upper bound
        (0.5, 1.0, -0.5),  # a falling ratio with a positive advantage is not clipped
        (0.5, -1.0, 0.8),  # clipped below at 1 - 0.2
        (1.5, -1.0, 1.5),
        (5.0, -1.0, 3.0),  # dual clip
        (2.9, -2.0, 5.8),
    ],
)
def test_the_clipped_loss_by_hand(ratio: float, advantage: float, expected: float) -> None:
    assert loss_of(ratio, advantage) == pytest.approx(expected)


@pytest.mark.parametrize(("importance", "factor"), [(0.5, 0.5), (1.0, 1.0), (2.0, 2.0), (7.0, 2.0)])
def test_the_importance_weight_is_truncated_at_two(importance: float, factor: float) -> None:
    assert loss_of(1.0, 1.0, importance) == pytest.approx(-factor)


def test_the_importance_weight_carries_no_gradient() -> None:
    logprobs = tensor(-1.0).requires_grad_()
    policy_loss(logprobs, logprobs, tensor(-1.3), tensor(1.0)).loss.sum().backward()
    # The ratio's own gradient through both arguments cancels; what remained would be the weight's.
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(0.0)


def test_long_and_short_samples_weigh_the_same() -> None:
    values, lengths = tensor(1, 1, 1, 1, 5), torch.tensor([4, 1])
    assert (values * token_weights(lengths)).sum().item() == pytest.approx(3.0)


def test_a_micro_batch_weighs_as_in_the_whole_batch() -> None:
    assert token_weights(torch.tensor([2]), samples=4).tolist() == pytest.approx([0.125, 0.125])


def test_kl_by_hand_and_never_negative() -> None:
    kl = low_variance_kl(tensor(-1.0, -2.0, -1.0), tensor(-1.0, -1.0, -2.0))
    assert kl.tolist() == pytest.approx([0.0, math.e - 2.0, math.exp(-1)])


def test_kl_of_a_hopeless_token_is_bounded() -> None:
    assert low_variance_kl(tensor(-100.0), tensor(0.0)).item() == 10.0


def second_implementation(new: float, old: float, rollout: float, advantage: float) -> float:
    ratio = math.exp(max(-20.0, min(20.0, new - old)))
    bounded = min(max(ratio, 0.8), 1.28)
    objective = min(ratio * advantage, bounded * advantage)
    if advantage < 0:
        objective = max(objective, 3.0 * advantage)
    return -objective * min(math.exp(old - rollout), 2.0)


logprob = st.floats(-6.0, 0.0)


@given(logprob, logprob, logprob, st.floats(-3.0, 3.0))
def test_the_loss_equals_a_second_implementation(
    new: float, old: float, rollout: float, advantage: float
) -> None:
    token = policy_loss(tensor(new), tensor(old), tensor(rollout), tensor(advantage))
    assert token.loss.item() == pytest.approx(
        second_implementation(new, old, rollout, advantage), rel=1e-9, abs=1e-12
    )
