"""The local engine's rollouts in Weights & Biases and in TensorBoard's files, under Miles' names.

Neither is imported where it is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe.errors import RecipeError
from recipe.plugins.environment import optional
from recipe.settings import Settings
from recipe.watch.metrics import to_miles

# A start takes a second or two; whoever waits longer has no network, or a wrong key.
START_SECONDS = 30.0


class Tracking:
    """Where the settings send metrics to, possibly nowhere. Raises RecipeError when W&B can't be reached."""

    def __init__(self, settings: Settings, run_dir: Path) -> None:
        self._board: Any = None
        self._wandb: Any = None
        if settings.tensorboard:
            from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

            self._board = SummaryWriter(str(run_dir / "tensorboard"))
        # The settings of a job have no secrets: a key is in the file that NETRC names.
        if settings.wandb_mode == "offline" or optional("NETRC"):
            self._wandb = _start(settings, run_dir)

    def log(self, event: Mapping[str, Any]) -> None:
        """Logs one `rollout` event."""
        named = to_miles(event["metrics"], event["seconds"], event["trials"])
        if self._board is not None:
            for name, value in named.items():
                self._board.add_scalar(name, value, event["rollout"])
            self._board.flush()
        if self._wandb is not None:
            self._wandb.log(named | {"rollout/step": event["rollout"], "train/step": event["rollout"]})

    def close(self, *, failed: bool) -> None:
        """Writes what is not yet written, and ends the run there."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(failed))


def _start(settings: Settings, run_dir: Path) -> Any:
    import wandb

    # Our output may hold what a policy wrote; the machine and the repository are no business of W&B's.
    off = ("disable_git", "disable_code", "x_disable_stats", "x_disable_meta", "silent")
    private: dict[str, Any] = {"console": "off", "x_save_requirements": False} | dict.fromkeys(off, True)
    try:
        return wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity,
            group=settings.run_name,
            name=settings.run_name,
            dir=str(run_dir),  # in its folder wandb
            config=settings.public(),
            mode=settings.wandb_mode,
            settings=wandb.Settings(init_timeout=START_SECONDS, **private),
        )
    except (wandb.Error, OSError) as error:
        raise RecipeError(
            "Weights & Biases did not take the run",
            found=" ".join(str(error).split())[:300],
            run="WANDB_MODE=offline keeps its files in the run folder; WANDB_API_KEY= logs nothing there",
        ) from None
