"""A job on a Ray that outlives the run: stopped, or told to be left; its log is never shortened or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray.job_submission import JobStatus

from recipe.errors import RecipeError
from recipe.job import Job, RayAddress
from recipe.run import ray_job
from recipe.run.ray_job import LeftJobError, RayJob


class Ray:
    """Stands in for Ray's client: `status` None is a Ray that does not answer."""

    def __init__(
        self, status: JobStatus | None = JobStatus.RUNNING, log: str = "", *, stops: bool = True
    ) -> None:
        self.status, self.log, self.stops = status, log, stops
        self.stopped: list[str] = []

    def get_job_info(self, _: str) -> Any:
        if self.status is None:
            raise ConnectionError("no route")
        return type("Info", (), {"status": self.status, "driver_exit_code": 1})

    def get_job_logs(self, _: str) -> str:
        return self.log

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        raise ConnectionError("no route")
        yield ""

    def stop_job(self, job_id: str) -> None:
        self.stopped.append(job_id)
        if self.stops:
            self.status = JobStatus.STOPPED


def job_on(ray: Ray, tmp_path, *, patience: float = 60.0) -> RayJob:
    return RayJob(ray, "run-0123abcd", tmp_path / "log", patience)


def test_a_job_that_runs_is_stopped_by_its_id_and_its_log_kept(tmp_path):
    ray = Ray(log="all of it")
    job_on(ray, tmp_path).stop()
    assert ray.stopped == ["run-0123abcd"]
    assert (tmp_path / "log").read_text() == "all of it"


def test_a_job_that_ended_is_not_stopped(tmp_path):
    ray = Ray(JobStatus.SUCCEEDED)
    job_on(ray, tmp_path).stop()
    assert ray.stopped == []


def test_a_job_that_ray_does_not_end_is_told_to_be_left(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_job, "STOP_SECONDS", 0.2)
    with pytest.raises(LeftJobError, match="could not be stopped"):
        job_on(Ray(stops=False), tmp_path).stop()


def test_a_job_that_can_not_be_asked_about_is_told_to_be_left(tmp_path):
    ray = Ray()
    job = job_on(ray, tmp_path)
    ray.status = None
    assert not job.ended
    with pytest.raises(LeftJobError, match=r"could not be stopped(?s:.*)no route"):
        job.stop()


def test_a_job_that_was_given_up_is_not_stopped_when_ray_is_back(tmp_path):
    ray = Ray()
    job = job_on(ray, tmp_path, patience=1e-9)
    ray.status = None
    with pytest.raises(LeftJobError, match="Ray no longer answers"):
        assert job.ended
    ray.status = JobStatus.RUNNING
    job.stop()
    assert ray.stopped == []


@pytest.mark.parametrize(
    ("error", "left"), [(ConnectionError("cut"), True), (RuntimeError("500: no"), False)]
)
def test_a_job_that_ray_may_have_taken_is_told_to_be_left(tmp_path, monkeypatch, error, left):
    def submit_job(**_: object) -> str:
        raise error

    ray = Ray()
    ray.submit_job = submit_job
    monkeypatch.setattr(ray_job, "_client", lambda _: ray)
    with pytest.raises(RecipeError, match="Ray did not take the job") as raised:
        RayJob.submit(
            RayAddress("http://h", patience=60.0), Job("true"), tmp_path / "log", job_id="run-0123abcd"
        )
    assert isinstance(raised.value, LeftJobError) == left


def test_a_ray_of_the_runs_own_leaves_no_job(tmp_path):
    ray = Ray()
    job = job_on(ray, tmp_path, patience=0.0)
    ray.status = None
    with pytest.raises(RecipeError, match="Ray no longer answers") as raised:
        assert job.ended
    assert not isinstance(raised.value, LeftJobError)
    job.stop()


@pytest.mark.parametrize(("told", "kept"), [("", "what was followed"), ("all of it", "all of it")])
def test_the_copy_of_the_log_is_not_replaced_by_nothing(tmp_path, told, kept):
    (tmp_path / "log").write_text("what was followed")
    assert job_on(Ray(JobStatus.SUCCEEDED, told), tmp_path).save_log() == kept


def test_what_is_in_the_log_is_counted_as_ray_counts_it(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_bytes("10 %\r\n20 %\rä".encode()[:-1])
    monkeypatch.setattr(ray_job, "_client", lambda _: Ray())
    assert RayJob.find(RayAddress("http://h"), "run-0123abcd", log)._written == len("10 %\r\n20 %\rä")


def test_the_reason_of_a_failed_job_is_our_plugins_error_where_there_is_one(tmp_path):
    told = "(Manager pid=1) recipe.plugins.filters.TooManyDroppedGroupsError: 6 groups in a row"
    failed = job_on(Ray(JobStatus.FAILED, log=f"{told}\n" + "a worker warns\n" * 30), tmp_path).failure()
    assert failed.facts["found"] == "TooManyDroppedGroupsError: 6 groups in a row"
    other = job_on(Ray(JobStatus.FAILED, log="line\n" * 30 + "the last\n"), tmp_path).failure()
    assert str(other.facts["found"]).endswith("line\nthe last")
