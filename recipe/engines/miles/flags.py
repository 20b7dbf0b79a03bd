"""Every flag of train.py, in order, with where its value comes from.

The numbers are those of the reference recipe (camel-ai/seta at 62ba0a9); each other one has its reason beside
it. The model's own flags are not here: they come from Miles' scripts/models/inkling-small.sh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe.algorithm import GRPO
from recipe.engines.miles.extra_args import extra_flags
from recipe.errors import BadInputError
from recipe.job import logs_to_wandb, save_and_stop
from recipe.settings import Settings

FIXED = "recipe"
# Stages of the pipeline take 42 layers in equal parts; with 8 stages, seven take 5 and the last one 7.
LAST_STAGE_LAYERS = {8: 7}


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
    ours = [flag for group in GROUPS for flag in group(settings, run_dir)]
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


def _fixed(text: str) -> Iterator[Flag]:
    """Flags as one would type them: `--name value --switch`."""
    for part in f" {text}".split(" --")[1:]:
        name, *values = part.split()
        yield Flag(f"--{name}", tuple(values), FIXED)


def _set(settings: Settings, name: str, setting: str, *values: object) -> Flag:
    """A flag that a setting decides: its value, unless `values` say what is made of it."""
    chosen = values or (getattr(settings, setting),)
    return Flag(name, tuple(map(str, chosen)), f"{setting.upper()} ({settings.source(setting)})")


def _checkpoint(s: Settings, run_dir: Path) -> Iterator[Flag]:
    yield _set(s, "--hf-checkpoint", "model_dir")
    yield _set(s, "--load", "load_dir")
    yield _set(s, "--ref-load", "torch_dist_dir")
    yield from _fixed(
        "--model-name inkling --megatron-to-hf-mode raw --no-load-optim --no-load-rng --finetune"
    )
    # Else Miles takes the first rollout as done: NUM_ROLLOUT=100 would train 99 and save the last one twice.
    yield from _fixed("--start-rollout-id 0")
    yield _set(s, "--save", "run_name", run_dir / "checkpoints")
    yield _set(s, "--save-interval", "save_interval")
    yield from _fixed("--no-save-optim")
    # An alarm that stops the run has Miles save first.
    yield Flag(
        "--save-trigger-sentinel", (str(save_and_stop(run_dir)),), f"RUN_NAME ({s.source('run_name')})"
    )


def _rollout(s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield _set(s, "--prompt-data", "prompt_data")
    yield from _fixed("--input-key prompt --metadata-key metadata --rollout-shuffle")
    yield _set(s, "--rollout-seed", "seed")
    yield _set(s, "--num-rollout", "num_rollout")
    yield _set(s, "--rollout-batch-size", "rollout_batch_size")
    yield _set(s, "--n-samples-per-prompt", "n_samples_per_prompt")
    yield _set(s, "--over-sampling-batch-size", "over_sampling_batch_size")
    yield _set(s, "--rollout-max-response-len", "max_response_len")
    yield from _fixed("--rollout-temperature 1")
    yield _set(s, "--global-batch-size", "global_batch_size")
    yield from _fixed("--balance-data")
    yield _set(s, "--max-seq-len", "max_seq_len")
    yield from _fixed("--tito-model inkling --use-session-server")
    first = s.session_server_port
    yield _set(s, "--session-server-port", "session_server_port", first, first + s.session_servers)
    # The launcher, the agent server and the sandboxes know the session servers at the head node's address.
    yield from _fixed("--pin-rollout-manager-to-head")


def _plugins(_s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield from _fixed(
        "--custom-generate-function-path miles.rollout.generate_hub.agentic_tool_call.generate"
        " --custom-agent-function-path recipe.plugins.agent.run"
        " --custom-rm-path recipe.plugins.reward.rm"
        " --rollout-function-path recipe.plugins.rollout.RolloutFn"
        # Miles' own check_no_aborted lets trials through whose infrastructure failed, and never gives up.
        " --dynamic-sampling-filter-path recipe.plugins.filters.keep_group"
    )


def _grpo(_s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield from _fixed(
        "--advantage-estimator grpo --entropy-coef 0.0"
        f" --eps-clip {GRPO.clip_low} --eps-clip-high {GRPO.clip_high} --eps-clip-c {GRPO.clip_dual}"
        " --use-tis --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl"
        " --observe-training-entropy --use-rollout-routing-replay"
    )


def _optimizer(s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield from _fixed("--optimizer adam")
    yield _set(s, "--lr", "lr")
    yield from _fixed(
        f"--lr-decay-style constant --weight-decay {GRPO.weight_decay}"
        f" --adam-beta1 {GRPO.adam_beta1} --adam-beta2 {GRPO.adam_beta2}"
        " --use-distributed-optimizer --accumulate-allreduce-grads-in-fp32 --no-check-for-nan-in-loss-and-grad"
        # Without these four, creating Adam's state runs out of GPU memory.
        " --offload-train-target cpu --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d"
        " --use-precision-aware-optimizer"
    )


def _mesh(s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield from _fixed("--tensor-model-parallel-size 8 --sequence-parallel")
    yield _set(s, "--pipeline-model-parallel-size", "num_nodes")
    if s.num_nodes in LAST_STAGE_LAYERS:
        yield _set(s, "--decoder-last-pipeline-num-layers", "num_nodes", LAST_STAGE_LAYERS[s.num_nodes])
    yield from _fixed(
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1"
        " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --micro-batch-size 1"
    )


def _serving(s: Settings, _run_dir: Path) -> Iterator[Flag]:
    yield from _fixed(
        # Engines of 4 GPUs leave no room for the update of the weights.
        "--rollout-num-gpus-per-engine 8 --sglang-ep-size 1"
        " --sglang-mem-fraction-static 0.75 --sglang-max-running-requests 256"
        # 160 trials of many turns fit without retracting any.
        " --sglang-max-total-tokens 1048576"
        " --sglang-router-policy manual --router-assignment-mode min_load"
        " --sglang-enable-fp32-lm-head --sglang-attention-backend fa4 --sglang-moe-runner-backend triton"
        " --sglang-mamba-scheduler-strategy extra_buffer --sglang-disable-custom-all-reduce"
    )
    # For CAMEL the session server parses Inkling's completions itself.
    if s.agent == "terminus-2":
        yield _set(s, "--sglang-tool-call-parser", "agent", "inkling")
        yield _set(s, "--sglang-reasoning-parser", "agent", "inkling")


def _rest(s: Settings, run_dir: Path) -> Iterator[Flag]:
    yield from _fixed(
        "--transformer-impl transformer_engine --bf16 --attention-dropout 0.0 --hidden-dropout 0.0"
        " --attention-softmax-in-fp32 --no-bias-dropout-fusion --distributed-timeout-minutes 30"
    )
    yield _set(s, "--actor-num-nodes", "num_nodes")
    yield _set(s, "--actor-num-gpus-per-node", "gpus_per_node")
    yield _set(s, "--num-gpus-per-node", "gpus_per_node")
    yield from _fixed("--colocate")
    if s.dump_details:  # which Miles' dashboard reads
        yield Flag("--use-miles-dashboard", (), f"DUMP_DETAILS ({s.source('dump_details')})")
        yield _set(s, "--dump-details", "dump_details", run_dir / "dump_details")


def _tracking(s: Settings, run_dir: Path) -> Iterator[Flag]:
    if s.tensorboard:  # into the folder that TENSORBOARD_DIR names
        yield Flag("--use-tensorboard", (), f"TENSORBOARD ({s.source('tensorboard')})")
    if not logs_to_wandb(s):
        return
    switch = "wandb_mode" if s.wandb_mode == "offline" else "wandb_api_key"
    yield Flag("--use-wandb", (), f"{switch.upper()} ({s.source(switch)})")
    yield _set(s, "--wandb-mode", "wandb_mode")
    yield _set(s, "--wandb-project", "wandb_project")
    yield _set(s, "--wandb-group", "run_name")
    yield from _fixed("--disable-wandb-random-suffix")
    yield _set(s, "--wandb-dir", "run_name", run_dir)  # W&B makes a folder wandb in it
    if s.wandb_entity:
        yield _set(s, "--wandb-team", "wandb_entity")


GROUPS: tuple[Callable[[Settings, Path], Iterator[Flag]], ...] = (
    _checkpoint,
    _rollout,
    _plugins,
    _grpo,
    _optimizer,
    _mesh,
    _serving,
    _rest,
    _tracking,
)
