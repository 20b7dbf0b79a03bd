"""Every flag of train.py, in order, with where its value comes from.

The numbers are those of the reference recipe (camel-ai/seta at 62ba0a9); each other one has its reason beside
it. The model's own flags are not here: they come from Miles' scripts/models/inkling-small.sh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe.algorithm import GRPO
from recipe.engines.miles.extra_args import extra_flags
from recipe.errors import BadInputError
from recipe.job import logs_to_wandb, save_and_stop
from recipe.settings import Settings

FIXED = "recipe"
# As one would type them. {name} is a setting's value, which so decides the flag; none is given for a setting that is
# not set. What stands after `name=value:` is given when that setting has that value.
FLAGS = """
--hf-checkpoint {model_dir} --load {load_dir} --ref-load {torch_dist_dir}
--model-name inkling --megatron-to-hf-mode raw --no-load-optim --no-load-rng --finetune
# Else Miles takes the first rollout as done: NUM_ROLLOUT=100 would train 99 and save the last one twice.
--start-rollout-id 0
--save {run_dir}/checkpoints --save-interval {save_interval} --no-save-optim
# An alarm that stops the run has Miles save first.
--save-trigger-sentinel {save_and_stop}

--prompt-data {prompt_data} --input-key prompt --metadata-key metadata --rollout-shuffle --rollout-seed {seed}
--num-rollout {num_rollout} --rollout-batch-size {rollout_batch_size}
--n-samples-per-prompt {n_samples_per_prompt} --over-sampling-batch-size {over_sampling_batch_size}
--rollout-max-response-len {max_response_len} --rollout-temperature 1
--global-batch-size {global_batch_size} --balance-data --max-seq-len {max_seq_len}
--tito-model inkling --use-session-server --session-server-port {session_server_port} {session_server_end}
# The launcher, the agent server and the sandboxes know the session servers at the head node's address.
--pin-rollout-manager-to-head

--custom-generate-function-path miles.rollout.generate_hub.agentic_tool_call.generate
--custom-agent-function-path recipe.plugins.agent.run
--custom-rm-path recipe.plugins.reward.rm
--rollout-function-path recipe.plugins.rollout.RolloutFn
# Miles' own check_no_aborted lets trials through whose infrastructure failed, and never gives up.
--dynamic-sampling-filter-path recipe.plugins.filters.keep_group

--advantage-estimator grpo --entropy-coef 0.0
--eps-clip {grpo.clip_low} --eps-clip-high {grpo.clip_high} --eps-clip-c {grpo.clip_dual}
--use-tis --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl
--observe-training-entropy --use-rollout-routing-replay

--optimizer adam --lr {lr} --lr-decay-style constant --weight-decay {grpo.weight_decay}
--adam-beta1 {grpo.adam_beta1} --adam-beta2 {grpo.adam_beta2}
--use-distributed-optimizer --accumulate-allreduce-grads-in-fp32 --no-check-for-nan-in-loss-and-grad
# Without these four, creating Adam's state runs out of GPU memory.
--offload-train-target cpu --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer

--tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size {num_nodes}
# Stages of the pipeline take 42 layers in equal parts; with 8 stages, seven take 5 and the last one 7.
num_nodes=8: --decoder-last-pipeline-num-layers 7
--expert-model-parallel-size 8 --expert-tensor-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --micro-batch-size 1

# Engines of 4 GPUs leave no room for the update of the weights.
--rollout-num-gpus-per-engine 8 --sglang-ep-size 1
--sglang-mem-fraction-static 0.75 --sglang-max-running-requests 256
# 160 trials of many turns fit without retracting any.
--sglang-max-total-tokens 1048576
--sglang-router-policy manual --router-assignment-mode min_load
--sglang-enable-fp32-lm-head --sglang-attention-backend fa4 --sglang-moe-runner-backend triton
--sglang-mamba-scheduler-strategy extra_buffer --sglang-disable-custom-all-reduce
# For CAMEL the session server parses Inkling's completions itself.
agent=terminus-2: --sglang-tool-call-parser inkling --sglang-reasoning-parser inkling

--transformer-impl transformer_engine --bf16 --attention-dropout 0.0 --hidden-dropout 0.0
--attention-softmax-in-fp32 --no-bias-dropout-fusion --distributed-timeout-minutes 30
--actor-num-nodes {num_nodes} --actor-num-gpus-per-node {gpus_per_node} --num-gpus-per-node {gpus_per_node}
--colocate
# Miles' dashboard reads the dumped details.
dump_details=True: --use-miles-dashboard --dump-details {run_dir}/dump_details
# Into the folder that TENSORBOARD_DIR names.
tensorboard=True: --use-tensorboard
"""
# W&B makes a folder wandb in the run's.
WANDB = """
--wandb-mode {wandb_mode} --wandb-project {wandb_project} --wandb-group {run_name} --disable-wandb-random-suffix
--wandb-dir {run_dir} --wandb-team {wandb_entity}
"""

# What decides the line, if anything does beside what is filled in, and its value; then the flags.
LINE = re.compile(r"^(?:(\w+)(?:=(\S+))?: )?(--.*)$", re.MULTILINE)
DERIVED = {"run_dir": "run_name", "save_and_stop": "run_name"}


@dataclass(frozen=True)
class Flag:
    """One flag with its values (none for a switch), and the setting or place that it comes from."""

    name: str
    values: tuple[str, ...]
    source: str

    @property
    def words(self) -> tuple[str, ...]:
        """As it stands on the command line."""
        return (self.name, *self.values)


def flags(settings: Settings, run_dir: Path) -> list[Flag]:
    """The resolved flags; those of EXTRA_ARGS replace ours of the same name. Raises BadInputError for EXTRA_ARGS."""
    ours = list(_ours(settings, run_dir))
    given = extra_flags(settings.extra_args, {flag.name: flag.source for flag in ours})
    source = f"EXTRA_ARGS ({settings.source('extra_args')})"
    extra = [Flag(name, values, source) for name, values in given]
    replaced = {flag.name for flag in extra}
    resolved = [flag for flag in ours if flag.name not in replaced] + extra
    names = {flag.name for flag in resolved}
    if "--use-miles-dashboard" in names and "--dump-details" not in names:
        raise BadInputError(
            "Miles' dashboard reads the dumped details",
            expected="DUMP_DETAILS=1, or no dashboard",
            where=source,
        )
    return resolved


def _ours(settings: Settings, run_dir: Path) -> Iterator[Flag]:
    first, table = settings.session_server_port, FLAGS
    values = vars(settings) | {"run_dir": run_dir, "save_and_stop": save_and_stop(run_dir), "grpo": GRPO}
    values["session_server_end"] = first + settings.session_servers
    if logs_to_wandb(settings):
        switch = "wandb_mode" if settings.wandb_mode == "offline" else "wandb_api_key"
        table += f"{switch}: --use-wandb\n{WANDB}"
    for setting, value, text in LINE.findall(table):
        for part in f" {text}".split(" --")[1:]:
            name, *words = part.split()
            used = [DERIVED.get(one, one) for one in re.findall(r"\{(\w+)\}", part)]
            decides = setting or next(iter(used), "")
            source = f"{decides.upper()} ({settings.source(decides)})" if decides else FIXED
            if value in ("", str(values.get(setting))) and None not in map(values.get, used):
                yield Flag(f"--{name}", tuple(word.format_map(values) for word in words), source)
