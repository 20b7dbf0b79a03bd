"""A Ray that does not answer is an error, never a wait without end."""

from __future__ import annotations

import socket

import pytest

from recipe.errors import RecipeError
from recipe.job import Job, RayAddress
from recipe.process import LOOPBACK, free_port
from recipe.run import ray_job
from recipe.run.ray_job import RayJob


def test_a_job_is_not_submitted_to_nobody(tmp_path):
    with pytest.raises(RecipeError, match="Ray did not take the job"):
        RayJob.submit(RayAddress(f"http://{LOOPBACK}:{free_port()}"), Job("true"), tmp_path / "log")


def test_a_silent_server_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_job, "ANSWER_SECONDS", 0.2)
    with socket.create_server((LOOPBACK, 0)) as silent:
        address = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        with pytest.raises(RecipeError, match="Ray did not take the job"):
            RayJob.submit(RayAddress(address), Job("true"), tmp_path / "log")


class LateAgent:
    """Refuses a job as Ray does while its agent is not up yet."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def submit_job(self, **_: object) -> str:
        self.refusals -= 1
        if self.refusals >= 0:
            raise RuntimeError("500: No available agent to submit job, please try again later.")
        return "the id"


def test_an_agent_that_is_late_is_waited_for():
    assert ray_job._submit(LateAgent(1), Job("true")) == "the id"


def test_an_agent_that_never_comes_is_given_up(monkeypatch):
    monkeypatch.setattr(ray_job, "AGENT_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="No available agent"):
        ray_job._submit(LateAgent(9), Job("true"))
