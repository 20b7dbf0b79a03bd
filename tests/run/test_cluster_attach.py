"""What can't be picked up is refused before anything is asked or started."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from recipe.errors import BadInputError
from recipe.resolve import load, restore
from recipe.run.attach import _records, attach
from recipe.run.folder import RunFolder
from recipe.run.interrupts import Interrupts


def make_run(folder: Path, *, engine: str = "miles", ended: str | None = None) -> Path:
    (folder / "launcher").mkdir(parents=True)
    (folder / "run_manifest.json").write_text(json.dumps({"ended": ended, "exit_code": ended and 1}))
    record = {"job_id": "x", "settings": {"engine": engine, "env_file": ".env"}}
    (folder / "launcher/job.json").write_text(json.dumps(record))
    return folder


def refused(folder: Path, told: str) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(BadInputError, match=told):
        attach(folder, Console(), Interrupts())
    assert sorted(folder.rglob("*")) == before


def test_a_run_that_has_ended(tmp_path):
    refused(make_run(tmp_path, ended="2026-01-01"), r"the run has ended\n  found    2026-01-01, exit code 1")


def test_a_run_on_one_machine(tmp_path):
    refused(make_run(tmp_path, engine="local"), "ends with its launcher")


def test_a_run_that_never_submitted_a_job(tmp_path):
    (make_run(tmp_path) / "launcher/job.json").unlink()
    refused(tmp_path, r"no run to pick up(?s:.*)launcher/job\.json: No such file")


@pytest.mark.parametrize(
    "kind", ["nothing", "empty folder", "empty file", "binary", "loop", "pipe", "locked"]
)
def test_a_wrong_path_is_told_in_plain_words(tmp_path, monkeypatch, kind):
    path = tmp_path / "run"
    if kind == "locked":  # to root nothing is
        make_run(path)
        read = Path.read_text
        denied = PermissionError(errno.EACCES, "Permission denied", str(path / "run_manifest.json"))
        monkeypatch.setattr(
            Path, "read_text", lambda self, *a: throw(denied) if path in self.parents else read(self)
        )
    make = {
        "empty folder": path.mkdir,
        "empty file": path.touch,
        "binary": lambda: path.write_bytes(bytes(range(256))),
        "loop": lambda: path.symlink_to(path),
        "pipe": lambda: os.mkfifo(path),
    }
    make.get(kind, list)()
    with pytest.raises(BadInputError, match="there is no run to pick up") as failed:
        attach(path, Console(), Interrupts())
    told = failed.value.facts
    assert set(told) == {"expected", "found", "run"}
    assert told["found"].startswith(f"{path}/run_manifest.json: ")
    assert "Error" not in told["found"]
    assert "Errno" not in told["found"]


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launcher/job.json", "null"),
        ("launcher/job.json", "{}"),
        ("launcher/job.json", '{"settings": 5, "job_id": "a"}'),
        ("launcher/job.json", '{"settings": {"engine": "miles"}, "job_id": "a"}'),
        ("launcher/job.json", '{"settings": {"engine": "miles", "env_file": 5}, "job_id": "a"}'),
        ("launcher/job.json", "[" * 100_000),
        ("launcher/job.json", ""),
        ("launcher/job.json", "\x00\x01"),
        ("run_manifest.json", ""),
        ("run_manifest.json", "[]"),
        ("run_manifest.json", "{}"),
        ("run_manifest.json", "{"),
    ],
)
def test_records_that_are_none_are_refused_without_a_traceback(tmp_path, name, text):
    (tmp_path / "launcher").mkdir()
    records = {
        "launcher/job.json": '{"settings": {"engine": "miles", "env_file": ".env"}, "job_id": "a"}',
        "run_manifest.json": '{"ended": null, "exit_code": null}',
    }
    for path, content in (records | {name: text}).items():
        (tmp_path / path).write_text(content)
    with pytest.raises(BadInputError, match="there is no run to pick up"):
        _records(RunFolder(tmp_path))


def test_settings_of_another_version_are_refused_by_their_names(empty_folder):
    with pytest.raises(BadInputError, match=r"not those of this version(?s:.*)OF_THE_FUTURE"):
        restore(load("train-camel", ["HEAD_IP=a", "TASKS_DIR=t"]).public() | {"of_the_future": 1})
