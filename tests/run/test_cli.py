"""The command line tells what is wrong with the place it is started in, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "recipe"]


def ended(*words: str, **how: object) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, errors="replace", **how)
    return done.returncode, done.stdout + done.stderr


def test_a_working_directory_that_is_gone_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code, output = ended("smoke", "--dry-run", preexec_fn=lambda: (os.chdir(gone), gone.rmdir()))
    assert (code, output.splitlines()[0]) == (2, "error: the working directory is gone")


def test_a_report_of_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    code, output = ended("report", str(tmp_path / "file"))
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
