"""What an engine hands to the launcher: the one command that Ray's Jobs API runs, and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """A job's entry point (a shell command line, as Ray's Jobs API takes it) and what its environment adds.

    Ray keeps both in the job's record and shows them on its dashboard: neither may hold a secret.
    """

    entrypoint: str
    env: dict[str, str] = field(default_factory=dict)
