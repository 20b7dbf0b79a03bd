"""Serving: what a request gets is exact, whatever is decoded beside it; training sees what serving did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import InklingForCausalLM

from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.policy import Policy
from recipe.engines.local.routing import RoutingTape, expert_weights
from recipe.engines.local.trainer import Trainer, TrainingSample
from recipe.engines.local.types import GenerateReply, GenerateRequest

MESSAGE_MODEL = 200001
# Float32 sums in another order; a wrong mask, state or route gives differences of 1e-3 and more.
EXACT = 2e-5


@pytest.fixture(scope="module")
def model() -> InklingForCausalLM:
    torch.set_num_threads(1)
    built = build_model(tiny_config(), seed=3)
    with torch.no_grad():  # A fresh model is nearly uniform: sharpen it, so that mistakes show.
        built.lm_head.weight.mul_(20)
        for name, parameter in built.named_parameters():
            if "rel_logits_proj" in name or "gate.weight" in name:
                parameter.mul_(30)
    return built


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 190_000, length).tolist()


def policy_of(model: InklingForCausalLM, max_batch: int = 32, max_length: int = 900) -> Policy:
    return Policy(model, max_batch=max_batch, max_length=max_length)


def serve(policy: Policy, requests: Sequence[GenerateRequest], steps_between: int = 0) -> list[GenerateReply]:
    """Submits the requests `steps_between` steps apart and runs until all are done."""
    replies: dict[str, GenerateReply] = {}
    for request in requests:
        policy.submit(request, lambda reply, request=request: replies.update({request.session_id: reply}))
        for _ in range(steps_between):
            policy.step()
    while policy.busy:
        policy.step()
    return [replies[request.session_id] for request in requests]


def request(index: int, length: int, new: int = 20, turn: int = 0) -> GenerateRequest:
    return GenerateRequest(f"s{index}", prompt(index, length), new, (1, 0, index, turn))


def training_sample(ids: list[int], turns: list[tuple[int, GenerateReply]]) -> TrainingSample:
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    for start, reply in turns:
        for offset, logprob in enumerate(reply.logprobs):
            mask[start + offset], logprobs[start + offset] = 1, logprob
    return TrainingSample(0, ids, mask, logprobs, turns[-1][1].routes, 0.0)


def difference(model: InklingForCausalLM, sample: TrainingSample) -> float:
    rollout = torch.tensor(
        [v for v, trained in zip(sample.logprobs, sample.loss_mask, strict=True) if trained]
    )
    return float((Trainer(model, 1e-3).token_logprobs([sample]) - rollout).abs().max())


def test_ragged_rows_that_join_and_leave_are_exact(model: InklingForCausalLM) -> None:
    requests = [
        request(i, length, new) for i, (length, new) in enumerate([(40, 25), (300, 9), (7, 30), (120, 3)])
    ]
    replies = serve(policy_of(model), requests, steps_between=4)
    for asked, reply in zip(requests, replies, strict=True):
        sample = training_sample(asked.ids + reply.ids, [(len(asked.ids), reply)])
        assert difference(model, sample) < EXACT


def test_beyond_the_attention_window_is_exact(model: InklingForCausalLM) -> None:
    asked = request(1, 700, 12)
    (reply,) = serve(policy_of(model), [asked])
    assert difference(model, training_sample(asked.ids + reply.ids, [(700, reply)])) < EXACT


def test_a_later_turn_continues_its_session_exactly(model: InklingForCausalLM) -> None:
    policy = policy_of(model)
    first = request(1, 60)
    neighbours = [request(i, 30 + i) for i in range(2, 5)]
    reply, *_ = serve(policy, [first, *neighbours])
    ids = [*first.ids, *reply.ids, *prompt(9, 15), MESSAGE_MODEL]
    second = GenerateRequest("s1", ids, 20, (1, 0, 1, 1))
    (later,) = serve(policy, [second])
    sample = training_sample(ids + later.ids, [(60, reply), (len(ids), later)])
    assert later.routes is not None
    assert len(later.routes) == len(sample.ids) - 1
    assert difference(model, sample) < EXACT


def test_rows_moved_to_the_front_stay_exact(model: InklingForCausalLM) -> None:
    policy = policy_of(model, max_batch=2, max_length=60)
    requests = [request(i, 30, 25 + i % 4) for i in range(12)]
    for asked, reply in zip(requests, serve(policy, requests), strict=True):
        sample = training_sample(asked.ids + reply.ids, [(30, reply)])
        assert difference(model, sample) < EXACT


def test_alone_means_bit_identical_whatever_waits(model: InklingForCausalLM) -> None:
    asked = request(1, 50)
    (alone,) = serve(policy_of(model, max_batch=1), [asked])
    crowd = [request(i, 20 + 3 * i) for i in (5, 6)]
    *_, among = serve(policy_of(model, max_batch=1), [*crowd, asked])
    assert among.ids == alone.ids
    assert among.logprobs == alone.logprobs


def test_siblings_share_a_prompt_and_draw_apart(model: InklingForCausalLM) -> None:
    ids = prompt(1, 50)
    requests = [GenerateRequest(f"s{i}", ids, 10, (1, 0, i, 0)) for i in range(3)]
    replies = serve(policy_of(model), requests)
    assert len({tuple(reply.ids) for reply in replies}) == 3
    for reply in replies:
        assert difference(model, training_sample(ids + reply.ids, [(50, reply)])) < EXACT


def test_wrong_routes_are_seen(model: InklingForCausalLM) -> None:
    asked = request(1, 80)
    (reply,) = serve(policy_of(model), [asked])
    assert reply.routes is not None
    shuffled = GenerateReply(
        reply.ids, reply.logprobs, ((reply.routes + 3) % 8).astype(np.int8), reply.finish
    )
    assert difference(model, training_sample(asked.ids + reply.ids, [(80, shuffled)])) > 1e-3


def test_replay_repeats_the_router_bit_for_bit(model: InklingForCausalLM) -> None:
    router = model.model.layers[1].mlp.gate
    hidden = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
    _, weights, experts, shared = router(hidden)
    again, shared_again = expert_weights(router, hidden, experts)
    assert torch.equal(again, weights)
    assert torch.equal(shared_again, shared)


def test_unrecorded_rows_keep_the_routers_choice(model: InklingForCausalLM) -> None:
    tape = RoutingTape(model)
    ids = torch.tensor([prompt(4, 12)])
    plain = model.model(input_ids=ids).last_hidden_state
    with tape.replay(torch.full((1, 12, tape.layers, 2), -1)):
        replayed = model.model(input_ids=ids).last_hidden_state
    assert torch.equal(plain, replayed)


def test_weights_do_not_change_under_a_request(model: InklingForCausalLM) -> None:
    policy = policy_of(model)
    policy.submit(request(1, 20), lambda _: None)
    with pytest.raises(RuntimeError, match="in flight"):
        policy.load_weights({})


def test_abort_returns_what_was_sampled_and_the_policy_goes_on(model: InklingForCausalLM) -> None:
    policy = policy_of(model)
    replies: list[GenerateReply] = []
    policy.submit(request(1, 20, 50), replies.append)
    for _ in range(5):
        policy.step()
    policy.abort_all()
    assert replies[0].finish == "abort"
    assert 0 < len(replies[0].ids) < 50
    (after,) = serve(policy, [request(2, 20)])
    assert after.finish in {"stop", "length"}


def test_closing_a_session_ends_its_turn_and_no_other(model: InklingForCausalLM) -> None:
    policy = policy_of(model)
    replies: dict[str, GenerateReply] = {}
    requests = [request(i, 20 + i, 12) for i in range(3)]
    for asked in requests:
        policy.submit(asked, lambda reply, asked=asked: replies.update({asked.session_id: reply}))
    for _ in range(4):
        policy.step()
    policy.close_session("s0")
    assert replies["s0"].finish == "abort"
    while policy.busy:
        policy.step()
    for asked in requests[1:]:
        reply = replies[asked.session_id]
        assert len(reply.ids) == 12
        assert difference(model, training_sample(asked.ids + reply.ids, [(len(asked.ids), reply)])) < EXACT


def test_a_prompt_that_cannot_fit_is_refused(model: InklingForCausalLM) -> None:
    with pytest.raises(ValueError, match="exceeds 100"):
        policy_of(model, max_length=100).submit(request(1, 90, 11), lambda _: None)
