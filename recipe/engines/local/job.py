"""Settings and a run folder in, the local engine's job out: the driver's command line and its environment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from recipe.job import Job
from recipe.settings import Settings

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


def job(settings: Settings, run_dir: Path, agent_server_url: str) -> Job:
    """The driver over RUN/launcher/job.json, with what the plugins read from the environment."""
    plugins = {
        "AGENT_SERVER_URL": agent_server_url,
        "AGENT_MODEL_NAME": settings.agent_model_name,
        "HARBOR_AGENT_NAME": settings.agent,
        "HARBOR_AGENT_MAX_ITERATIONS": str(settings.harbor_agent_max_iterations),
        "HARBOR_MAX_SEQ_LEN": str(settings.harbor_max_seq_len),
        "HARBOR_AGENT_CALL_TIMEOUT_SEC": str(settings.harbor_agent_call_timeout_sec),
        "MAX_DROPPED_GROUPS": str(settings.max_dropped_groups),
    }
    command = [sys.executable, "-m", "recipe.engines.local.driver", str(run_dir / "launcher" / "job.json")]
    return Job(entrypoint=shlex.join(command), env={**SPEED, **OFFLINE, **plugins})
