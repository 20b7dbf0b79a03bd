"""Miles' rollout with a deadline, with our metrics, and with no trial left running when it fails.

Only Miles imports this module. Its loop replaces dropped groups without end, and waits without end for trials
that it has aborted. The loop also drops a group whose own code raised, before any filter sees it: there the
deadline is the only bound.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain
from typing import Any

from miles.rollout.inference_rollout.inference_rollout_common import (  # type: ignore[import-not-found]
    InferenceRolloutFn,
)

from recipe.plugins import agent, journal
from recipe.plugins.audit import audit
from recipe.plugins.environment import required
from recipe.plugins.metrics import agent_metrics

logger = logging.getLogger(__name__)


class RolloutTimeoutError(Exception):
    """A rollout took longer than ROLLOUT_TIMEOUT_SEC."""


class RolloutFn(InferenceRolloutFn):  # type: ignore[misc]
    """What --rollout-function-path names: one rollout a call, as Miles' own class."""

    def __init__(self, input: Any) -> None:  # noqa: A002 - Miles' name
        self._seconds = required("ROLLOUT_TIMEOUT_SEC", float)
        super().__init__(input)

    async def _call_train(self, input: Any) -> Any:  # noqa: A002 - Miles' name
        """Miles' output with agent/* in its metrics. Raises RolloutTimeoutError, and what the filter raises."""
        journal.set_rollout(input.rollout_id)
        journal.write("phase", phase="generate")
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                output = await super()._call_train(input)
        except Exception as failure:
            errors = agent.last_errors()
            await self._end_trials()
            if not deadline.expired():
                raise
            raise RolloutTimeoutError(
                f"rollout {input.rollout_id} took longer than {self._seconds:g} s (ROLLOUT_TIMEOUT_SEC); {errors}"
            ) from failure
        samples = list(chain.from_iterable(output.samples))
        output.metrics = (output.metrics or {}) | agent_metrics(samples) | audit(samples)
        journal.write("phase", phase="train")
        return output

    async def _end_trials(self) -> None:
        # Samples that wait for their turn end without an agent.
        self.state.aborted = True
        try:
            await agent.abort(self.state.args)
        except Exception:
            logger.exception("the trials of a failed rollout could not be cancelled")
