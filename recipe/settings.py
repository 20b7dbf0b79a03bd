"""Every setting as data: name, type, default, unit, meaning, agent; recipe/resolve.py finds their values."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr

from recipe.forms import (
    INTERFACE,
    INTERFACE_FORM,
    WORD,
    WORD_FORM,
    AbsolutePath,
    Address,
    setting,
)
from recipe.settings_gke import GkeSettings
from recipe.settings_sandboxes import SandboxSettings, Secret, on_gke


class Checkouts(BaseModel):
    """Which agent's recipe, and where its sources lie: all that the comparison with the pins needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    agent: Literal["camel", "terminus-2"] = setting("camel", meaning="which agent solves the tasks")
    miles_dir: AbsolutePath = setting(Path("/root/miles"), meaning="checkout of Miles, as in the image")
    sglang_dir: AbsolutePath = setting(
        Path("/sgl-workspace/sglang"), meaning="checkout of SGLang, as in the image"
    )
    megatron_path: AbsolutePath = setting(
        Path("/root/Megatron-LM"), meaning="Megatron-LM, which the image's digest pins"
    )
    harbor_dir: AbsolutePath | None = setting(None, meaning="checkout of Harbor")

    def source(self, name: str) -> str:
        """Where the value of the setting `name` (lower case) came from."""
        return self._sources.get(name, "default")

    @property
    def recipe(self) -> str:
        """The recipe's name in pins/."""
        return self.agent.replace("-", "")


class Settings(GkeSettings, SandboxSettings, Checkouts):
    """The resolved settings of one run. Build it with `resolve.load`; `Settings(**public)` reads a dump back."""

    engine: Literal["local", "miles"] = setting(
        meaning="what samples and trains: `local` is a tiny Inkling on this machine, `miles` the cluster"
    )
    tasks_dir: AbsolutePath = setting(meaning="folder of Harbor task directories")

    # The cluster.
    head_ip: Address | None = setting(
        None, meaning="address of Ray's head node, on which the launcher runs; or CLUSTER_CONFIG names it"
    )
    cluster_config: AbsolutePath | None = setting(
        None, meaning="YAML with gpus_per_node, head.ip and workers[].ip, in place of HEAD_IP and NUM_NODES"
    )
    num_nodes: int = setting(
        8, unit="nodes", meaning="of the cluster: 6, 7 or 8, one pipeline stage each", ge=1
    )
    gpus_per_node: int = setting(8, unit="GPUs", meaning="only 8", ge=1)
    ray_dashboard_port: int = setting(8265, meaning="of Ray's dashboard on HEAD_IP", ge=1, le=65535)
    nccl_socket_ifname: str | None = setting(
        None,
        meaning="interface of the interconnect, when it is not that of the default route",
        pattern=INTERFACE,
        form=INTERFACE_FORM,
    )
    gloo_socket_ifname: str | None = setting(
        None, meaning="the same for Gloo", pattern=INTERFACE, form=INTERFACE_FORM
    )
    strict_pins: bool = setting(
        default=False, meaning="1: a checkout that is not at its pin is an error, not a warning"
    )
    clean_leftovers: bool = setting(
        default=False, meaning="1: end what earlier runs of this project left running on the nodes"
    )

    # The model.
    model_root: AbsolutePath = setting(
        Path("/root/models"), meaning="holds Inkling-Small and Inkling-Small_torch_dist"
    )
    model_dir: AbsolutePath = setting(
        meaning="Hugging Face checkpoint: SGLang serves it, Miles reads its config",
        derived="MODEL_ROOT/Inkling-Small",
        factory=lambda data: data["model_root"] / "Inkling-Small",
    )
    torch_dist_dir: AbsolutePath = setting(
        meaning="its conversion to Megatron's format: the weights to start from, and the KL reference",
        derived="MODEL_ROOT/Inkling-Small_torch_dist",
        factory=lambda data: data["model_root"] / "Inkling-Small_torch_dist",
    )
    hf_token: Secret = setting(None, meaning="of Hugging Face; the model itself needs none")
    load_dir: AbsolutePath | None = setting(
        meaning="an earlier run's checkpoints/ to start from; optimizer and rollout count start fresh",
        derived="TORCH_DIST_DIR; with the engine local, a warm start",
        factory=lambda data: data["torch_dist_dir"] if data["engine"] == "miles" else None,
    )

    # Rollouts and optimizer steps.
    num_rollout: int = setting(
        100, unit="rollouts", meaning="rollouts, one optimizer step each", ge=1, le=10**6
    )
    rollout_batch_size: int = setting(
        16, unit="groups", meaning="complete groups kept per rollout", ge=1, le=10**5
    )
    over_sampling_batch_size: int = setting(
        20, unit="groups", meaning="groups started per rollout; the surplus is aborted", ge=1, le=10**5
    )
    n_samples_per_prompt: int = setting(
        8,
        unit="trials",
        meaning="trials per prompt, the GRPO group; one alone has no spread to learn from",
        ge=2,
        le=10**4,
    )
    global_batch_size: int = setting(
        unit="samples",
        meaning="samples of one optimizer step",
        derived="ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        factory=lambda data: data["rollout_batch_size"] * data["n_samples_per_prompt"],
        ge=1,
    )
    lr: float = setting(
        1e-5,
        meaning="constant learning rate of Adam; for Inkling-Small 3e-5 was stable, 5e-5 collapsed",
        gt=0,
        allow_inf_nan=False,
    )
    force_lr: bool = setting(
        default=False, meaning="1: an LR that is known to collapse is taken all the same"
    )
    max_seq_len: int = setting(
        32768,
        unit="tokens",
        meaning="of a training sample (prompt and all turns); a longer one is truncated",
        ge=2,
    )
    max_response_len: int = setting(16384, unit="tokens", meaning="of one model turn", ge=1)
    seed: int = setting(
        42, meaning="keys every random stream and the order of the prompts", ge=0, le=2**32 - 1
    )
    deterministic: bool = setting(
        default=False,
        meaning="1: the same seed gives the same events, times aside, on the same machine; slower; engine local only",
    )
    extra_args: str = setting(
        "", meaning="further flags of Miles, Megatron or SGLang, quoted as in a shell; they come last and win"
    )

    # The run's files.
    runs_root: AbsolutePath = setting(
        Path("runs"),
        meaning="folder of all runs; every node of a cluster writes to it",
        validate_default=True,
    )
    run_name: str = setting(
        meaning="this run's folder in RUNS_ROOT; a used one is refused",
        derived="inkling-grpo-AGENT-<UTC time>",
        factory=lambda data: f"inkling-grpo-{data['agent']}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        form="at most 100 letters, digits and . _ -, the first a letter or a digit",
    )
    prompt_data: AbsolutePath = setting(
        meaning="JSONL of prompts, one row a task",
        derived="a row for each task of TASKS_DIR, written into the run folder",
        factory=lambda data: data["runs_root"] / data["run_name"] / "launcher" / "prompts.jsonl",
    )
    save_interval: int = setting(
        unit="rollouts",
        meaning="between checkpoints (weights only; 550 GB each); the last rollout always saves",
        derived="99 for camel, 50 for terminus-2",
        factory=lambda data: 99 if data["agent"] == "camel" else 50,
        ge=1,
    )
    dump_details: bool = setting(
        default=True, meaning="1: samples and token ids of each rollout in dump_details/"
    )
    cache_dir: AbsolutePath = setting(
        Path(".cache"), meaning="what later runs reuse: the local engine's warm start", validate_default=True
    )
    torchinductor_cache_dir: AbsolutePath = setting(
        meaning="compiled kernels, kept across runs: with none, the first step compiles for long",
        derived="RUNS_ROOT/torchinductor_cache",
        factory=lambda data: data["runs_root"] / "torchinductor_cache",
    )

    # Weights & Biases.
    wandb_api_key: SecretStr | None = setting(None, meaning="logs to Weights & Biases when set")
    wandb_project: str = setting("seta", meaning="project there", pattern=WORD, form=WORD_FORM)
    wandb_entity: str | None = setting(None, meaning="team there", pattern=WORD, form=WORD_FORM)
    wandb_mode: Literal["online", "offline"] = setting(
        "online", meaning="offline: logs into the run folder; no key is needed, and it switches W&B on"
    )
    tensorboard: bool = setting(default=False, meaning="1: files of TensorBoard in the run folder")

    # Alarms.
    stop_on: str = setting(
        "",
        meaning="names of alarms that stop the run after saving, with commas between, or `none` alone; "
        "empty: those that docs/alarms.md marks",
    )

    # Agent server and agents.
    harbor_home: AbsolutePath = setting(
        Path("~/.cache/inkling-grpo/harbor"),
        meaning="a checkout and an environment for each commit of Harbor",
        validate_default=True,
    )
    harbor_commit: str | None = setting(
        None,
        meaning="another commit of Harbor than the pinned one",
        pattern=r"^[0-9a-f]{40}$",
        form="40 hex digits",
    )
    agent_max_concurrent: int = setting(
        unit="trials",
        meaning="trials that run at once; further ones queue",
        derived="OVER_SAMPLING_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        factory=lambda data: data["over_sampling_batch_size"] * data["n_samples_per_prompt"],
        ge=1,
    )
    agent_server_host: str = setting("0.0.0.0", meaning="address that the agent server binds")  # noqa: S104
    agent_server_port: int = setting(
        11000, meaning="its port; 0: any free one (engine local only)", ge=0, le=65535
    )
    agent_server_url: str | None = setting(
        meaning="how the job reaches the agent server",
        derived="http://HEAD_IP:AGENT_SERVER_PORT; with the engine local, what it was given",
        factory=lambda data: _agent_server_url(data),
        pattern=r"^http://[A-Za-z0-9.-]+:\d{1,5}$",
        form="http://HOST:PORT",
    )
    session_servers: int = setting(
        64,
        unit="processes",
        meaning="that keep the trials' token ids, 1.3 GB each; engine miles",
        ge=1,
        le=1024,
    )
    session_server_port: int = setting(
        30000,
        meaning="of the first session server, the others' follow; 0: any free one (engine local only)",
        ge=0,
        le=65535,
    )
    agent_model_name: str = setting(
        "inkling-small",
        meaning="model name that the agent sends, as openai/<name>",
        pattern=WORD,
        form=WORD_FORM,
    )
    harbor_agent_max_iterations: int = setting(50, unit="turns", meaning="per trial", ge=1)
    harbor_max_seq_len: int = setting(
        1_048_576,
        unit="tokens",
        meaning="the agent's own bound on its context (MAX_SEQ_LEN bounds the sample)",
        ge=1,
    )
    harbor_interleaved_thinking: bool = setting(
        default=True, meaning="1: the agent replays the policy's thinking", agent="terminus-2"
    )
    harbor_agent_timeout_multiplier: float = setting(
        12, meaning="scales each task's agent timeout", gt=0, allow_inf_nan=False
    )
    harbor_agent_call_timeout_sec: float = setting(
        10800,
        unit="s",
        meaning="deadline of one whole trial: queue, sandbox, agent, verifier",
        gt=0,
        allow_inf_nan=False,
    )
    rollout_timeout_sec: float = setting(
        unit="s",
        meaning="deadline of one rollout's sampling; the job ends with an error",
        derived="2 x HARBOR_AGENT_CALL_TIMEOUT_SEC: one wave of trials and one refill",
        factory=lambda data: 2 * data["harbor_agent_call_timeout_sec"],
        gt=0,
        allow_inf_nan=False,
    )
    max_dropped_groups: int = setting(
        unit="groups",
        meaning="dropped in a row, after which the job ends with an error",
        derived="3 x OVER_SAMPLING_BATCH_SIZE: the rollout's groups and two refills",
        factory=lambda data: 3 * data["over_sampling_batch_size"],
        ge=1,
    )

    audit_max_strict: float = setting(
        0.2,
        unit="share",
        meaning="of a rollout's trajectories that may hold tokens which nobody sampled or replayed so",
        ge=0,
        le=1,
    )

    # How agents reach the session servers.
    miles_router_external_host: Address | None = setting(
        meaning="host under which agents reach the session servers",
        derived="HEAD_IP on gke",
        factory=lambda data: on_gke(data, data["head_ip"]),
    )
    miles_host_ip: Address | None = setting(
        meaning="address that the session servers and the router bind",
        derived="HEAD_IP on gke",
        factory=lambda data: on_gke(data, data["head_ip"]),
    )

    skip_checks: str = setting(
        "",
        meaning="names of checks of `recipe doctor` to leave out, with commas between; the manifest has them",
    )
    env_file: AbsolutePath = setting(
        Path(".env"), meaning="file of NAME=VALUE lines; may be missing, unless named", validate_default=True
    )
    dry_run: bool = setting(
        default=False, meaning="1: print what would run, then stop; nothing is started or written"
    )

    def public(self) -> dict[str, Any]:
        """Every setting as plain JSON, keyed by its lower-case name; secrets are left out."""
        return self.model_dump(mode="json", exclude=set(SECRETS))

    def with_sources(self) -> dict[str, dict[str, Any]]:
        """What `public` gives, each value with where it came from."""
        return {name: {"value": value, "source": self.source(name)} for name, value in self.public().items()}

    @property
    def builds_prompt_data(self) -> bool:
        """Whether PROMPT_DATA was not given: then the launcher writes it."""
        return "prompt_data" not in self._sources

    @property
    def skipped_checks(self) -> list[str]:
        """The names in SKIP_CHECKS."""
        return [name.strip() for name in self.skip_checks.split(",") if name.strip()]

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.runs_root / self.run_name


def _agent_server_url(data: dict[str, Any]) -> str | None:
    on_cluster = data["engine"] == "miles" and data["head_ip"]
    return f"http://{data['head_ip']}:{data['agent_server_port']}" if on_cluster else None


NAMES = tuple(name.upper() for name in Settings.model_fields)
SECRETS = tuple(name for name, field in Settings.model_fields.items() if "Secret" in str(field.annotation))
