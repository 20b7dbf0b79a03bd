"""The doctor on a real Ray of three nodes: what it asks comes from each of them, and nothing stays behind."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor.raylets import HEAD, gpu_tool, may_hide, raylets

TOKEN = secrets.token_hex(32)
# Ray reads how to show itself once in a process.
DOCTOR = """
import json, sys
from recipe.doctor.report import report
from recipe.resolve import load

options = json.loads(sys.argv[1])
sys.exit(report(load("train-camel", sys.argv[2:]), as_json=True, **options))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[tuple[int, Path | None]]:
    """The port of its dashboard, and a folder that the third node, where we may mount, has not in common.

    That node also has another driver, and seven GPUs.
    """
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "unshared").mkdir()
    hidden = folder / "unshared" if may_hide(folder / "unshared") else None
    sound = [gpu_tool(folder / f"tools{number}") for number in (1, 2)]
    with raylets(
        folder, [*sound, gpu_tool(folder / "tools3", driver="550.1", count=7)], TOKEN, hidden
    ) as port:
        yield port, hidden


@pytest.fixture
def doctor(cluster, empty_folder):
    """`doctor(words, **options)`: the exit code, and each result by its check."""
    model = empty_folder / "models" / "Inkling-Small"
    model.mkdir(parents=True)
    (model / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1000}}')
    runs = empty_folder / "runs"
    runs.mkdir()

    def doctor(*words: str, **options: Any) -> tuple[int, dict[str, Any]]:
        given = [f"HEAD_IP={HEAD}", f"RAY_DASHBOARD_PORT={cluster[0]}", "TASKS_DIR=t", f"RUNS_ROOT={runs}"]
        argv = [
            sys.executable,
            "-c",
            DOCTOR,
            json.dumps(options),
            *given,
            f"MODEL_ROOT={model.parent}",
            *words,
        ]
        env = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert list(runs.iterdir()) == []
        assert done.stdout, done.stderr
        return done.returncode, {one["check"]: one for one in json.loads(done.stdout)["results"]}

    return doctor


def test_every_node_is_asked_and_the_odd_one_is_named(doctor):
    code, told = doctor(skip=["leftovers"])
    assert code == 1
    everywhere = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert {name: one["bad"] for name, one in told.items() if one["bad"] == ["127.0.0.4"]}.keys() == {
        "driver",
        "GPUs",
    }
    assert told["driver"]["cells"] == {
        "127.0.0.2": "570.86.15",
        "127.0.0.3": "570.86.15",
        "127.0.0.4": "550.1",
    }
    assert (told["nodes"]["verdict"], list(told["nodes"]["cells"])) == ("FAIL", everywhere)
    for name in (
        "versions",
        "packages",
        "free GPUs",
        "clock",
        "route to the head",
        "shared RUNS_ROOT",
    ):
        assert (told[name]["verdict"], list(told[name]["cells"])) == ("ok", everywhere), told[name]
    assert list(told["checkpoints' space"]["cells"]) == ["127.0.0.2"]
    assert told["router"]["verdict"] == "skip"
    assert "missing" in told["models"]["found"]
    assert "raw completions are parsed" in told["features"]["found"]
    assert told["leftovers"]["found"] == "as asked"


def test_what_was_asked_for_alone_decides(doctor):
    code, told = doctor(only=["clock", "free GPUs"])
    assert (code, list(told)) == (0, ["free GPUs", "clock"])


def test_a_folder_that_can_not_be_written_is_found(doctor):
    code, told = doctor("RUNS_ROOT=/proc/runs", only=["shared RUNS_ROOT"])
    assert (code, told["shared RUNS_ROOT"]["cells"]["127.0.0.3"]) == (1, "the head can't write there")


def test_a_node_with_a_folder_of_its_own_is_found(doctor, cluster):
    hidden = cluster[1]
    if hidden is None:
        pytest.skip("this user may not mount")
    code, told = doctor(f"RUNS_ROOT={hidden}", only=["shared RUNS_ROOT"])
    assert (code, told["shared RUNS_ROOT"]["bad"]) == (1, ["127.0.0.4"])
    assert "No such file or directory" in told["shared RUNS_ROOT"]["found"]
    assert list(hidden.iterdir()) == []
