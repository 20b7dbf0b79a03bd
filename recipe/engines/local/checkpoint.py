"""Weights-only checkpoints: written beside and renamed, complete marker last, latest one named in a tracker file.

Layout and names are Megatron's (`iter_0000002/`, `latest_checkpointed_iteration.txt`), the content is one
safetensors file in float32: a reloaded model gives bit-identical log-probabilities.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from recipe.errors import BadInputError
from recipe.files import write_whole

TRACKER = "latest_checkpointed_iteration.txt"
COMPLETE = "complete.json"
WEIGHTS = "model.safetensors"


def save(directory: Path, iteration: int, weights: Mapping[str, np.ndarray]) -> Path:
    """Writes checkpoint `iteration` under `directory` and returns its path."""
    target = directory / f"iter_{iteration:07d}"
    write_weights(target, weights)
    write_whole(directory / TRACKER, str(iteration))
    return target


def write_weights(target: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Writes a complete directory of weights at `target`, replacing an incomplete one."""
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        save_file(dict(weights), partial / WEIGHTS)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    size = (target / WEIGHTS).stat().st_size
    write_whole(target / COMPLETE, json.dumps({"bytes": size, "tensors": len(weights)}))


def is_complete(directory: Path) -> bool:
    """Whether `directory` holds weights that were written to the end."""
    try:
        marker = json.loads((directory / COMPLETE).read_text())
        return bool(marker["bytes"] == (directory / WEIGHTS).stat().st_size)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def require_complete(directory: Path) -> None:
    """Raises BadInputError when `directory` holds no weights that were written to the end."""
    if not is_complete(directory):
        found = {path.name: path.stat().st_size for path in directory.glob("*")}
        raise BadInputError(
            "the checkpoint is not complete",
            expected=f"{WEIGHTS}, and a {COMPLETE} that names its size in bytes",
            found=found or "nothing",
            where=directory,
        )


def read_weights(directory: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """The weights in a complete `directory`, which are to have these names and `shapes`. Raises BadInputError."""
    require_complete(directory)
    file = directory / WEIGHTS
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise BadInputError("the checkpoint can't be read", found=error, where=file) from error
    expected = {name: tuple(shape) for name, shape in shapes.items()}
    found = {name: value.shape for name, value in weights.items()}
    wrong = sorted(expected.items() ^ found.items(), key=str)
    if wrong:
        name = wrong[0][0]
        raise BadInputError(
            "the checkpoint is of another model",
            expected=f"{name} {expected.get(name, 'absent')}",
            found=f"{name} {found.get(name, 'absent')}",
            where=file,
        )
    bad = [name for name, value in weights.items() if not np.isfinite(value).all()]
    if bad:
        raise BadInputError("the checkpoint holds NaN or infinity", found=bad[0], where=file)
    return weights


def latest(directory: Path) -> Path:
    """The newest checkpoint of a run's `checkpoints/`. Raises BadInputError when there is none."""
    tracker = directory / TRACKER
    try:
        return directory / f"iter_{int(tracker.read_text()):07d}"
    except (OSError, ValueError) as error:
        raise BadInputError(
            "no checkpoint to load",
            expected=f"a run's checkpoints/ folder with {TRACKER}",
            found=error,
            where=directory,
            run="LOAD_DIR=<RUNS_ROOT>/<run>/checkpoints",
        ) from error
