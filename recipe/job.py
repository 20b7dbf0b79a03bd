"""What an engine hands to the launcher: the one command that Ray's Jobs API runs, and its environment; and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from recipe.settings import Settings


@dataclass(frozen=True)
class Job:
    """A job's entry point (a shell command line, as Ray's Jobs API takes it) and what its environment adds.

    Ray keeps both in the job's record and shows them on its dashboard: neither may hold a secret. `arguments`
    are the entry point's words as people read them, each with where it comes from; `packages` are folders that
    travel to every node; `tracked` says whether the job itself writes RUN/events.jsonl, else its log and its
    journal are translated.
    """

    entrypoint: str
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[tuple[str, str], ...] = ()
    packages: tuple[Path, ...] = ()
    tracked: bool = True


@dataclass(frozen=True)
class RayAddress:
    """Where the Jobs API answers, what it wants to see, and the seconds for which a lost connection is tried anew."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    patience: float = 0.0


def save_and_stop(run_dir: Path) -> Path:
    """The file at which either engine saves after the step under way, and which it then removes."""
    return run_dir / "launcher" / "save_and_stop"


def journal(run_dir: Path) -> Path:
    """What the plugins of a job of Miles append; the local engine's are part of its events."""
    return run_dir / "launcher" / "journal.jsonl"


def netrc(run_dir: Path) -> Path:
    """The file with the key of Weights & Biases, which is there while the run lasts."""
    return run_dir / "launcher" / "netrc"


def logs_to_wandb(settings: Settings) -> bool:
    """With a key, or into files of the run folder, which needs none."""
    return settings.wandb_api_key is not None or settings.wandb_mode == "offline"


def tracking_environment(settings: Settings, run_dir: Path) -> dict[str, str]:
    """What wandb and TensorBoard's writers read; W&B's key itself is in the file that NETRC names."""
    online = logs_to_wandb(settings) and settings.wandb_mode == "online"
    return {
        # Reports of its own errors, which it would send offline too.
        **({"WANDB_ERROR_REPORTING": "false"} if logs_to_wandb(settings) else {}),
        **({"NETRC": str(netrc(run_dir))} if online else {}),
        **({"TENSORBOARD_DIR": str(run_dir / "tensorboard")} if settings.tensorboard else {}),
    }


def plugin_environment(settings: Settings, agent_server_url: str, run_journal: Path) -> dict[str, str]:
    """What recipe/plugins read in the job's processes."""
    variables = {
        "RUN_JOURNAL": str(run_journal),
        "AGENT_SERVER_URL": agent_server_url,
        "AGENT_MODEL_NAME": settings.agent_model_name,
        "HARBOR_AGENT_NAME": settings.agent,
        "HARBOR_AGENT_MAX_ITERATIONS": str(settings.harbor_agent_max_iterations),
        "HARBOR_MAX_SEQ_LEN": str(settings.harbor_max_seq_len),
        "HARBOR_AGENT_CALL_TIMEOUT_SEC": str(settings.harbor_agent_call_timeout_sec),
        "MAX_DROPPED_GROUPS": str(settings.max_dropped_groups),
        "AUDIT_MAX_STRICT": str(settings.audit_max_strict),
        "ROLLOUT_TIMEOUT_SEC": str(settings.rollout_timeout_sec),
    }
    if settings.agent == "terminus-2":
        variables["HARBOR_INTERLEAVED_THINKING"] = str(settings.harbor_interleaved_thinking).lower()
    return variables
