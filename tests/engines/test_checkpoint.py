"""A checkpoint is complete or absent, and what is loaded is bit for bit what was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recipe.engines.local import checkpoint
from recipe.errors import BadInputError


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {"a": generator.normal(size=(5, 3)).astype(np.float32), "b": np.ones(2, dtype=np.float32)}


def test_a_reloaded_checkpoint_is_bit_identical(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 4, weights())
    loaded = checkpoint.read_weights(checkpoint.latest(tmp_path))
    assert path.name == "iter_0000004"
    assert all(np.array_equal(loaded[name], value) for name, value in weights().items())


def test_the_tracker_names_the_newest(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, weights(1))
    checkpoint.save(tmp_path, 2, weights(2))
    assert checkpoint.latest(tmp_path).name == "iter_0000002"
    assert checkpoint.is_complete(tmp_path / "iter_0000001")


@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_cut_file_is_not_complete(tmp_path: Path, cut: int) -> None:
    path = checkpoint.save(tmp_path, 1, weights())
    file = path / checkpoint.WEIGHTS
    file.write_bytes(file.read_bytes()[:cut])
    assert not checkpoint.is_complete(path)
    with pytest.raises(BadInputError, match="not complete"):
        checkpoint.read_weights(path)


def test_without_its_marker_it_is_not_complete(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, weights())
    (path / checkpoint.COMPLETE).unlink()
    assert not checkpoint.is_complete(path)


def test_a_failed_write_leaves_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r".+"):
        checkpoint.save(tmp_path, 1, {"bad": np.array(["text"], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no checkpoint"):
        checkpoint.latest(tmp_path)
