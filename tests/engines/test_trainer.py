"""One GRPO step: what moves, what does not, and that the observed values are those of the batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.policy import Policy
from recipe.engines.local.trainer import Trainer, TrainingSample, batch_advantages
from recipe.engines.local.types import GenerateReply, GenerateRequest


def sampled(count: int = 4, groups: int = 2) -> list[TrainingSample]:
    """Samples of a fresh model, served by a policy; rewards alternate."""
    torch.set_num_threads(1)
    policy = Policy(build_model(tiny_config()), max_batch=8, max_length=200)
    replies: dict[int, GenerateReply] = {}
    prompts = [np.random.default_rng(i).integers(0, 190_000, 30 + i).tolist() for i in range(count)]
    for i, ids in enumerate(prompts):
        request = GenerateRequest(str(i), ids, 6 + i, (0, 0, i, 0))
        policy.submit(request, lambda reply, i=i: replies.update({i: reply}))
    while policy.busy:
        policy.step()
    return [
        TrainingSample(
            group=i * groups // count,
            ids=ids + replies[i].ids,
            loss_mask=[0] * len(ids) + [1] * len(replies[i].ids),
            logprobs=[0.0] * len(ids) + replies[i].logprobs,
            routes=replies[i].routes,
            reward=float(i % 2),
        )
        for i, ids in enumerate(prompts)
    ]


def trainer() -> Trainer:
    return Trainer(build_model(tiny_config()), learning_rate=1e-3)


def test_a_step_raises_the_probability_of_what_was_rewarded() -> None:
    samples, subject = sampled(), trainer()
    before = subject.token_logprobs(samples)
    observed = subject.step(samples)
    after = subject.token_logprobs(samples)
    gained = (after - before).split([sample.trained_tokens for sample in samples])
    for sample, change in zip(samples, gained, strict=True):
        assert (change.mean().item() > 0) == (sample.reward > 0)
    assert observed["grad_norm"] > 0
    assert observed["logprob_difference_max"] < 1e-4
    assert observed["kl"] == pytest.approx(0.0, abs=1e-6)
    assert observed["tis_mean"] == pytest.approx(1.0, abs=1e-4)
    assert observed["entropy"] == pytest.approx(12.2, abs=0.3)  # nearly log(200058): a fresh model is uniform
    assert observed["tokens_trained"] == sum(sample.trained_tokens for sample in samples)


def test_the_kl_to_the_reference_appears_with_the_second_step() -> None:
    samples, subject = sampled(), trainer()
    subject.step(samples)
    assert subject.step(samples)["kl"] > 1e-7


def test_the_micro_batches_do_not_change_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sampled()
    small = trainer().step(samples)
    monkeypatch.setattr("recipe.engines.local.trainer.MICRO_BATCH", 4)
    large = trainer().step(samples)
    assert small["grad_norm"] == pytest.approx(large["grad_norm"], rel=1e-4)
    assert small["loss"] == pytest.approx(large["loss"], abs=1e-6)


def test_equal_rewards_move_nothing() -> None:
    samples, subject = [dataclasses.replace(sample, reward=1.0) for sample in sampled()], trainer()
    before = {name: value.copy() for name, value in subject.weights().items()}
    assert subject.step(samples)["grad_norm"] == 0.0
    assert all(np.array_equal(before[name], value) for name, value in subject.weights().items())


def test_a_sample_without_routes_is_counted_and_not_trained() -> None:
    samples = sampled()
    samples[0] = dataclasses.replace(samples[0], routes=None)
    observed = trainer().step(samples)
    assert observed["samples_without_routes"] == 1
    assert observed["samples_trained"] == 3
    assert observed["tokens_trained"] == sum(sample.trained_tokens for sample in samples[1:])


def test_a_gradient_that_is_not_finite_stops_the_step() -> None:
    samples, subject = sampled(), trainer()
    samples[1] = dataclasses.replace(samples[1], reward=float("nan"))
    before = {name: value.copy() for name, value in subject.weights().items()}
    with pytest.raises(FloatingPointError, match="not taken"):
        subject.step(samples)
    assert all(np.array_equal(before[name], value) for name, value in subject.weights().items())


def test_frozen_scales_stay() -> None:
    subject = trainer()
    subject.step(sampled())
    for name, value in subject.weights().items():
        if name.endswith("global_scale"):
            assert value.tolist() == [1.0]


def test_advantages_keep_the_samples_order() -> None:
    samples = [
        TrainingSample(group, [0], [0], [0.0], None, reward)
        for group, reward in [(7, 0.0), (3, 1.0), (7, 1.0), (3, 0.0)]
    ]
    assert batch_advantages(samples) == pytest.approx([-0.70711, 0.70711, 0.70711, -0.70711], abs=1e-4)
