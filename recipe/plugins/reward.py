"""A sample's reward: the verifier's, as the agent function left it in the metadata."""

from __future__ import annotations

import math
from typing import Any, overload


@overload
async def rm(args: Any, sample: list[Any], **kwargs: Any) -> list[float]: ...
@overload
async def rm(args: Any, sample: Any, **kwargs: Any) -> float: ...
async def rm(args: Any, sample: Any, **kwargs: Any) -> float | list[float]:  # noqa: ARG001 - Miles' signature
    """The reward of a sample, or those of a list of samples.

    A trial without one gives 0.0, because None would end Miles' job; the group filter drops its group.
    """
    return [_reward(one) for one in sample] if isinstance(sample, list) else _reward(sample)


def _reward(sample: Any) -> float:
    value = verifier_reward(sample)
    return 0.0 if value is None else value


def verifier_reward(sample: Any) -> float | None:
    """The finite number in metadata["reward"], or None."""
    value = (sample.metadata or {}).get("reward")
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None
