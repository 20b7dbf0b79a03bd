"""Prints by how many bytes the trainer or the policy of the local engine grows at most, on trials as smoke has them."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import numpy as np
import transformers.models.inkling.modeling_inkling  # noqa: F401 - a library's memory is no part of the growth

from recipe.engines.local import checkpoint
from recipe.engines.local.actors import PolicyActor, TrainerActor
from recipe.engines.local.model import build_model, tiny_config
from recipe.engines.local.trainer import TrainingSample
from recipe.engines.local.types import GenerateRequest

PROMPT, SAMPLED, OBSERVED, TURNS = 150, 16, 15, 4
GENERATOR = np.random.default_rng(0)


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def sample(index: int) -> TrainingSample:
    turns = 1 + index % TURNS
    length, trained = PROMPT + turns * (SAMPLED + OBSERVED), turns * SAMPLED
    return TrainingSample(
        group=index // 8,
        ids=GENERATOR.integers(0, 190_000, length).tolist(),
        loss_mask=[0] * (length - trained) + [1] * trained,
        logprobs=[0.0] * (length - trained) + [-12.2] * trained,
        routes=GENERATOR.integers(0, 8, (length - 1, 2, 2)).astype(np.int8),
        reward=float(index % 2),
    )


def train(folder: Path) -> None:
    trainer = TrainerActor(1e-3, str(folder / "events.jsonl"))
    trainer.load(str(folder / "weights"))
    for _ in range(2):  # Adam's state is there from the second step on
        trainer.step([sample(index) for index in range(24)])


async def serve(weights: dict[str, np.ndarray]) -> None:
    policy = PolicyActor(32, 2048, None)
    await policy.load_weights(weights)

    async def trial(index: int) -> None:
        ids = GENERATOR.integers(0, 190_000, PROMPT).tolist()
        for turn in range(TURNS):
            reply = await policy.generate(GenerateRequest(str(index), ids, SAMPLED, (0, index, turn)))
            ids = ids + reply.ids + [5] * OBSERVED

    await asyncio.gather(*map(trial, range(32)))


def main(process: str, folder: Path) -> None:
    weights = {name: value.detach().numpy() for name, value in build_model(tiny_config()).named_parameters()}
    checkpoint.write_weights(folder / "weights", weights)
    if process == "trainer":
        del weights
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    if process == "trainer":
        # Ray's actors don't work in the main thread either.
        thread = threading.Thread(target=train, args=(folder,))
        thread.start()
        thread.join()
    else:
        asyncio.run(serve(weights))
    print(status("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
