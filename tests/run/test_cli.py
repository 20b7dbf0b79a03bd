"""The command line tells what is wrong with the place it is started in, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "recipe"]


def ended(*words: str, **how: object) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, errors="replace", **how)
    return done.returncode, done.stdout + done.stderr


def test_a_working_directory_that_is_gone_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code, output = ended("smoke", "--dry-run", preexec_fn=lambda: (os.chdir(gone), gone.rmdir()))
    assert (code, output.splitlines()[0]) == (2, "error: the working directory is gone")


def test_a_report_of_a_file_is_refused(recipe, tmp_path):
    (tmp_path / "file").touch()
    code, output = recipe("report", str(tmp_path / "file"))
    assert (code, output.splitlines()[0]) == (2, "error: there is no such run")


def test_an_output_that_cannot_show_every_character_is_no_error(tmp_path):
    (tmp_path / "runs-\u00e9").mkdir()
    code, output = ended(
        "smoke",
        "--dry-run",
        "RUNS_ROOT=runs-\u00e9",
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert code == 0, output


@pytest.mark.parametrize("words", [("harbor", "DRY_RUN=1"), ("export", "run", "out", "DRY_RUN=1")])
def test_a_command_without_a_dry_run_does_nothing_instead(recipe, empty_folder, words):
    code, output = recipe(*words)
    assert (code, output.splitlines()[0]) == (2, "error: this command has no dry run")
    assert list(empty_folder.iterdir()) == []


def test_a_file_that_can_not_be_used_is_named_without_a_traceback(recipe, empty_folder):
    (empty_folder / "tasks").mkdir()
    code, output = recipe("train-camel", "--dry-run", "HEAD_IP=a", f"TASKS_DIR={'x' * 300}")
    assert code == 2
    assert "Traceback" not in output


def test_a_contract_without_sources_is_no_success(recipe, tmp_path):
    code, output = recipe("contract", f"MILES_DIR={tmp_path}/none")
    assert (code, output.splitlines()[0]) == (2, "error: there is no Miles to read")


def test_a_comparison_needs_two_runs(recipe, empty_folder):
    code, output = recipe("compare", "", "")
    assert (code, output.splitlines()[0]) == (2, "error: a run's folder is missing")
    code, output = recipe("compare", "runs/a", "runs/b")
    assert (code, output.splitlines()[-1].split()) == (2, ["found", "runs/a"])


def test_a_dry_run_leaves_out_what_the_start_would(recipe, empty_folder):
    code, output = recipe("smoke", "--dry-run", "SKIP_CHECKS=disk,no such check")
    assert (code, output.splitlines()[0]) == (2, "error: there is no such check")
    words = ("smoke", "--dry-run", "LOAD_DIR=missing")
    assert "LOAD_DIR holds no checkpoints" in recipe(*words)[1]
    assert "LOAD_DIR holds no checkpoints" not in recipe(*words, "SKIP_CHECKS=weights")[1]
