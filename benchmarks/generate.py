"""Generated tokens per second: our Policy beside `transformers`' own generate, same weights and prompts.

Both sides get the same number of prompts at once and sample from the whole vocabulary at temperature 1.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from transformers import InklingForCausalLM

from benchmarks.measure import Findings, Row, Seconds, in_turns
from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.policy import Policy
from recipe.engines.local.types import GenerateReply, GenerateRequest
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID
from recipe.errors import RecipeError

NEW_TOKENS = 48
# Prompts of a first and of a later turn differ in length, and so do those of different tasks.
PROMPT_TOKENS = (270, 331)
# Concurrent sessions -> rounds; transformers takes ten seconds for 32.
ROUNDS = {1: 5, 8: 5, 32: 3}
QUICK_ROUNDS = {1: 2, 8: 2, 32: 1}
MAX_BATCH = 32
GOAL = 3.0
GOAL_SESSIONS = (8, 32)


def run(*, quick: bool) -> Findings:
    """One row for each number of concurrent sessions."""
    torch.set_num_threads(1)
    model = build_model(tiny_config())
    ours = Ours(copy.deepcopy(model))
    findings = Findings("Generation", against="transformers")
    for sessions, rounds in (QUICK_ROUNDS if quick else ROUNDS).items():
        prompts = [_prompts(sessions, index) for index in range(rounds)]
        sides = {
            "ours": lambda index, prompts=prompts: ours.generate(prompts[index]),
            "transformers": lambda index, prompts=prompts: transformers_generate(model, prompts[index]),
        }
        _add(findings, sessions, **in_turns(sides, rounds))
    findings.notes.append(
        f"Seconds are of CPU (one thread). Prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[1] - 1} tokens, "
        f"prefill included, and exactly {NEW_TOKENS} new tokens each: transformers is given no stop token, "
        "and ours, which a fresh model samples once in 200,000 tokens, is checked. Only ours gives "
        "log-probabilities and routes."
    )
    return findings


def _add(findings: Findings, sessions: int, *, ours: Seconds, transformers: Seconds) -> None:
    tokens = sessions * NEW_TOKENS
    ratio = transformers.cpu / ours.cpu
    has_goal = sessions in GOAL_SESSIONS
    findings.rows.append(
        Row(
            subject=f"generation, {sessions} at once",
            unit="tokens/s",
            ours=tokens / ours.cpu,
            other=tokens / transformers.cpu,
            ratio=ratio,
            goal=f"{GOAL:g}x" if has_goal else "",
            met=ratio >= GOAL if has_goal else None,
        )
    )
    findings.notes.append(
        f"{sessions} at once by the wall clock: {tokens / ours.wall:.0f} and {tokens / transformers.wall:.0f} "
        f"tokens/s, {transformers.wall / ours.wall:.1f}x"
    )


class Ours:
    """Our Policy, as the engine's actor drives it."""

    def __init__(self, model: InklingForCausalLM) -> None:
        self._policy = Policy(model, max_batch=MAX_BATCH, max_length=PROMPT_TOKENS[1] + NEW_TOKENS)

    def generate(self, prompts: list[list[int]]) -> None:
        """Serves one request a prompt, all at once. Raises RecipeError when one ends early."""
        replies: list[GenerateReply] = []
        for index, ids in enumerate(prompts):
            self._policy.submit(
                GenerateRequest(str(index), ids, NEW_TOKENS, (1, 0, index, 0)), replies.append
            )
        while self._policy.busy:
            self._policy.step()
        if any(len(reply.ids) != NEW_TOKENS for reply in replies):
            raise RecipeError(
                "a prompt ended early, so that the sides did not do the same work",
                found="a stop token, which a fresh model samples once in 200,000 tokens",
            )


@torch.inference_mode()
def transformers_generate(model: InklingForCausalLM, prompts: list[list[int]]) -> None:
    """One left-padded batch. Raises RecipeError when it ends early."""
    longest = max(map(len, prompts))
    generated = model.generate(
        input_ids=torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    if generated.shape[1] != longest + NEW_TOKENS:
        raise RecipeError("transformers stopped early, so that the sides did not do the same work")


def _prompts(count: int, index: int) -> list[list[int]]:
    """Prompts that no other round has, since the policy knows those that it has seen."""
    draw = np.random.default_rng((count, index))
    return [
        draw.integers(0, FIRST_UNDECODABLE_ID, draw.integers(*PROMPT_TOKENS)).tolist() for _ in range(count)
    ]
