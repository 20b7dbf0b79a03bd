"""The warm start: teaches a fresh tiny Inkling the agent's protocol on scripted right and wrong trajectories.

The model that is trained is a twin whose vocabulary is the ids that occur in the lessons and one row that stands
for all others, its logit raised by log(number of others). Expanding it to the real vocabulary copies that row's
head vector to every other id: the same distribution, but the head costs nothing while teaching.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import InklingForCausalLM

from recipe.algorithm import GRPO
from recipe.engines.local.model import build_model, scaled_hidden, tiny_config
from recipe.engines.local.trainer import adam
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID

STEPS = 160
BATCH = 8
# Ten times what GRPO uses, measured: with the head's scale it leaves under 2 % malformed turns.
LEARNING_RATE = 2e-2
WARM_UP_STEPS = 10
# The last steps keep this share of the learning rate.
FINAL_SHARE = 0.05
# The golden ratio's fraction spreads draws over the behaviours' weights evenly.
GOLDEN = 0.6180339887
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Lesson:
    """One scripted trajectory of `task`: ids, the mask of those the model says, and its share of the task's."""

    task: str
    weight: float
    ids: list[int]
    loss_mask: list[int]


def teach(
    lessons: Sequence[Lesson], seed: int, progress: Callable[[int, int, float], None]
) -> InklingForCausalLM:
    """A full-vocabulary model that has learned `lessons`; `progress` gets (step, steps, loss per token)."""
    seen = sorted({token for lesson in lessons for token in lesson.ids})
    position = {token: index for index, token in enumerate(seen)}
    twin = build_model(tiny_config(len(seen) + 1), seed).train()
    others = math.log(FIRST_UNDECODABLE_ID - len(seen))
    optimizer = adam(twin, LEARNING_RATE, weight_decay=0.0)
    for step, batch in zip(range(STEPS), draw(lessons, seed), strict=False):
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * max(FINAL_SHARE, 1 - step / STEPS)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(twin, [[position[token] for token in lesson.ids] for lesson in batch], batch, others)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), GRPO.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        progress(step + 1, STEPS, loss.item())
    return expand(twin, seen, seed)


def draw(lessons: Sequence[Lesson], seed: int) -> Iterator[list[Lesson]]:
    """Endless batches: tasks in turn, each task's lessons in proportion to their weights."""
    by_task: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        by_task.setdefault(lesson.task, []).append(lesson)
    generator = torch.Generator().manual_seed(seed)
    phases = {task: torch.rand((), generator=generator).item() for task in by_task}
    tasks = list(by_task)
    turn = 0
    while True:
        batch = []
        for _ in range(BATCH):
            task = tasks[turn % len(tasks)]
            phases[task] = (phases[task] + GOLDEN) % 1
            batch.append(_pick(by_task[task], phases[task]))
            turn += 1
        yield batch


def _pick(lessons: Sequence[Lesson], share: float) -> Lesson:
    target = share * sum(lesson.weight for lesson in lessons)
    for lesson in lessons:
        target -= lesson.weight
        if target < 0:
            return lesson
    return lessons[-1]


def _loss(twin: InklingForCausalLM, ids: list[list[int]], batch: Sequence[Lesson], others: float) -> Tensor:
    longest = max(map(len, ids))
    hidden = scaled_hidden(twin, torch.tensor([row + [0] * (longest - len(row)) for row in ids]))
    mask = torch.tensor([lesson.loss_mask + [0] * (longest - len(lesson.ids)) for lesson in batch]).bool()
    targets = torch.tensor(
        [token for row, lesson in zip(ids, batch, strict=True) for token in said(row, lesson)]
    )
    logits = F.linear(hidden[:, :-1][mask[:, 1:]], twin.lm_head.weight)
    raised = torch.cat([logits[:, :-1], logits[:, -1:] + others], dim=1)
    return F.cross_entropy(raised, targets)


def said(ids: Sequence[int], lesson: Lesson) -> list[int]:
    """The ids that the model says, in order."""
    return [token for token, trained in zip(ids, lesson.loss_mask, strict=True) if trained]


@torch.no_grad()
def expand(twin: InklingForCausalLM, seen: Sequence[int], seed: int) -> InklingForCausalLM:
    """The full-vocabulary model with the twin's distribution; embeddings of unseen ids stay random."""
    full = build_model(tiny_config(), seed)
    rows = torch.tensor(seen)
    taught = twin.state_dict()
    for name, parameter in full.named_parameters():
        if name == EMBEDDING:
            parameter[rows] = taught[name][:-1]
        elif name == HEAD:
            parameter[:] = taught[name][-1]
            parameter[rows] = taught[name][:-1]
        else:
            parameter.copy_(taught[name])
    return full
