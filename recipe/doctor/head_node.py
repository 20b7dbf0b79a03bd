"""What must hold on the cluster's head node, where the launcher of the engine miles runs."""

from __future__ import annotations

from collections.abc import Iterator

from recipe.errors import BadInputError
from recipe.settings import Settings

TRACKER = "latest_checkpointed_iteration.txt"


def model(settings: Settings) -> Iterator[BadInputError]:
    """The Hugging Face checkpoint and its conversion are there."""
    parts = {"model_dir": settings.model_dir / "config.json"}
    if settings.load_dir != settings.torch_dist_dir:  # what is loaded is looked at more closely
        parts["torch_dist_dir"] = settings.torch_dist_dir / TRACKER
    for name, path in parts.items():
        if not path.is_file():
            yield BadInputError(
                f"{name.upper()} holds no model", expected=path.name, found="no such file", where=path.parent
            )


def checkouts(settings: Settings) -> Iterator[BadInputError]:
    """The sources that the job runs from are there."""
    parts = {
        "miles_dir": "train.py",
        "sglang_dir": "python/sglang/__init__.py",
        "megatron_path": "megatron/core/__init__.py",
    }
    for name, part in parts.items():
        folder = getattr(settings, name)
        if not (folder / part).is_file():
            yield BadInputError(
                f"{name.upper()} is no such checkout",
                expected=part,
                found="no such file",
                where=f"{folder} ({settings.source(name)})",
                run="start in the recipe's image: recipe container start",
            )
