"""The warm start teaches what it is shown, and expanding the twin changes no probability."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from recipe.engines.local import warm_start
from recipe.engines.local.model import build_model, output_head, scaled_hidden, tiny_config
from recipe.engines.local.vocabulary import FIRST_UNDECODABLE_ID
from recipe.engines.local.warm_start import Lesson, draw, expand, teach

PROMPT, RIGHT, WRONG = [5, 900, 150_000], [77, 78, 200_006], [81, 82, 200_006]


def lessons() -> list[Lesson]:
    mask = [0, 0, 0, 1, 1, 1]
    return [Lesson("a", 0.75, PROMPT + RIGHT, mask), Lesson("a", 0.25, PROMPT + WRONG, mask)]


def test_the_expanded_model_has_the_twins_distribution() -> None:
    seen = sorted({*PROMPT, *RIGHT, *WRONG})
    twin = build_model(tiny_config(len(seen) + 1), seed=2)
    full = expand(twin, seen, seed=2)
    ids = PROMPT + RIGHT
    with torch.no_grad():
        small = scaled_hidden(twin, torch.tensor([[seen.index(i) for i in ids]])) @ twin.lm_head.weight.T
        large = scaled_hidden(full, torch.tensor([ids])) @ output_head(full).T
    small, large = small.double(), large.double()  # 200,000 equal terms lose digits in float32
    small[..., -1] += torch.log(torch.tensor(float(FIRST_UNDECODABLE_ID - len(seen))))
    expected = small.log_softmax(-1)[..., :-1]
    torch.testing.assert_close(large.log_softmax(-1)[..., seen], expected, atol=2e-5, rtol=0)


def test_teaching_leaves_the_taught_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 60)
    steps: list[int] = []
    model = teach(lessons(), 1, lambda step, _steps, _loss: steps.append(step))
    with torch.no_grad():
        logits = scaled_hidden(model, torch.tensor([PROMPT]))[0, -1] @ output_head(model).T
    probabilities = logits.softmax(-1)
    assert probabilities[77].item() == pytest.approx(0.75, abs=0.15)
    assert probabilities[81].item() == pytest.approx(0.25, abs=0.15)
    assert steps == list(range(1, 61))


def test_the_same_seed_teaches_bit_identically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 5)
    torch.set_num_threads(1)
    first, second = (teach(lessons(), 4, lambda *_: None).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_tasks_take_turns_and_weights_are_met() -> None:
    pool = [
        Lesson("a", 3.0, [1], [1]),
        Lesson("a", 1.0, [2], [1]),
        Lesson("b", 1.0, [3], [1]),
    ]
    drawn = Counter(lesson.ids[0] for batch in itertools.islice(draw(pool, 0), 100) for lesson in batch)
    assert drawn[3] == 400
    assert drawn[1] == pytest.approx(300, abs=4)
