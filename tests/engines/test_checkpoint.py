"""A checkpoint is complete or absent, and what is loaded is bit for bit what was saved."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from recipe.engines.local import checkpoint
from recipe.errors import BadInputError

SHAPES = {"a": (5, 3), "b": (2,)}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {"a": generator.normal(size=(5, 3)).astype(np.float32), "b": np.ones(2, dtype=np.float32)}


def test_a_reloaded_checkpoint_is_bit_identical(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 4, weights())
    loaded = checkpoint.read_weights(checkpoint.latest(tmp_path), SHAPES)
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
        checkpoint.read_weights(path, SHAPES)


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


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"a": (5, 3)}, "b absent"),
        ({"a": (5, 4), "b": (2,)}, r"a \(5, 4\)"),
        (SHAPES | {"c": (1,)}, r"c \(1,\)"),
    ],
)
def test_a_checkpoint_of_another_model_is_named(tmp_path: Path, shapes: dict, expected: str) -> None:
    path = checkpoint.save(tmp_path, 1, weights())
    with pytest.raises(BadInputError, match="another model") as refused:
        checkpoint.read_weights(path, shapes)
    assert re.search(expected, refused.value.facts["expected"])


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, weights() | {"b": np.array([1.0, np.nan], dtype=np.float32)})
    with pytest.raises(BadInputError, match="NaN"):
        checkpoint.read_weights(path, SHAPES)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, weights())
    file = path / checkpoint.WEIGHTS
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(BadInputError, match="can't be read"):
        checkpoint.read_weights(path, SHAPES)


@pytest.mark.parametrize("marker", ["null", "[]", "7", '{"bytes": 1}', "{}", "{", "\xff"])
def test_a_marker_of_something_else_is_refused(tmp_path: Path, marker: str) -> None:
    path = checkpoint.save(tmp_path, 1, weights())
    (path / checkpoint.COMPLETE).write_bytes(marker.encode("latin-1"))
    with pytest.raises(BadInputError, match="not complete"):
        checkpoint.require_complete(path)
