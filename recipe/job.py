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
    travel to every node; `tracked` says whether the job writes RUN/events.jsonl, else its log is what is shown.
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


def plugin_environment(settings: Settings, agent_server_url: str) -> dict[str, str]:
    """What recipe/plugins read in the job's processes."""
    variables = {
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
