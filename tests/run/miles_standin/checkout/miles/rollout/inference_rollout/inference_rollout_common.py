"""One rollout: every group's trials by the agent function, then reward, filter and abort hook."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Given

from miles.utils.misc import call_agent_abort_hook, load_function


def read_rows(args):
    return [json.loads(line) for line in Path(args.prompt_data).read_text().splitlines()]


class InferenceRolloutFn:
    def __init__(self, given):
        self.state = Given(args=given.args, aborted=False)
        self.rows = given.data_source

    async def __call__(self, given):
        return await self._call_train(given)

    async def _call_train(self, input):  # noqa: A002 - Miles' name
        args = self.state.args
        args.session_server_instance_ids = {30000: "instance-0"}
        groups = [await self.group(args, place, row) for place, row in enumerate(self.rows)]
        await call_agent_abort_hook(args)
        return Given(samples=[group for group in groups if group], metrics={"perf/rollout_time": 1.0})

    async def group(self, args, place, row):
        size = args.n_samples_per_prompt
        samples = [await self.sample(args, place * size + number, row) for number in range(size)]
        keep = load_function(args.dynamic_sampling_filter_path)
        return samples if keep(args, samples).keep else None

    async def sample(self, args, index, row):
        state = self.state
        if state.aborted:
            return None
        sample = Given(metadata=row[args.metadata_key], prompt=row[args.input_key], status="completed")
        # Two turns, with what the sandbox answered between them.
        sample.index, sample.tokens, sample.loss_mask = index, [1, 2, 3, 4, 5], [1, 1, 0, 1]
        agent = load_function(args.custom_agent_function_path)
        told = await agent(
            base_url=f"http://127.0.0.1:30000/sessions/{index}",
            prompt=sample.prompt,
            request_kwargs={"temperature": 1.0, "max_tokens": args.rollout_max_response_len},
            metadata={**sample.metadata, "session_server_id": "127.0.0.1:30000"},
        )
        sample.metadata = {**sample.metadata, **told}
        reward = load_function(args.custom_rm_path)
        sample.reward = await reward(args, sample)
        return sample
