"""A run starts from a whole checkpoint of its own engine and model, or says what is wrong with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from recipe.doctor.lineage import lineage, told
from recipe.engines.local import checkpoint
from recipe.errors import BadInputError
from recipe.pins import PROJECT_ROOT, load_pins
from recipe.resolve import resolve
from recipe.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
MODEL = f"{load_pins().model.repository}@{load_pins().model.revision}"


def settings_of(load_dir: Path | None, engine: str = "miles", **others: str) -> Settings:
    given = {"engine": engine, "tasks_dir": ".", **others}
    if load_dir is not None:
        given["load_dir"] = str(load_dir)
    return resolve({name: (value, "test") for name, value in given.items()})


def manifest(run: Path, engine: str = "miles", model: str = MODEL) -> None:
    settings = {"run_name": {"value": run.name}, "engine": {"value": engine}}
    (run / "run_manifest.json").write_text(json.dumps({"settings": settings, "pins": {"model": model}}))


def torch_dist(checkpoints: Path, iteration: str = "iter_0000099", tracker: str = "99\n") -> Path:
    """Written by torch's own writer, as Megatron's is: two shards, `.metadata`; Megatron adds the other two."""
    folder = checkpoints / iteration
    state = {f"layer.{number}": torch.full((64,), float(number)) for number in range(6)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, thread_count=2), no_dist=True)
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (folder / "common.pt").write_bytes(b"common")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(tracker)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "earlier"
    (path / "checkpoints").mkdir(parents=True)
    return path


def refusal(settings: Settings) -> str:
    with pytest.raises(BadInputError) as refused:
        lineage(settings)
    return str(refused.value)


def test_a_run_s_checkpoint_is_told_with_its_run_and_what_is_not_restored(run: Path) -> None:
    folder = torch_dist(run / "checkpoints")
    assert sorted(path.name for path in folder.glob("*.distcp")) == ["__0_0.distcp", "__0_1.distcp"]
    manifest(run)
    facts = lineage(settings_of(run / "checkpoints"))
    assert facts == {
        "checkpoint": str(folder),
        "run": "earlier",
        "iteration": 99,
        "model": MODEL,
        "restored": ["weights"],
        "not_restored": ["optimizer", "rollout count", "data order"],
    }
    assert told(facts) == (
        f"restored: weights of run earlier, iteration 99 from {folder}; "
        "not restored: optimizer, rollout count, data order"
    )


def test_the_conversion_of_the_pinned_model_is_of_no_run(run: Path) -> None:
    folder = torch_dist(run / "checkpoints", "release", "release")
    facts = lineage(settings_of(None, torch_dist_dir=str(run / "checkpoints")))
    assert facts is not None
    assert (facts["run"], facts["iteration"], facts["model"]) == (None, "release", MODEL)
    assert told(facts).startswith(f"restored: weights of {MODEL} from {folder}; ")


def test_the_local_engine_s_checkpoint_is_told_and_its_warm_start_is_no_checkpoint(run: Path) -> None:
    checkpoint.save(run / "checkpoints", 3, {"w": np.zeros(2, np.float32)})
    manifest(run, engine="local")
    facts = lineage(settings_of(run / "checkpoints", "local"))
    assert facts is not None
    assert (facts["run"], facts["iteration"]) == ("earlier", 3)
    assert lineage(settings_of(None, "local")) is None


@pytest.mark.parametrize(
    "tracker", ["", "ninety", "9 9", "-1", "0x10", "release\nmore", "\0\xff", "٣", "99.0"]
)
def test_a_tracker_file_with_something_else_is_named_with_what_it_says(run: Path, tracker: str) -> None:
    torch_dist(run / "checkpoints", tracker=tracker)
    text = refusal(settings_of(run / "checkpoints"))
    assert "latest_checkpointed_iteration.txt does not name a checkpoint" in text
    assert repr(tracker.strip()) in text


def test_a_folder_without_a_tracker_file_holds_no_checkpoints(run: Path) -> None:
    assert "LOAD_DIR holds no checkpoints" in refusal(settings_of(run / "checkpoints"))
    assert "LOAD_DIR holds no checkpoints" in refusal(settings_of(run / "gone", "local"))


def test_a_checkpoint_that_the_tracker_names_must_be_there(run: Path) -> None:
    torch_dist(run / "checkpoints", tracker="100")
    assert "iter_0000100" in refusal(settings_of(run / "checkpoints"))
    assert "no such folder" in refusal(settings_of(run / "checkpoints"))


@pytest.mark.parametrize("name", ["__0_0.distcp", "__0_1.distcp", ".metadata", "common.pt", "metadata.json"])
def test_each_part_that_is_missing_or_empty_is_listed(run: Path, name: str) -> None:
    part = torch_dist(run / "checkpoints") / name
    part.write_bytes(b"")
    assert f"{name} is empty" in refusal(settings_of(run / "checkpoints"))
    part.unlink()
    assert f"{name} is missing" in refusal(settings_of(run / "checkpoints"))


def test_a_list_of_shards_that_was_cut_is_found_at_any_byte(run: Path) -> None:
    index = torch_dist(run / "checkpoints") / ".metadata"
    whole = index.read_bytes()
    settings = settings_of(run / "checkpoints")
    for size in (*range(1, len(whole) - 20, 11), *range(len(whole) - 20, len(whole))):
        index.write_bytes(whole[:size])
        assert ".metadata is cut" in refusal(settings), size
    index.write_bytes(whole)
    assert lineage(settings)


def test_metadata_is_never_unpickled(run: Path) -> None:
    folder = torch_dist(run / "checkpoints")
    hit = run / "hit"
    harmful = b"cos\nsystem\n(S'touch " + str(hit).encode() + b"'\ntR(S'__0_0.distcp'\n."
    (folder / ".metadata").write_bytes(harmful)
    assert lineage(settings_of(run / "checkpoints"))
    assert not hit.exists()


@pytest.mark.parametrize("index", [b"junk", b"\x80\x04N.", b"\0" * 100, b"\x80\x04\x8c\x12expert"])
def test_an_index_that_is_none_is_refused(run: Path, index: bytes) -> None:
    (torch_dist(run / "checkpoints") / ".metadata").write_bytes(index)
    assert ".metadata is cut or damaged" in refusal(settings_of(run / "checkpoints"))


def test_a_shard_with_a_group_before_its_number_is_found_by_its_whole_name(run: Path) -> None:
    folder = torch_dist(run / "checkpoints")
    (folder / ".metadata").write_bytes(b"\x80\x04\x8c\x12expert__3_0.distcp\x94.")
    assert "expert__3_0.distcp is missing" in refusal(settings_of(run / "checkpoints"))


def test_a_checkpoint_of_another_format_engine_or_model_is_refused(run: Path) -> None:
    folder = torch_dist(run / "checkpoints")
    manifest(run, model="someone/Else@" + "0" * 40)
    assert "of another model" in refusal(settings_of(run / "checkpoints"))
    manifest(run, engine="local")
    assert "of another model" in refusal(settings_of(run / "checkpoints"))
    (run / "run_manifest.json").write_text("{")
    assert "manifest is damaged" in refusal(settings_of(run / "checkpoints"))
    (run / "run_manifest.json").unlink()
    assert "not complete" in refusal(settings_of(run / "checkpoints", "local"))
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert "names no torch_dist" in refusal(settings_of(run / "checkpoints"))


def test_a_local_checkpoint_that_was_cut_is_refused(run: Path) -> None:
    folder = checkpoint.save(run / "checkpoints", 3, {"w": np.zeros(2, np.float32)})
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1])
    assert "not complete" in refusal(settings_of(run / "checkpoints", "local"))
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("release")
    assert "expected a number" in refusal(settings_of(run / "checkpoints", "local"))


def test_it_imports_no_torch() -> None:
    code = (
        "import recipe.doctor.lineage, sys; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, check=True)


def test_a_conversion_that_was_never_made_is_named_by_its_own_setting(run: Path) -> None:
    text = refusal(settings_of(None, torch_dist_dir=str(run / "none")))
    assert "TORCH_DIST_DIR holds no model" in text
    assert "make prepare" in text
    assert "LOAD_DIR" not in text
