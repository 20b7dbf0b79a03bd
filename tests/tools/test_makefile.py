"""The front door: its help is complete, and settings pass through it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(tmp_path):
    """`make` on the project's Makefile, in a folder whose bootstrap only tells how it was called."""
    shutil.copy(PROJECT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bootstrap.py").write_text(
        "import os, sys; print(sys.argv[1:], repr(os.environ['MAKE_VARIABLES']), os.environ.get('SEED'))"
    )

    def run(*arguments: str) -> str:
        done = subprocess.run(["make", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_help_is_the_default_and_lists_every_target(make):
    targets = re.findall(r"^([a-z0-9-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 5
    assert re.findall(r"^make ([a-z0-9-]+) +\S", make(), re.MULTILINE) == targets
    assert make("help") == make()


def test_every_target_is_one_call_of_the_bootstrap_unless_it_needs_none_of_our_packages(make):
    for target in re.findall(r"^make ([a-z0-9-]+)", make(), re.MULTILINE):
        if target not in ("help", "flake-check"):
            assert make(target).count("\n") == 1, target


def test_variables_of_the_command_line_reach_the_command_and_are_named_to_it(make):
    assert make("smoke", "SEED=3", "RUN_NAME=a b") == (
        r"""['--extra', 'local', '--', 'recipe', 'smoke'] 'RUN_NAME=a\\ b SEED=3' 3""" + "\n"
    )


def test_several_words_go_through_args_and_other_settings_stay(make):
    told = make("sandboxes", "ARGS=clean --delete", "RUNS_ROOT=/a b", "RUN=runs/a")
    assert "'sandboxes', 'clean', '--delete', '--run', 'runs/a'] " in told
    assert told.split("] ")[1].startswith(r"'RUNS_ROOT=/a\\ b' ")


def test_an_exported_yes_deletes_nothing(make, monkeypatch):
    assert "'delete', '--yes']" in make("gke-delete", "ARGS=--yes")
    monkeypatch.setenv("ARGS", "--yes")
    assert "'delete']" in make("gke-delete")
    assert "'delete']" in make("-e", "gke-delete")


def test_a_smoke_on_the_cluster_needs_none_of_the_local_engines_packages(make):
    assert make("smoke", "ENGINE=miles").startswith("['--', 'recipe', 'smoke']")


def test_words_that_are_no_settings_reach_the_pins_commands_as_options_only(make):
    told = make("pins-bump", "RECIPE=camel", "SOURCE=miles", "REV=1a", "MILES_DIR=/m", "AGENT=camel")
    assert "'pins-bump', '--recipe', 'camel', '--source', 'miles', '--rev', '1a', '--nar-hash', ''" in told
    assert sorted(told.split("] '")[1].split("'")[0].split()) == ["AGENT=camel", "MILES_DIR=/m"]
    assert "['--', 'recipe', 'pins-check', '--online', 'require'] '' None" in make(
        "pins-check", "ONLINE=require"
    )
    assert "['--', 'recipe', 'pins-check'] '' None" in make("pins-check")
    assert """'--rev', "'; echo $HOME" """.strip() in make("pins-bump", "REV='; echo $$HOME")
