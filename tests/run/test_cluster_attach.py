"""What can't be picked up is refused before anything is asked or started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from recipe.errors import BadInputError
from recipe.resolve import load, restore
from recipe.run.attach import _records, attach
from recipe.run.folder import RunFolder
from recipe.run.interrupts import Interrupts


def make_run(folder: Path, *, engine: str = "miles", ended: str | None = None) -> Path:
    (folder / "launcher").mkdir()
    (folder / "run_manifest.json").write_text(json.dumps({"ended": ended, "exit_code": ended and 1}))
    (folder / "launcher/job.json").write_text(json.dumps({"job_id": "x", "settings": {"engine": engine}}))
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


def test_a_folder_that_is_no_run(tmp_path):
    refused(tmp_path, "there is no run to pick up")


def test_a_run_that_never_submitted_a_job(tmp_path):
    (make_run(tmp_path) / "launcher/job.json").unlink()
    refused(tmp_path, "there is no run to pick up")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launcher/job.json", "null"),
        ("launcher/job.json", "{}"),
        ("launcher/job.json", '{"settings": 5, "job_id": "a"}'),
        ("run_manifest.json", "[]"),
        ("run_manifest.json", "{}"),
        ("run_manifest.json", "{"),
    ],
)
def test_records_that_are_none_are_refused_without_a_traceback(tmp_path, name, text):
    (tmp_path / "launcher").mkdir()
    records = {
        "launcher/job.json": '{"settings": {"engine": "miles"}, "job_id": "a"}',
        "run_manifest.json": '{"ended": null, "exit_code": null}',
    }
    for path, content in (records | {name: text}).items():
        (tmp_path / path).write_text(content)
    with pytest.raises(BadInputError, match="there is no run to pick up"):
        _records(RunFolder(tmp_path))


def test_settings_of_another_version_are_refused_by_their_names(empty_folder):
    with pytest.raises(BadInputError, match=r"not those of this version(?s:.*)OF_THE_FUTURE"):
        restore(load("train-camel", ["HEAD_IP=a", "TASKS_DIR=t"]).public() | {"of_the_future": 1})
