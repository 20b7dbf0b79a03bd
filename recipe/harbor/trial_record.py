"""What a trial of our agents leaves behind, kept up to date while it runs, so that a cancelled trial keeps it too.

Metrics go into the trial's result (`AgentContext.metadata`), the conversation into `trajectory.jsonl`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harbor.models.agent.context import AgentContext

# How a trial ended (the part of "end" before a colon) -> the agent server's exit status. A malformed turn and a
# terminal that was closed are the policy's own doing: the trial counts as handed in, and its reward stands.
EXIT_STATUS = {
    "done": "Submitted",
    "malformed": "Submitted",
    "terminal_closed": "Submitted",
    "length": "SequenceLengthLimitExceeded",
    "context": "SequenceLengthLimitExceeded",
    "max_iterations": "TurnLimitExceeded",
}


class TrialRecord:
    """Metrics: turns and tool_calls (counts), model_query_time_sum and env_execution_time_sum (seconds); once
    the agent has ended by itself, also end and exit_status."""

    def __init__(self, context: AgentContext, trajectory: Path) -> None:
        self.context = context
        self.metrics: dict[str, Any] = {
            "turns": 0,
            "tool_calls": 0,
            "model_query_time_sum": 0.0,
            "env_execution_time_sum": 0.0,
        }
        context.metadata = self.metrics
        trajectory.parent.mkdir(parents=True, exist_ok=True)
        self._trajectory = trajectory.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.write(
                metrics=self.metrics, error=None if error is None else f"{type(error).__name__}: {error}"
            )
        finally:
            self._trajectory.close()
        if kind is asyncio.CancelledError:
            # Harbor writes a cancelled trial's trace twice; the deep one of a model call took half of a flush's time.
            raise asyncio.CancelledError from None

    @property
    def ended(self) -> bool:
        return "end" in self.metrics

    def end(self, how: str) -> None:
        """Notes that the agent ended by itself; `how` is a key of EXIT_STATUS, or `malformed:<kind>`."""
        self.metrics["end"] = how
        self.metrics["exit_status"] = EXIT_STATUS[how.split(":", 1)[0]]

    def add_usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.context.n_input_tokens = (self.context.n_input_tokens or 0) + prompt_tokens
        self.context.n_output_tokens = (self.context.n_output_tokens or 0) + completion_tokens

    def write(self, **line: object) -> None:
        """One line of the trajectory, on disk when this returns."""
        # Escaped to ASCII: what a model writes may hold lone surrogates, which UTF-8 cannot.
        self._trajectory.write(json.dumps({"time": time.time(), **line}) + "\n")
        self._trajectory.flush()

    @contextmanager
    def timed(self, metric: str) -> Iterator[None]:
        """Adds the seconds spent inside to `metric`, however the block is left."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.metrics[metric] += time.perf_counter() - start
