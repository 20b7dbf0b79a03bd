"""What a run will need, reckoned before it starts: memory by phase, disk, KV cache, sandboxes, time.

Nothing here was measured on a GPU. Every figure says by which formula and from which source it comes; what no
source gives is an assumption with a name, which --assume replaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from recipe.doctor import shapes
from recipe.doctor.shapes import Mesh
from recipe.engines.miles.flags import flags
from recipe.errors import BadInputError
from recipe.settings import Settings

GIB = 2**30
HDO = "Megatron's HybridDeviceOptimizer, DP 1"
# By engine: the value, and what it is.
CLUSTER: dict[str, tuple[float, str]] = {
    "gpu_gib": (140.4, "GiB of a GPU (H200), where nodes don't tell"),
    "context_gib": (6, "GiB of a GPU for both processes' contexts, graphs and NCCL"),
    "expert_imbalance": (3, "tokens of the busiest expert rank, in even shares"),
    "logit_copies": (4, "fp32 copies of a sample's logits while its loss is made"),
    "state_copies": (3, "convolution states of a running request (extra_buffer)"),
    "sync_buckets": (4, "buckets of 512 MiB on a GPU while weights are sent"),
    "processes_gib": (80, "GiB of a node for trainers, engine and Ray themselves"),
    "prompt_tokens": (1500, "tokens of a task's first prompt"),
    "turns": (15, "turns of a mean trial"),
    "tokens_per_turn": (500, "tokens sampled in a turn"),
    "observed_per_turn": (500, "tokens of a turn's observation"),
    "engine_tokens_per_second": (1500, "tokens that one engine samples for all its trials"),
    "sandbox_seconds": (60, "s of a trial for sandbox and verifier"),
    "tool_seconds": (5, "s of a turn for its commands"),
    "train_tokens_per_second": (150, "tokens that one trainer takes through a step"),
    "start_seconds": (1200, "s until the first rollout: weights, engines, compiled kernels"),
    "switch_seconds": (180, "s of a rollout for offload, onload and weight sync"),
    "save_seconds": (600, "s of a checkpoint"),
    "trial_mb": (5, "MB of a trial's folder"),
}
# Fitted to smoke runs on two cores; the heaps are what glibc keeps of small freed blocks.
LOCAL = {"libraries_mb": 800, "trainer_heap_mb": 150, "policy_heap_mb": 50, "prompt_tokens": 150, "turns": 2.4,
         "tokens_per_turn": 16, "observed_per_turn": 15, "engine_tokens_per_second": 200, "sandbox_seconds": 1.2,
         "tool_seconds": 0.3, "train_tokens_per_second": 2000, "start_seconds": 45, "switch_seconds": 0.1,
         "save_seconds": 0.1, "trial_mb": 0.013}  # fmt: skip
TINY = 12_952_099  # parameters of the local engine's model

# Which parts are there in which phase. The allocator keeps a step's working memory until the trainer sleeps, and
# Adam's state is on the host from the first step on.
STEP = ("weights", "gradients", "kept activations", "experts' work", "position bias", "logits", "contexts")
NODE = (
    "actor backup",
    "reference backup",
    "master weights",
    "paused trainer",
    "session servers",
    "processes",
)
LATER = (*NODE, "routes", "Adam moments", "offloaded gradients")
PHASES: dict[str, dict[str, tuple[str, ...]]] = {
    "GPU memory": {
        "rollout": ("engine weights", "KV pool", "convolution states", "contexts"),
        "offload": ("contexts",),
        "reference forward": tuple(part for part in STEP if part != "kept activations"),
        "actor forward and backward": STEP,
        "first optimizer step": STEP,
        "second optimizer step": STEP,
        "weight sync": ("engine weights", "sync buckets", "contexts"),
        "save": STEP,
    },
    "host memory": {
        "first rollout": NODE,
        "reference forward": (*NODE, "routes"),
        "first optimizer step": LATER,
        "later rollouts, steps and weight syncs": LATER,
        "save": (*LATER, "save staging"),
    },
}


@dataclass(frozen=True)
class Figure:
    """One number, and how it was made."""

    name: str
    value: float
    unit: str
    formula: str
    source: str


@dataclass
class Plan:
    """Figures by table; `phases` are GiB by place, phase and number of nodes, sums of the figures of PHASES."""

    settings: Settings
    assumed: dict[str, float]
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    phases: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def assumptions(engine: str, given: Iterable[str]) -> dict[str, float]:
    """An engine's defaults, with what NAME=VALUE words replace. Raises BadInputError."""
    values = dict(LOCAL) if engine == "local" else {name: value for name, (value, _) in CLUSTER.items()}
    for word in given:
        name, _, text = word.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if name not in values or not 0 < number < math.inf:
            expected = "NAME=NUMBER, more than 0, of " + ", ".join(values)
            raise BadInputError("an assumption can't be taken", expected=expected, found=word)
        values[name] = number
    return values


def build(settings: Settings, assume: Iterable[str] = ()) -> Plan:
    """The plan of a run. Raises BadInputError for an assumption or a mesh that can't be."""
    plan = Plan(settings, assumptions(settings.engine, assume))
    if settings.engine == "miles":
        card = "against the model card's"
        plan.figures["model"] = [
            Figure("parameters", shapes.TOTAL / 1e9, "1e9", f"{shapes.TOTAL / 276e9 - 1:+.1%} {card} 276",
                   "text model; the checkpoint with towers and MTP holds 266"),
            Figure("active ones", shapes.ACTIVE / 1e9, "1e9", f"{shapes.ACTIVE / 12e9 - 1:+.1%} {card} 12",
                   "less the experts that a token skips"),
        ]  # fmt: skip
        for nodes in sorted({6, 7, 8, settings.num_nodes}):
            _memory(plan, nodes)
    else:
        plan.figures["host memory"] = list(_local(plan))
    plan.figures["time"] = list(_time(plan))
    plan.figures["disk"] = list(_disk(plan))
    return plan


def _memory(plan: Plan, nodes: int) -> None:
    """Of the stage with the most parameters; on the others every phase takes less."""
    settings = plan.settings.model_copy(update={"num_nodes": nodes})
    values = {flag.name: " ".join(flag.values) for flag in flags(settings, settings.run_dir)}
    mesh = Mesh.of(values)
    parts = {
        "GPU memory": [*_engine(plan.assumed, values), *_trainer(plan.assumed, settings, mesh)],
        "host memory": list(_host(plan.assumed, settings, mesh)),
    }
    for place, found in parts.items():
        sizes = {part.name: part.value for part in found}
        for phase, names in PHASES[place].items():
            total = sum(sizes[name] for name in names)
            plan.phases.setdefault(place, {}).setdefault(phase, {})[nodes] = total
    if nodes == plan.settings.num_nodes:
        plan.figures |= parts
        _kv_cache(plan, values)


def _gib(name: str, size: float, formula: str, source: str) -> Figure:
    return Figure(name, size / GIB, "GiB", formula, source)


def _engine(assumed: dict[str, float], values: dict[str, str]) -> Iterator[Figure]:
    ranks, tokens = int(values["--rollout-num-gpus-per-engine"]), int(values["--sglang-max-total-tokens"])
    heads = math.ceil(shapes.GROUPS / ranks)
    yield _gib(
        "engine weights", 2 * shapes.TOTAL / ranks, f"2 B x {shapes.TOTAL:.5g} / {ranks} GPUs", "bf16, TP"
    )
    pool = tokens * shapes.LAYERS * 2 * heads * shapes.HEAD_WIDTH * 2
    yield _gib("KV pool", pool, f"{tokens} tokens x {shapes.LAYERS} layers x K, V x {heads} head x "
               f"{shapes.HEAD_WIDTH} x 2 B", "at most: local layers may get less")  # fmt: skip
    state = shapes.LAYERS * 2 * (shapes.HIDDEN + heads * shapes.HEAD_WIDTH) * (shapes.KERNEL - 1) * 4
    states = int(values["--sglang-max-running-requests"]) * assumed["state_copies"]
    yield _gib(
        "convolution states", states * state, f"{states:g} x {state} B (3 tokens, fp32)", "state_copies"
    )
    yield _gib("sync buckets", assumed["sync_buckets"] * 2**29, "512 MiB x buckets", "sync_buckets")


def _trainer(assumed: dict[str, float], settings: Settings, mesh: Mesh) -> Iterator[Figure]:
    stage, tokens, hidden = mesh.largest, settings.max_seq_len, shapes.HIDDEN
    parameters, in_flight, layers = mesh.parameters(stage), len(mesh.stages) - stage, mesh.stages[stage]
    each = f"B x {parameters:.4g} parameters (stage {stage + 1} of {len(mesh.stages)})"
    yield _gib("weights", 2 * parameters, f"2 {each}", "--bf16")
    yield _gib("gradients", 4 * parameters, f"4 {each}", "--accumulate-allreduce-grads-in-fp32")
    yield _gib("kept activations", in_flight * layers * tokens / mesh.tensor * hidden * 2, f"{in_flight} in flight x "
               f"{layers} layers x {tokens} / TP x {hidden} x 2 B", "full recompute, sequence parallel")  # fmt: skip
    copies = tokens * shapes.EXPERTS_PER_TOKEN / mesh.expert * assumed["expert_imbalance"]
    width = 3 * hidden + 3 * shapes.EXPERT_WIDTH  # sent, received, out; gate, up, their product
    yield _gib("experts' work", 2 * copies * width * 2, f"{copies:.0f} tokens x {width} x 2 B, and as much "
               "backwards", "all-to-all; expert_imbalance")  # fmt: skip
    profile = tokens * shapes.HEADS / mesh.tensor * shapes.EXTENT * 4
    yield _gib("position bias", 2 * profile, f"{tokens} x heads / TP x {shapes.EXTENT} x 4 B, and its gradient",
               "as if kept in fp32")  # fmt: skip
    logits = tokens * shapes.VOCABULARY / mesh.tensor * 4 * assumed["logit_copies"]
    is_last = stage == len(mesh.stages) - 1
    yield _gib(
        "logits", is_last * logits, f"{tokens} x vocabulary / TP x 4 B x copies", "last stage; logit_copies"
    )
    yield _gib("contexts", assumed["context_gib"] * GIB, "", "context_gib")


def _host(assumed: dict[str, float], settings: Settings, mesh: Mesh) -> Iterator[Figure]:
    """Of a node with one whole stage, taken to be the head as well."""
    parameters = mesh.parameters(mesh.largest) * settings.gpus_per_node
    each = f"B x {parameters:.4g} parameters of the node"
    for name, size, source in (
        ("actor backup", 2, "Miles: TensorBackuper, bf16"),
        ("reference backup", 2, "the same; --use-kl-loss"),
        ("master weights", 4, HDO),
        ("paused trainer", 6, "torch_memory_saver: weights, gradients; taken as kept"),
        ("Adam moments", 8, f"{HDO}; made in the first step"),
        ("offloaded gradients", 4, f"{HDO}; made in the first step, pinned"),
        ("save staging", 2, "torch_dist, weights only"),
    ):
        yield _gib(name, size * parameters, f"{size} {each}", source)
    yield _gib(
        "routes", _routes(settings), "samples x MAX_SEQ_LEN x layers x experts x 4 B", "Miles: int32, in Ray"
    )
    servers = settings.session_servers
    yield _gib("session servers", servers * 1.29e9, f"{servers} x 1.29 GB, on the head", "one was measured")
    yield _gib("processes", assumed["processes_gib"] * GIB, "", "processes_gib")


def _routes(settings: Settings) -> int:
    tokens = settings.global_batch_size * (settings.max_seq_len - 1)
    return tokens * shapes.LAYERS * shapes.EXPERTS_PER_TOKEN * 4


def _kv_cache(plan: Plan, values: dict[str, str]) -> None:
    settings, there = plan.settings, int(values["--sglang-max-total-tokens"])
    trials = math.ceil(settings.agent_max_concurrent / _engines(settings))
    needed = trials * settings.max_seq_len
    plan.figures["KV cache of an engine"] = [
        Figure(
            "needed", needed, "tokens", f"{trials} trials x MAX_SEQ_LEN", "a trial's context may grow longer"
        ),
        Figure("there", there, "tokens", "--sglang-max-total-tokens", "recipe/engines/miles/flags.py"),
    ]
    if needed > there or trials > int(values["--sglang-max-running-requests"]):
        plan.findings.append(f"KV cache: {trials} trials at once need {needed} tokens, an engine has {there}")
    names = ("engine weights", "KV pool", "convolution states")
    taken = sum(part.value for part in plan.figures["GPU memory"] if part.name in names)
    static = float(values["--sglang-mem-fraction-static"]) * plan.assumed["gpu_gib"]
    if taken > static:
        plan.findings.append(f"KV cache: weights and pools need {taken:.0f} GiB, SGLang takes {static:.0f}")


def _engines(settings: Settings) -> int:
    return settings.num_nodes * settings.gpus_per_node // 8 if settings.engine == "miles" else 1


def _local(plan: Plan) -> Iterator[Figure]:
    """The two processes with the weights: each tensor as the code makes it, a step's longest trials as reckoned."""
    of, turns = plan.assumed, plan.settings.harbor_agent_max_iterations
    length = of["prompt_tokens"] + turns * (of["tokens_per_turn"] + of["observed_per_turn"])
    trained = 4 * turns * of["tokens_per_turn"]
    rows = 1 if plan.settings.deterministic else 32
    columns = 2 * plan.settings.max_seq_len
    weights = ("weights", 4 * TINY, "4 B x parameters")
    shared = (("libraries", of["libraries_mb"] * 1e6, "libraries_mb"), weights)
    for process, parts in {
        "trainer": (
            *shared,
            ("reference, gradients, Adam", 16 * TINY, "(4 + 4 + 8) B x parameters"),
            ("head", 4 * 200058 * trained, f"4 B x 200058 rows x {trained:.0f} tokens of 4 samples"),
            ("head's gradients", 8 * 32 * shapes.VOCABULARY, "2 x 4 B x vocabulary x 32"),
            ("attention", 208 * length**2, f"6.5 copies x 4 samples x 2 heads x {length:.0f}^2 x 4 B"),
            ("kept heap", of["trainer_heap_mb"] * 1e6, "trainer_heap_mb"),
        ),
        "policy": (
            *shared,
            ("weights received", 4 * TINY, "4 B x parameters, in Ray's object store"),
            ("KV cache", rows * columns * 384, f"{rows} rows x {columns} x 3 layers x K, V x 16 x 4 B"),
            ("logits", 4 * rows * shapes.VOCABULARY, f"{rows} rows x 4 B x vocabulary"),
            ("kept heap", of["policy_heap_mb"] * 1e6, "policy_heap_mb"),
        ),
    }.items():
        for name, size, formula in parts:
            yield Figure(
                f"{process}: {name}", size / 1e6, "MB", formula, f"recipe/engines/local/{process}.py"
            )
        yield Figure(process, sum(size for _, size, _ in parts) / 1e6, "MB", "sum", "the lines above")


def _time(plan: Plan) -> Iterator[Figure]:
    settings, of = plan.settings, plan.assumed
    started = settings.over_sampling_batch_size * settings.n_samples_per_prompt
    at_once = min(started, settings.agent_max_concurrent)
    sampled = of["turns"] * of["tokens_per_turn"]
    speed = of["engine_tokens_per_second"] * _engines(settings) / at_once
    trial = of["sandbox_seconds"] + of["turns"] * of["tool_seconds"] + sampled / speed
    generate = math.ceil(started / at_once) * trial
    length = min(settings.max_seq_len, of["prompt_tokens"] + sampled + of["turns"] * of["observed_per_turn"])
    gpus = settings.num_nodes * settings.gpus_per_node if settings.engine == "miles" else 0
    train = settings.global_batch_size * length / (of["train_tokens_per_second"] * max(1, gpus))
    rollouts, count = settings.num_rollout, saves(settings)
    each = generate + train + of["switch_seconds"]
    hours = (of["start_seconds"] + rollouts * each + count * of["save_seconds"]) / 3600
    batch = f"{settings.global_batch_size} x {length:.0f} tokens"
    for name, value, unit, formula in (
        ("a trial", trial, "s", f"sandbox + turns x tool + {sampled:.0f} tokens / {speed:.3g} a second"),
        ("sampling a rollout", generate, "s", f"ceil({started} trials / {at_once} at once) x a trial"),
        ("training a rollout", train, "s", f"{batch} / train_tokens_per_second / trainers"),
        ("wall time", hours, "h", f"start + {rollouts} x (sampling + training + switch) + {count} saves"),
        ("GPU-hours", hours * gpus, "h", f"wall time x {gpus} GPUs"),
        (
            "sandbox-hours",
            rollouts * started * trial / 3600,
            "h",
            f"{rollouts * started} trials, surplus whole",
        ),
    ):
        yield Figure(name, value, unit, formula, "assumptions, settings")


def saves(settings: Settings) -> int:
    """Every SAVE_INTERVAL rollouts, and after the last one."""
    return math.ceil(settings.num_rollout / settings.save_interval)


def _disk(plan: Plan) -> Iterator[Figure]:
    settings, count = plan.settings, saves(plan.settings)
    size = 550.0 if settings.engine == "miles" else 4 * TINY / 1e9
    yield Figure(
        "checkpoints", count * size, "GB", f"{count} x {size:.3g} GB", "weights only; N / interval + last"
    )
    trials = settings.num_rollout * settings.over_sampling_batch_size * settings.n_samples_per_prompt
    yield Figure("trials", trials * plan.assumed["trial_mb"] / 1e3, "GB", f"{trials} x trial_mb", "trial_mb")
    if settings.dump_details and settings.engine == "miles":
        routes = _routes(settings) / 1e9
        yield Figure(
            "dumps", settings.num_rollout * routes, "GB", f"rollouts x {routes:.3g} GB of routes", "at most"
        )
