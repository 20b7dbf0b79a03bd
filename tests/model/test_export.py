"""Exports: weights, names and logits of a tiny Inkling, whatever is interrupted, cut, damaged or missing."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import torch
from hub_stand_in import serving
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny_checkpoints import build, save_base, save_torch_dist, weights
from torch import Tensor
from transformers import InklingForCausalLM, InklingForConditionalGeneration

from recipe.engines.local import checkpoint as local
from recipe.engines.local.model import build_model, tiny_config
from recipe.errors import BadInputError, RecipeError
from recipe.model.card import TOLD, push, require_repository
from recipe.model.export import checkpoint_of, export
from recipe.model.names import TABLE

SHARD = 20_000  # bytes: several tensors in some shards, one in others
IDS = torch.arange(40).reshape(2, 20)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base/, trained/ (what training would make of it, in Hugging Face format) and run/ (the same, of Miles)."""
    folder = tmp_path_factory.mktemp("made")
    save_base(build(0), folder / "base")
    save_base(build(1), folder / "trained")
    save_torch_dist(weights(folder / "trained"), folder / "run")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


def run_export(place: Path) -> str:
    told = io.StringIO()
    console = Console(file=told, width=200)
    export(checkpoint_of(place / "run"), place / "out", place / "base", console, shard_bytes=SHARD)
    return told.getvalue()


def expected(place: Path) -> dict[str, Tensor]:
    base, trained = weights(place / "base"), weights(place / "trained")
    return {name: (trained if name.startswith("model.llm.") else base)[name] for name in base}


def assert_exported(place: Path) -> None:
    found = weights(place / "out")
    assert found.keys() == expected(place).keys()
    for name, tensor in expected(place).items():
        assert torch.equal(found[name], tensor.to(found[name].dtype)), name


def test_every_tensor_has_its_trained_value_or_that_of_the_base(place: Path) -> None:
    run_export(place)
    assert_exported(place)
    base = weights(place / "base")
    other = {n: t.dtype for n, t in weights(place / "out").items() if t.dtype != base[n].dtype}
    # Megatron keeps these in float32.
    assert {name.partition("mlp.")[2] for name in other} == {"gate.bias", "gate.global_scale"}
    assert set(other.values()) == {torch.float32}


def test_the_export_gives_the_trained_model_s_logits(place: Path) -> None:
    run_export(place)
    logits = [
        InklingForConditionalGeneration.from_pretrained(place / name)(input_ids=IDS).logits
        for name in ("out", "trained", "base")
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_the_index_and_the_files_beside_the_weights_are_complete(place: Path) -> None:
    (place / "base" / "LICENSE").write_text("terms")
    (place / "base" / ".cache").mkdir()
    run_export(place)
    index = json.loads((place / "out/model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(place / "out" / file)
    sizes = [tensor.nbytes for tensor in weights(place / "out").values()]
    assert index["metadata"]["total_size"] == sum(sizes)
    assert {"config.json", "tokenizer.json", "LICENSE", "README.md"} <= {
        path.name for path in (place / "out").iterdir()
    }
    assert len(set(index["weight_map"].values())) > 2
    assert not list(place.glob("*.partial"))


def test_each_rule_of_the_table_is_used(made: Path) -> None:
    names = {
        name.replace(".layers.0.", ".layers.{layer}.").replace(".layers.1.", ".layers.{layer}.")
        for name in weights(made / "base")
    }
    assert set(TABLE) <= names


def test_an_interrupted_export_goes_on_with_the_shards_that_are_whole(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    real = save_file

    def interrupted(tensors: dict[str, Tensor], path: Path, **options: object) -> None:
        written.append(Path(path))
        real(tensors, path, **options)
        if len(written) == 3:
            os.truncate(path, Path(path).stat().st_size // 2)
            raise KeyboardInterrupt

    monkeypatch.setattr("recipe.model.export.save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_export(place)
    assert not (place / "out").exists()
    before = len(written)
    assert "2 of " in run_export(place)
    assert_exported(place)
    assert not set(written[:2]) & set(written[before:])
    assert not list((place / "out").glob("*.unfinished"))


def test_a_shard_that_was_cut_meanwhile_is_written_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipe.model.export._write_rest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_export(place)
    monkeypatch.undo()
    shard = min((place / "out.partial").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    run_export(place)
    assert_exported(place)


def test_a_partial_output_of_another_checkpoint_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipe.model.export._write_rest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_export(place)
    monkeypatch.undo()
    shutil.rmtree(place / "run")
    save_torch_dist(weights(place / "base"), place / "run")
    with pytest.raises(BadInputError, match="another export was begun"):
        run_export(place)


def test_an_output_that_is_there_is_left_alone(place: Path) -> None:
    (place / "out").mkdir()
    with pytest.raises(BadInputError, match="there already"):
        run_export(place)
    assert not list((place / "out").iterdir())


def test_a_full_disk_is_told_before_and_while_writing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(BadInputError, match="too little space"):
        run_export(place)
    assert not (place / "out.partial").exists()
    monkeypatch.undo()

    def full(*_arguments: object, **_options: object) -> None:
        raise safetensors.SafetensorError(f"I/O error: {os.strerror(errno.ENOSPC)}")

    monkeypatch.setattr("recipe.model.export.save_file", full)
    with pytest.raises(RecipeError, match="can't be written") as told:
        run_export(place)
    assert "No space left" in str(told.value)
    monkeypatch.undo()
    run_export(place)
    assert_exported(place)


def _file(place: Path) -> Path:
    return max(
        (place / "run/checkpoints/iter_0000002").glob("*.distcp"), key=lambda path: path.stat().st_size
    )


def _cut(place: Path) -> None:
    os.truncate(_file(place), _file(place).stat().st_size - 1)


def _zero(place: Path) -> None:
    _file(place).write_bytes(bytes(_file(place).stat().st_size))


def _cut_metadata(place: Path) -> None:
    path = place / "run/checkpoints/iter_0000002/.metadata"
    os.truncate(path, path.stat().st_size // 2)


def _nan(place: Path) -> None:
    trained = weights(place / "trained")
    trained["model.llm.layers.1.attn.wo_ud.weight"][0, 0] = float("nan")
    save_torch_dist(trained, place / "run")


def _base(place: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    trained = weights(place / "base")
    for path in place.glob("base/model*"):
        path.unlink()
    (place / "base/mtp.safetensors").unlink()
    change(trained)
    save_file(trained, place / "base/model.safetensors", metadata={"format": "pt"})


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is cut": (_cut, "missing or cut"),
    "a file is lost": (lambda place: _file(place).unlink(), "missing or cut"),
    "a file is overwritten": (_zero, "can't be read"),
    "the metadata is cut": (_cut_metadata, "can't be read"),
    "the metadata is lost": (lambda place: next(place.rglob(".metadata")).unlink(), "nothing to export"),
    "weights diverged": (_nan, "NaN"),
    "the base's shard is cut": (lambda place: os.truncate(place / "base/mtp.safetensors", 20), "of the base can't"),
    "the base's shard is lost": (lambda place: (place / "base/mtp.safetensors").unlink(), "of the base can't"),
    "the base's index lies": (
        lambda place: (place / "base/model.safetensors.index.json").write_text(
            '{"weight_map": {"model.x": "mtp.safetensors"}}'
        ),
        "disagree",
    ),
    "the base is no model": (lambda place: shutil.rmtree(place / "base"), "can't be read"),
    "the base has no configuration": (lambda place: (place / "base/config.json").unlink(), "can't be read"),
    "the base's configuration is null": (
        lambda place: (place / "base/config.json").write_text("null"), "can't be read"
    ),
    "the base has no tokenizer": (
        lambda place: [path.unlink() for path in place.glob("base/tokenizer*")], "of the base can't be read"
    ),
    "the base has another width": (
        lambda place: _base(place, lambda all_: all_.update({"model.llm.norm.weight": torch.ones(8)})),
        "another shape",
    ),
    "the base lacks a tensor": (
        lambda place: _base(place, lambda all_: all_.pop("model.llm.norm.weight")), "no place in the base"
    ),
    "the base has more layers": (
        lambda place: _base(place, lambda all_: all_.update({"model.llm.layers.3.attn.wq_du.weight": torch.ones(8)})),
        "no weights for",
    ),
    "the base has an unknown tensor": (
        lambda place: _base(place, lambda all_: all_.update({"model.llm.new": torch.ones(8)})),
        "does not know",
    ),
    "the base has another type": (
        lambda place: _base(
            place, lambda all_: all_.update({"model.llm.norm.weight": torch.ones(16, dtype=torch.float16)})
        ),
        "another type",
    ),
}  # fmt: skip


FOUND_WHILE_WRITING = ("a file is overwritten", "weights diverged")


def test_a_base_of_one_file_serves_as_well(place: Path) -> None:
    _base(place, lambda _all: None)
    run_export(place)
    assert_exported(place)


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_named_and_nothing_is_exported(place: Path, what: str) -> None:
    damage, problem = DAMAGE[what]
    damage(place)
    with pytest.raises(RecipeError, match=problem):
        run_export(place)
    assert not (place / "out").exists()
    assert (place / "out.partial").exists() == (what in FOUND_WHILE_WRITING)


@pytest.mark.parametrize(
    "out", ["base/out", "run/checkpoints/iter_0000002/out", "linked/out", "file/out", "dangling"]
)
def test_a_place_that_an_export_cannot_have_is_refused_before_any_work(place: Path, out: str) -> None:
    (place / "linked").symlink_to("base")
    (place / "file").touch()
    (place / "dangling").symlink_to("gone")
    before = sorted(place.rglob("*"))
    (place / "run/checkpoints/iter_0000002/.metadata").write_text("damaged, which is found later")
    with pytest.raises(BadInputError, match=r"would lie in|can't be written|there already"):
        export(checkpoint_of(place / "run"), place / out, place / "base", Console(file=io.StringIO()))
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("run", ["gone", "file", "empty"])
def test_a_run_that_is_none_is_named_before_the_base(tmp_path: Path, run: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    checkpoint = checkpoint_of(tmp_path / run)
    with pytest.raises(BadInputError) as refused:
        export(checkpoint, tmp_path / "out", tmp_path / "no base", Console(file=io.StringIO()))
    assert str(tmp_path / run) in str(refused.value)
    assert "no base" not in str(refused.value)
    with pytest.raises(BadInputError, match="no such checkpoint"):
        checkpoint_of(tmp_path / run, 2)


@pytest.mark.parametrize("text", ["", "rel", "1 2", "²"])
def test_a_damaged_tracker_file_is_named(place: Path, text: str) -> None:
    (place / "run/checkpoints/latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(BadInputError, match="tracker file is damaged"):
        checkpoint_of(place / "run")


def test_a_checkpoint_is_found_by_its_number(place: Path) -> None:
    assert checkpoint_of(place / "run", 2) == checkpoint_of(place / "run")
    with pytest.raises(BadInputError) as refused:
        checkpoint_of(place / "run", 3)
    assert "iter_0000002" in str(refused.value)


def test_no_code_in_a_checkpoint_is_run(place: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(place / "evil"),)

    (place / "run/checkpoints/iter_0000002/.metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadInputError, match="metadata is damaged"):
        run_export(place)
    assert not (place / "evil").exists()


def test_a_checkpoint_of_the_local_engine_gives_identical_logits(tmp_path: Path) -> None:
    model = build_model(tiny_config(), seed=5)
    arrays = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    local.save(tmp_path / "run/checkpoints", 1, arrays)
    export(
        checkpoint_of(tmp_path / "run"), tmp_path / "out", tmp_path / "no base", Console(file=io.StringIO())
    )
    again = InklingForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation="eager", experts_implementation="grouped_mm"
    )
    card = (tmp_path / "out/README.md").read_text()
    assert "base_model" not in card
    assert "random weights" in card
    ids = torch.randint(0, 1000, (2, 50))
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    os.truncate(tmp_path / "run/checkpoints/iter_0000001/model.safetensors", 1000)
    with pytest.raises(BadInputError, match="not complete"):
        export(checkpoint_of(tmp_path / "run"), tmp_path / "out2", tmp_path, Console(file=io.StringIO()))


def test_a_push_is_private_and_its_card_tells_the_run_and_the_licences(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "started": "then", "ended": "later", "commit": "abc", "pins": {"model": "M@1"},
        "settings": {name: {"value": 1e-5} for name in TOLD} | {"tasks_dir": {"value": "/secret/place"}},
        "prompt_data": {"rows": 7, "sha256": "0f", "path": "/secret/place"},
    }  # fmt: skip
    (place / "run/run_manifest.json").write_text(json.dumps(manifest))
    run_export(place)
    card = (place / "out/README.md").read_text()
    for fact in ("apache-2.0", "Acceptable Use Policy", "| lr | 1e-05 |", "7 rows", "iter_0000002"):
        assert fact in card
    assert "/secret" not in card
    for path in (place / "out").glob("*.safetensors"):
        path.unlink()  # large files go another way, which the stand-in does not have
    with serving({}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        push(place / "out", "someone/model", "hf_planted", endpoint=hub.url)
        assert json.loads(hub.commits[0])["visibility"] == "private"
        assert "README.md" in hub.commits[1]


@pytest.mark.parametrize("name", ["bad/na/me", "/x", "a/..", "a b/c"])
def test_a_name_that_no_repository_can_have_is_refused(name: str) -> None:
    require_repository("someone/model")
    with pytest.raises(BadInputError, match="no such repository"):
        require_repository(name)
