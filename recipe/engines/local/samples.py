"""Samples and where they come from: the fields that Miles' Sample has and that plugins may read.

Order of the prompts: shuffled anew each epoch by (seed + epoch), as Miles' data source does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from recipe.engines.local.types import Trajectory
from recipe.tasks.prompts import Row


class Status(StrEnum):
    """How a sample's trajectory ended."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    """One trial of one prompt, from its row to its training form; lists have one entry per token."""

    group_index: int
    index: int
    prompt: list[dict[str, Any]]
    label: str
    metadata: dict[str, Any]
    status: Status = Status.PENDING
    reward: float | None = None
    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    rollout_log_probs: list[float] = field(default_factory=list)
    rollout_routed_experts: np.ndarray | None = None
    turns: int = 0
    parse_errors: list[str] = field(default_factory=list)

    def take(self, trajectory: Trajectory | None) -> None:
        """Fills in what the session recorded; without a single model call the sample is aborted."""
        if trajectory is None:
            self.status = Status.ABORTED
            return
        self.status = Status(trajectory.status)
        self.tokens = trajectory.ids
        self.loss_mask = trajectory.loss_mask
        self.rollout_log_probs = trajectory.logprobs
        self.rollout_routed_experts = trajectory.routes
        self.turns = trajectory.turns
        self.parse_errors = trajectory.parse_errors
        self.metadata["tito_session_mismatch"] = trajectory.mismatches


class PromptSource:
    """An endless sequence of groups over the prompt rows; group and sample indices never repeat."""

    def __init__(self, rows: Sequence[Row], samples_per_prompt: int, seed: int) -> None:
        self._rows = rows
        self._samples_per_prompt = samples_per_prompt
        self._seed = seed
        self._epoch = 0
        self._order: list[int] = []
        self._groups = 0

    def draw(self, groups: int) -> list[list[Sample]]:
        """The next `groups` groups."""
        return [self._group() for _ in range(groups)]

    def _group(self) -> list[Sample]:
        if not self._order:
            self._order = list(range(len(self._rows)))
            random.Random(self._seed + self._epoch).shuffle(self._order)  # noqa: S311 - no secret is drawn
            self._epoch += 1
        row = self._rows[self._order.pop()]
        group = self._groups
        self._groups += 1
        return [
            Sample(
                group_index=group,
                index=group * self._samples_per_prompt + member,
                prompt=row.prompt,
                label=row.label,
                metadata=dict(row.metadata),
            )
            for member in range(self._samples_per_prompt)
        ]
