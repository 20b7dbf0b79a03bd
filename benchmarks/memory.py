"""The memory of the local job's actors beside the figures of `make plan`."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from benchmarks.measure import Findings, Row
from recipe.doctor import plan
from recipe.errors import RecipeError
from recipe.given import child_environment
from recipe.resolve import load


def run(*, quick: bool) -> Findings:  # noqa: ARG001 - one round tells
    """The growth of trainer and policy over what Python and its libraries take, in MB; planned: the other."""
    planned = {one.name: one.value for table in plan.build(load("smoke")).figures.values() for one in table}
    rows = []
    for process in ("trainer", "policy"):
        # The weights that Ray holds are not there.
        without = planned[f"{process}: libraries"] + planned.get(f"{process}: weights received", 0.0)
        rows.append(Row(f"{process}'s memory", "MB", _measured(process), planned[process] - without))
    return Findings("memory", rows=rows, against="planned", notes=["within 15 % of each other is the goal"])


def _measured(process: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.actor_memory", process, folder],
            capture_output=True,
            text=True,
            env=child_environment(),
            check=False,
        )
    if done.returncode:
        raise RecipeError("the actor's memory could not be measured", found=done.stderr[-500:])
    return float(done.stdout) / 1e6
