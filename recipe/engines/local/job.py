"""Settings and a run folder in, the local engine's job out: the driver's command line and its environment.

And what this engine refuses beforehand. Imports neither torch nor ray.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from recipe.errors import BadInputError
from recipe.job import Job, plugin_environment, tracking_environment
from recipe.settings import Settings
from recipe.tasks.prompts import Row
from recipe.tasks.smoke_behaviours import SMOKE_BEHAVIOURS

# Measured on two shared cores: torch threads that spin at barriers, and an allocator that returns each logits
# buffer to the kernel, cost a factor of 4 to 20.
SPEED = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
# Weights and tokenizer are made here or ship with a package: nothing may be looked up in a network.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def check(settings: Settings, rows: Callable[[], Sequence[Row]]) -> None:
    """Refuses what the driver would refuse later. Raises BadInputError."""
    if settings.load_dir is not None:
        return
    unknown = sorted({row.label for row in rows()} - SMOKE_BEHAVIOURS.keys())
    if unknown:
        raise BadInputError(
            "the tiny model can't be taught these tasks",
            expected=f"tasks with scripted behaviours: {', '.join(SMOKE_BEHAVIOURS)}",
            found=", ".join(unknown),
            where=settings.tasks_dir,
            run="LOAD_DIR=<checkpoints> starts from weights of your own",
        )


def job(settings: Settings, run_dir: Path, agent_server_url: str) -> Job:
    """The driver over RUN/launcher/job.json, with what the plugins read from the environment."""
    command = [sys.executable, "-m", "recipe.engines.local.driver", str(run_dir / "launcher" / "job.json")]
    return Job(
        entrypoint=shlex.join(command),
        env={
            **SPEED,
            **OFFLINE,
            **tracking_environment(settings, run_dir),
            **plugin_environment(settings, agent_server_url, run_dir / "events.jsonl"),
        },
    )
