"""Settings and a run folder in, the job of Miles out: train.py with every flag, and its environment.

Our plugins travel with the job, from a copy in the run folder: no node needs this repository.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from recipe.engines.miles.contract import check as contract
from recipe.engines.miles.environment import environment
from recipe.engines.miles.flags import flags
from recipe.job import Job
from recipe.settings import Settings
from recipe.tasks.prompts import Row

# The model's own flags are a shell array in a file of Miles. A constant text: all that varies is arguments.
# Ray puts the working directory first on every worker's path: elsewhere a folder `recipe` would hide our plugins.
TRAIN = 'cd "$0" && source scripts/models/inkling-small.sh && exec python3 train.py "${MODEL_ARGS[@]}" "$@"'


def check(settings: Settings, _rows: Callable[[], Sequence[Row]]) -> None:
    """Refuses what the sources that are here would refuse, or ignore. Raises BadInputError."""
    url = settings.agent_server_url or ""
    contract.require(
        settings, flags(settings, settings.run_dir), environment(settings, url, settings.run_dir)
    )


def job(settings: Settings, run_dir: Path, agent_server_url: str) -> Job:
    """The job; nothing is read or written. Raises BadInputError for EXTRA_ARGS."""
    resolved = flags(settings, run_dir)
    words = [word for flag in resolved for word in flag.words]
    model = f"scripts/models/inkling-small.sh of MILES_DIR ({settings.source('miles_dir')})"
    return Job(
        entrypoint=shlex.join(["bash", "-c", TRAIN, str(settings.miles_dir), *words]),
        env=environment(settings, agent_server_url, run_dir),
        arguments=(
            ('python3 train.py "${MODEL_ARGS[@]}"', model),
            *((shlex.join(flag.words), flag.source) for flag in resolved),
        ),
        packages=(staged_plugins(run_dir),),
        tracked=False,
    )


def staged_plugins(run_dir: Path) -> Path:
    """The package `recipe` with the plugins alone, as it travels."""
    return run_dir / "launcher" / "plugins" / "recipe"
