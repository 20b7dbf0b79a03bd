"""How many parameters Inkling-Small's text model has, and how many of them a mesh puts on one GPU.

Sizes: its published config.json. Towers and multi-token prediction are neither served nor trained, nor counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recipe.errors import BadInputError

LAYERS, DENSE_LAYERS = 42, 2  # the first ones are dense
HIDDEN, DENSE_WIDTH, EXPERT_WIDTH = 4096, 16384, 2048
EXPERTS, EXPERTS_PER_TOKEN, SHARED_EXPERTS = 256, 6, 2
HEADS, GROUPS, HEAD_WIDTH, KERNEL = 32, 8, 128, 4
# Width of a head's position state, and how far the profiles reach: every sixth layer attends to all positions.
RELATIVE, EXTENT, WINDOW = 16, 1024, 512
VOCABULARY = 201024

EXPERT = 3 * HIDDEN * EXPERT_WIDTH
EMBEDDING = VOCABULARY * HIDDEN  # the output head has as many


def layer(number: int) -> tuple[int, int, int]:
    """Parameters of one layer: routed experts, what tensor parallelism splits, what every rank holds."""
    key_value = GROUPS * HEAD_WIDTH
    split = HIDDEN * (HEADS * (2 * HEAD_WIDTH + RELATIVE) + 2 * key_value) + 2 * key_value * KERNEL
    extent = EXTENT if number % 6 == 5 else WINDOW
    # Norms of q, k and both inputs, position profiles, two convolutions, a scale.
    whole = 2 * HEAD_WIDTH + 2 * HIDDEN + RELATIVE * extent + 2 * HIDDEN * KERNEL + 1
    if number < DENSE_LAYERS:
        return 0, split + 3 * HIDDEN * DENSE_WIDTH, whole
    return EXPERTS * EXPERT, split + SHARED_EXPERTS * EXPERT, whole + (EXPERTS + SHARED_EXPERTS) * HIDDEN


TOTAL = sum(sum(layer(number)) for number in range(LAYERS)) + 2 * EMBEDDING + 2 * HIDDEN  # two more norms
ACTIVE = TOTAL - (LAYERS - DENSE_LAYERS) * (EXPERTS - EXPERTS_PER_TOKEN) * EXPERT  # what one token meets


@dataclass(frozen=True)
class Mesh:
    """Ranks of tensor and of expert parallelism, and the layers of each stage of the pipeline."""

    tensor: int
    expert: int
    stages: Sequence[int]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Mesh:
        """From the flags of train.py. Raises BadInputError when the stages can't share the layers evenly."""
        pipeline = int(values["--pipeline-model-parallel-size"])
        last = [int(values[name]) for name in ("--decoder-last-pipeline-num-layers",) if name in values]
        others = pipeline - len(last)
        each, rest = divmod(LAYERS - sum(last), max(1, others))
        if rest or each < 1:
            raise BadInputError(f"{LAYERS} layers can't be shared by {pipeline} stages", where="NUM_NODES")
        sizes = ("--tensor-model-parallel-size", "--expert-model-parallel-size")
        tensor, expert = (int(values[name]) for name in sizes)
        return cls(tensor, expert, [each] * others + last)

    @property
    def largest(self) -> int:
        """The stage with the most parameters."""
        return max(range(len(self.stages)), key=self.parameters)

    def parameters(self, stage: int) -> float:
        """Those on one GPU of a stage. The vocabulary's padding (0.4 % of two matrices) is left out."""
        first = sum(self.stages[:stage])
        layers = [layer(number) for number in range(first, first + self.stages[stage])]
        experts, split, whole = (sum(of[kind] for of in layers) for kind in range(3))
        split += EMBEDDING * ((stage == 0) + (stage == len(self.stages) - 1))
        return experts / self.expert + split / self.tensor + whole
