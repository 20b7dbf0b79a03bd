"""The actor whose process the plugins live in."""

from __future__ import annotations

import os

from miles.rollout.inference_rollout.inference_rollout_common import Given, read_rows
from miles.utils.misc import load_rollout_function


class RolloutManager:
    def __init__(self, args):
        self.args = args
        given = Given(args=args, data_source=read_rows(args))
        self.function = load_rollout_function(given, args.rollout_function_path)

    async def generate(self):
        """What the rollout gave, and where in this process the plugins come from."""
        import recipe.plugins

        output = await self.function(Given(rollout_id=0))
        return {
            "file": recipe.plugins.__file__,
            "environment": dict(os.environ),
            "rewards": [[sample.reward for sample in group] for group in output.samples],
            "metrics": output.metrics,
        }
