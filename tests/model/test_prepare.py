"""Fetching and converting the model: against a hub on the loopback, a stand-in of Miles, torchrun and nvidia-smi."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import REPOSITORY, REVISION, Hub, serving
from rich.console import Console

from recipe.errors import BadInputError, RecipeError
from recipe.model.download import MODEL_TYPE, TEXT_SIZES
from recipe.model.prepare import prepare
from recipe.pins import Model
from recipe.resolve import resolve
from recipe.run.interrupts import Interruption, Interrupts
from recipe.settings import Settings

SECRET = "hf_planted0000000000000000000000000"
MODEL = Model(repository=REPOSITORY, revision=REVISION, reason="a stand-in")
CONFIG = {"model_type": MODEL_TYPE, "text_config": TEXT_SIZES}
SHARD = bytes(range(256)) * 800
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": SHARD,
    "model-00002-of-00002.safetensors": SHARD[::-1],
}
FIRST = "model-00001-of-00002.safetensors"
TORCHRUN = """#!/usr/bin/env python3
import runpy, sys
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CONVERTER = """
import json, os, pathlib, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--save") + 1])
(out / "iter_0000001").mkdir()
(out / "iter_0000001" / "__0_0.distcp").write_text("weights")
print("converting", flush=True)
if os.path.exists("fail"):
    sys.exit("no luck")
if os.path.exists("hang"):
    open("hangs", "w").write(str(os.getpid()))
    time.sleep(60)
(out / "iter_0000001" / ".metadata").write_text("")
(out / "iter_0000001").rename(out / "release")
json.dump({"argv": sys.argv, "env": dict(os.environ)}, open("seen.json", "w"))
(out / "latest_checkpointed_iteration.txt").write_text("release")
"""


class Machine:
    """A place with a hub, and with what the image has for the conversion."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub, self.told = folder, hub, io.StringIO()
        self.miles, self.model, self.converted = folder / "miles", folder / "model", folder / "torch_dist"
        for path, text in {
            self.miles
            / "scripts/models/inkling-small.sh": "MODEL_ARGS=(--num-layers 42 --norm-epsilon 1e-6)\n",
            self.miles / "tools/convert_hf_to_torch_dist.py": CONVERTER,
            folder / "megatron/megatron/core/__init__.py": "",
            folder / "bin/torchrun": TORCHRUN,
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.have_gpus(8)

    def have_gpus(self, count: int) -> None:
        lines = "".join(f"echo 'GPU {number}: H200'\n" for number in range(count))
        (self.folder / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (self.folder / "bin/nvidia-smi").chmod(0o755)

    @property
    def settings(self) -> Settings:
        given = {
            "engine": "miles", "head_ip": "localhost", "tasks_dir": ".", "miles_dir": str(self.miles),
            "megatron_path": str(self.folder / "megatron"), "model_dir": str(self.model),
            "torch_dist_dir": str(self.converted),
        }  # fmt: skip
        return resolve({name: (value, "test") for name, value in given.items()})

    def prepare(self, model: Model = MODEL, **options: object) -> str:
        """Runs the command; what it tells."""
        self.told.seek(0)
        self.told.truncate()
        hub = {"HF_ENDPOINT": self.hub.url, "HF_TOKEN": SECRET, "HF_HUB_CACHE": str(self.folder / "cache")}
        hub |= {"HF_HUB_DISABLE_TELEMETRY": "1"}
        with Interrupts() as interrupts:
            prepare(self.settings, model, hub, Console(file=self.told, width=200), interrupts, **options)
        return self.told.getvalue()

    def is_whole(self) -> bool:
        return all((self.model / name).read_bytes() == data for name, data in FILES.items())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with serving(dict(FILES)) as hub:
        yield Machine(tmp_path, hub)


def test_the_model_is_fetched_and_converted_once(machine: Machine) -> None:
    told = machine.prepare()
    assert machine.is_whole()
    assert "converting" in told
    seen = json.loads((machine.miles / "seen.json").read_text())
    assert seen["argv"][1:] == [
        *("--num-layers", "42", "--norm-epsilon", "1e-6"),
        *("--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size", "1"),
        *("--expert-model-parallel-size", "8", "--expert-tensor-parallel-size", "1", "--sequence-parallel"),
        *("--hf-checkpoint", str(machine.model), "--save", str(machine.converted)),
    ]
    assert seen["env"]["CONVERT_KEEP_PP1"] == seen["env"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert seen["env"]["PYTHONPATH"] == f"{machine.miles}:{machine.folder / 'megatron'}"

    asked = len(machine.hub.requests)
    (machine.miles / "seen.json").unlink()
    told = machine.prepare()
    assert "MODEL_DIR is complete" in told
    assert "TORCH_DIST_DIR is complete" in told
    assert len(machine.hub.requests) == asked
    assert not (machine.miles / "seen.json").exists()


def test_the_token_reaches_the_hub_and_nothing_else(machine: Machine) -> None:
    told = machine.prepare()
    assert machine.hub.tokens == {f"Bearer {SECRET}"}
    assert SECRET not in told
    assert SECRET not in (machine.miles / "seen.json").read_text()
    files = [path for folder in (machine.model, machine.converted) for path in folder.rglob("*")]
    assert not [path for path in files if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_broken_connection_is_taken_up_where_it_broke(machine: Machine) -> None:
    block = 10 << 20  # huggingface_hub writes that much at a time
    machine.hub.files[FIRST] = data = os.urandom(block + 5000)
    machine.hub.cut = {FIRST: block + 77}
    machine.prepare(download_only=True)
    assert (machine.model / FIRST).read_bytes() == data
    assert ("GET", f"/{REPOSITORY}/resolve/{REVISION}/{FIRST}", f"bytes={block}-") in machine.hub.requests


def test_an_interrupted_download_ends_at_once_and_goes_on_later(machine: Machine) -> None:
    machine.hub.stall = {FIRST: 12_345}

    def interrupt() -> None:
        machine.hub.stalled.wait(60)
        # The hub's library notes a file, and so knows it again, only once it is in place.
        noted = machine.model / ".cache/huggingface/download/config.json.metadata"
        while not (noted.exists() and noted.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interruption):
        machine.prepare(download_only=True)
    thread.join()
    assert json.loads((machine.model / ".prepare/files.json").read_text())["files"] is None
    machine.hub.stall, machine.hub.requests = {}, []
    machine.prepare(download_only=True)
    assert machine.is_whole()
    fetched = {path.rpartition("/")[2] for method, path, _ in machine.hub.requests if method == "GET"}
    assert FIRST in fetched
    assert "config.json" not in fetched
    assert not list(machine.model.rglob("*.incomplete"))


@pytest.mark.parametrize("verify", ["quick", "full"])
def test_a_file_that_was_cut_or_lost_later_is_fetched_again(machine: Machine, verify: str) -> None:
    machine.prepare(download_only=True)
    (machine.model / FIRST).write_bytes(SHARD[:-1])
    (machine.model / "tokenizer.json").unlink()
    machine.prepare(download_only=True, verify=verify)
    assert machine.is_whole()


def test_a_corrupt_file_is_found_and_fetched_again_with_full_verification(machine: Machine) -> None:
    machine.prepare(download_only=True)
    (machine.model / FIRST).write_bytes(SHARD[1:] + b"\0")
    (machine.model / "tokenizer.json").write_bytes(b"[]")
    assert "MODEL_DIR is complete" in machine.prepare(download_only=True)
    assert not machine.is_whole()
    machine.prepare(download_only=True, verify="full")
    assert machine.is_whole()


def test_what_the_hub_corrupts_is_not_taken(machine: Machine) -> None:
    machine.hub.lies = {FIRST: SHARD[1:] + b"\0"}
    with pytest.raises(RecipeError, match="1 files are not as the hub lists them"):
        machine.prepare(download_only=True, verify="full")
    assert json.loads((machine.model / ".prepare/files.json").read_text())["files"] is None


def test_a_file_of_another_size_than_listed_is_refused(machine: Machine) -> None:
    machine.hub.lies = {FIRST: SHARD + b"\0"}
    with pytest.raises(RecipeError) as refused:
        machine.prepare(download_only=True)
    assert FIRST in str(refused.value)


def test_a_revision_that_is_not_there_is_named(machine: Machine) -> None:
    with pytest.raises(BadInputError) as refused:
        machine.prepare(Model(repository=REPOSITORY, revision="0" * 40, reason="none"))
    assert "no such revision" in str(refused.value)
    assert not machine.model.exists()


def test_a_hub_that_does_not_answer_is_named(machine: Machine) -> None:
    machine.hub.url = "http://127.0.0.1:1"
    with pytest.raises(RecipeError, match="the hub does not answer"):
        machine.prepare(download_only=True)


def test_a_full_disk_is_told_before_anything_is_fetched(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(map(len, FILES.values())) + 2 * len(SHARD)
    free = [needed - 1]
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=free[0]))
    with pytest.raises(BadInputError, match="too little space") as refused:
        machine.prepare()
    assert f"{needed:,}" in str(refused.value)
    assert not machine.model.exists()
    free[0] = needed - 2 * len(SHARD)
    machine.prepare(download_only=True)


@pytest.mark.parametrize("name", ["model", "torch_dist"])
@pytest.mark.parametrize("kind", ["file", "loop", "link", "another model"])
def test_a_folder_that_cannot_be_used_is_named_without_the_hub(
    machine: Machine, name: str, kind: str
) -> None:
    folder = machine.folder / name
    if kind == "file":
        folder.touch()
    elif kind == "another model":
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    else:
        folder.symlink_to({"loop": folder, "link": machine.folder / "gone"}[kind])
    for options in ({}, {"dry_run": True}):
        with pytest.raises(BadInputError, match=r"can't be written|another model|something else"):
            machine.prepare(**options)
    assert machine.hub.requests == []


def test_a_whole_model_needs_no_folder_to_write_in(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.prepare(download_only=True)
    monkeypatch.setattr(os, "access", lambda path, mode, **_: path != machine.model or not mode & os.W_OK)
    assert "MODEL_DIR is complete" in machine.prepare(download_only=True)
    (machine.model / "tokenizer.json").unlink()
    with pytest.raises(BadInputError, match="MODEL_DIR can't be written"):
        machine.prepare(download_only=True)


def test_only_one_of_the_two_steps_can_be_the_only_one(machine: Machine) -> None:
    with pytest.raises(BadInputError, match="nothing is left"):
        machine.prepare(download_only=True, convert_only=True)


def test_a_dry_run_names_the_checkouts_that_are_missing(machine: Machine) -> None:
    missing = machine.miles / "tools/convert_hf_to_torch_dist.py"
    assert "missing here" not in machine.prepare(dry_run=True)
    missing.unlink()
    assert f"missing here: {missing}" in machine.prepare(dry_run=True)


def test_another_model_is_refused_and_left_alone(machine: Machine) -> None:
    machine.model.mkdir()
    (machine.model / "config.json").write_text(json.dumps(CONFIG | {"model_type": "qwen3"}))
    with pytest.raises(BadInputError, match="another model"):
        machine.prepare(download_only=True)
    (machine.model / "config.json").unlink()
    (machine.model / "pytorch_model.bin").write_text("")
    with pytest.raises(BadInputError, match="holds something else"):
        machine.prepare(download_only=True)
    assert [path.name for path in machine.model.iterdir()] == ["pytorch_model.bin"]


def test_a_config_of_other_sizes_is_refused(machine: Machine) -> None:
    text = TEXT_SIZES | {"num_hidden_layers": 66}
    machine.hub.files["config.json"] = json.dumps(CONFIG | {"text_config": text}).encode()
    with pytest.raises(BadInputError) as refused:
        machine.prepare(download_only=True)
    assert {"expected": "42", "found": "66"}.items() <= refused.value.facts.items()


def test_files_of_another_revision_are_refused(machine: Machine) -> None:
    machine.prepare()
    later = Model(repository=REPOSITORY, revision="1" * 40, reason="a later one")
    for options in ({"download_only": True}, {"convert_only": True}):
        with pytest.raises(BadInputError, match="holds something else"):
            machine.prepare(later, **options)
    assert machine.is_whole()


def test_a_path_that_leads_outside_is_refused(machine: Machine) -> None:
    machine.hub.files["../evil"] = b""
    with pytest.raises(BadInputError, match="outside"):
        machine.prepare(download_only=True)


def test_a_machine_that_cannot_convert_is_refused_before_the_download(machine: Machine) -> None:
    machine.have_gpus(7)
    with pytest.raises(BadInputError) as refused:
        machine.prepare()
    assert "8 (nvidia-smi -L)" in str(refused.value)
    machine.have_gpus(8)
    (machine.miles / "tools/convert_hf_to_torch_dist.py").unlink()
    with pytest.raises(BadInputError, match="checkouts"):
        machine.prepare()
    assert not machine.model.exists()


def test_only_a_whole_model_is_converted(machine: Machine) -> None:
    with pytest.raises(BadInputError, match="MODEL_DIR is not complete"):
        machine.prepare(convert_only=True)


def test_a_failed_conversion_is_told_and_begun_anew(machine: Machine) -> None:
    (machine.miles / "fail").touch()
    with pytest.raises(RecipeError) as failed:
        machine.prepare()
    assert "no luck" in str(failed.value)
    (machine.miles / "fail").unlink()
    machine.prepare(convert_only=True)
    assert (machine.converted / "release/__0_0.distcp").exists()
    assert not (machine.converted / "iter_0000001").exists()


def test_an_interrupted_converter_is_ended_and_begun_anew(machine: Machine) -> None:
    machine.prepare(download_only=True)
    (machine.miles / "hang").touch()

    def interrupt() -> None:
        while not (machine.miles / "hangs").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interruption):
        machine.prepare()
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine.miles / "hangs").read_text()), 0)
    (machine.miles / "hang").unlink()
    machine.prepare()
    assert sorted(path.name for path in (machine.converted / "release").iterdir()) == [
        ".metadata",
        "__0_0.distcp",
    ]


def test_a_half_written_or_damaged_conversion_of_others_is_left_alone(machine: Machine) -> None:
    machine.prepare(download_only=True)
    (machine.converted / "release").mkdir(parents=True)
    (machine.converted / "release/__0_0.distcp").touch()
    with pytest.raises(BadInputError, match="did not write"):
        machine.prepare()
    (machine.converted / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert "TORCH_DIST_DIR is complete" in machine.prepare()
    shutil.rmtree(machine.converted)
    machine.prepare()
    (machine.converted / "release/__0_0.distcp").unlink()
    with pytest.raises(BadInputError, match="damaged conversion"):
        machine.prepare()


@pytest.mark.parametrize("content", ["", "[]", '{"model": "m"}', '{"model": "m", "files": 5}'])
def test_a_damaged_marker_is_told_and_its_folder_left_alone(machine: Machine, content: str) -> None:
    machine.prepare()
    (machine.converted / ".prepare/files.json").write_text(content)
    with pytest.raises(BadInputError, match="holds something else") as refused:
        machine.prepare()
    assert "a damaged files.json" in refused.value.facts["found"]
    assert (machine.converted / "release").is_dir()


def test_a_conversion_that_was_interrupted_at_its_very_end_counts(machine: Machine) -> None:
    machine.prepare()
    marker = machine.converted / ".prepare/files.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"files": None}))
    (machine.miles / "seen.json").unlink()
    assert "TORCH_DIST_DIR is complete" in machine.prepare()
    assert not (machine.miles / "seen.json").exists()


def test_folders_within_one_another_are_refused(machine: Machine) -> None:
    machine.converted = machine.model / "torch_dist"
    with pytest.raises(BadInputError, match="lies in the other"):
        machine.prepare()


def test_a_dry_run_shows_the_command_and_does_nothing(machine: Machine) -> None:
    before = sorted(machine.folder.rglob("*"))
    told = machine.prepare(dry_run=True)
    assert "convert_hf_to_torch_dist.py" in told
    assert "CONVERT_KEEP_PP1=1" in told
    assert machine.hub.requests == []
    assert sorted(machine.folder.rglob("*")) == before
