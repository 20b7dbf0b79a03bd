"""The head node waits for the GPUs, as Ray counts them (a stand-in for Ray: one count an answer, and no pause)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recipe.container.image import CONTEXT

RAY = """
import json, pathlib, time
time.sleep = lambda seconds: None
counts = json.loads(pathlib.Path(__file__).with_name("counts.json").read_text())
def init(address, logging_level):
    assert address == "auto"
def cluster_resources():
    gpus = counts.pop(0) if len(counts) > 1 else counts[0]
    return {"CPU": 8.0, "GPU": gpus} if gpus else {"CPU": 8.0}
def nodes():
    alive = {"Alive": True, "NodeManagerAddress": "10.0.0.1"}
    return [alive, {"Alive": False, "NodeManagerAddress": "10.0.0.2"}]
"""


@pytest.fixture
def wait(tmp_path):
    """Runs the program against a Ray that gives these counts one after another."""
    (tmp_path / "ray.py").write_text(RAY)

    def run(counts: list[float], wanted: int, seconds: float) -> subprocess.CompletedProcess[str]:
        (tmp_path / "counts.json").write_text(json.dumps(counts))
        command = [sys.executable, str(CONTEXT / "wait_for_gpus.py"), str(wanted), str(seconds)]
        environment = {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_it_returns_once_the_gpus_are_there_and_tells_each_change(wait):
    done = wait([0.0, 64.0], 64, 60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 of 64 GPUs", "64 of 64 GPUs"]


def test_it_gives_up_and_names_what_it_found_and_where(wait):
    done = wait([56.0], 64, -1)
    assert done.returncode == 1
    assert done.stderr.endswith("expected 64\n  found    56\n  where    10.0.0.1\n")
