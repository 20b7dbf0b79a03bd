"""One group of GRPO samples as a smoke task gives them, but of random ids, served by our Policy."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from transformers import InklingForCausalLM

from recipe.engines.local.policy import Policy
from recipe.engines.local.trainer import TrainingSample
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID

# The smoke tasks' own numbers of tokens: a prompt 170 to 179, a command 22 to 29, its output 11 and more.
PROMPT = 175
COMMANDS = (22, 23, 24, 25, 26, 27, 28, 29)
# Tokens of each further turn and of the output before it: a check and a final message, or the message alone.
CHECKED = ((11, 20), (20, 5))
UNCHECKED = ((11, 5),)
# Three of ten lessons check their work.
CHECKED_EVERY = 3


@dataclass(frozen=True)
class BenchmarkSample:
    """A sample, and how many of its ids are its first prompt."""

    prompt_length: int
    sample: TrainingSample


def one_group(model: InklingForCausalLM, size: int) -> list[BenchmarkSample]:
    """`size` samples of one prompt; every other one has reward 1."""
    policy = Policy(copy.deepcopy(model), max_batch=1, max_length=512)
    prompt = _ids(np.random.default_rng(0), PROMPT)
    return [BenchmarkSample(PROMPT, _sample(policy, prompt, index)) for index in range(size)]


def _sample(policy: Policy, prompt: list[int], index: int) -> TrainingSample:
    draw = np.random.default_rng((1, index))
    ids, mask, logprobs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
    later = CHECKED if index % CHECKED_EVERY == CHECKED_EVERY - 1 else UNCHECKED
    for turn, (output, new_tokens) in enumerate(((0, COMMANDS[index % len(COMMANDS)]), *later)):
        ids += _ids(draw, output)
        reply = _turn(policy, GenerateRequest(str(index), list(ids), new_tokens, (index, turn)))
        ids += reply.ids
        mask += [0] * output + [1] * len(reply.ids)
        logprobs += [0.0] * output + reply.logprobs
    return TrainingSample(0, ids, mask, logprobs, reply.routes, reward=float(index % 2))


def _turn(policy: Policy, request: GenerateRequest) -> GenerateReply:
    replies: list[GenerateReply] = []
    policy.submit(request, replies.append)
    while policy.busy:
        policy.step()
    return replies[0]


def _ids(draw: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in draw.integers(0, FIRST_UNDECODABLE_ID, count)]
