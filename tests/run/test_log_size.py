"""Logs are capped: what is cut is said, the ends stay, and what is counted of a job's log goes on being right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_cluster_job import Ray

from recipe.run import log_size, ray_job
from recipe.run.log_size import characters, cut_middle
from recipe.run.ray_job import RayJob


def numbered(lines: int) -> str:
    return "".join(f"line {number} ä\n" for number in range(lines))


def test_the_first_and_the_last_quarter_stay_and_a_line_says_what_is_gone(tmp_path):
    log, text = tmp_path / "log", numbered(100)
    log.write_text(text)
    assert cut_middle(log, limit=800)
    kept = log.read_text().splitlines()
    assert log.stat().st_size <= 500
    assert (kept[0], kept[-1]) == ("line 0 ä", "line 99 ä")
    (told,) = [line for line in kept if "were cut here" in line]
    assert set(kept) - {told} <= set(text.splitlines())
    assert characters(log.read_bytes()) == len(text)


def test_cutting_again_and_again_keeps_count(tmp_path):
    log, text = tmp_path / "log", ""
    for number in range(40):
        more = numbered(20) + f"{number}\n"
        text += more
        with log.open("a") as file:
            file.write(more)
        cut_middle(log, limit=800)
        assert log.stat().st_size <= 800
        assert characters(log.read_bytes()) == len(text)
    assert log.read_text().count("were cut here") == 1


@pytest.mark.parametrize("text", ["", "short\n", "x" * 800])
def test_a_log_within_the_limit_stays_as_it_is(tmp_path, text):
    log = tmp_path / "log"
    log.write_text(text)
    assert not cut_middle(log, limit=800)
    assert log.read_text() == text
    assert not cut_middle(tmp_path / "none", limit=800)


def test_a_line_that_never_ends_is_cut_as_well(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 5000)
    assert cut_middle(log, limit=800)
    assert log.stat().st_size < 500
    assert characters(log.read_bytes()) == 5000


def test_a_program_that_writes_meanwhile_goes_on_at_the_end(tmp_path):
    log = tmp_path / "log"
    code = "import sys\nfor line in sys.stdin: print('said', line, end='', flush=True)"
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=sink, text=True
        ) as writer,
    ):
        writer.stdin.write("x" * 2000 + "\n")
        writer.stdin.flush()
        while not log.stat().st_size > 2000:
            pass
        assert cut_middle(log, limit=800)
        writer.stdin.write("the end\n")
        writer.stdin.close()
        writer.wait(timeout=10)
    assert log.read_bytes().endswith(b"said the end\n")
    assert b"\0" not in log.read_bytes()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(log_size, "LIMIT_BYTES", 800)
    return 800


class Talking(Ray):
    """A Ray whose web socket says the whole log, from its start, as often as it is asked."""

    async def tail_job_logs(self, _: str):
        for start in range(0, len(self.log), 50):
            yield self.log[start : start + 50]


def test_a_jobs_log_is_capped_while_it_is_copied_and_found_again_without_a_line_too_few_or_too_many(
    tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "log"
    ray = Talking(ray_job.JobStatus.SUCCEEDED, numbered(100))
    job = RayJob(ray, "run-0123abcd", log, 60.0)
    job._copier.join(timeout=10)
    assert log.stat().st_size <= small
    assert job.save_log().endswith("line 99 ä\n")
    assert log.stat().st_size <= small

    monkeypatch.setattr(ray_job, "_client", lambda _: ray)
    ray.log += "one more\n"
    again = RayJob.find(ray_job.RayAddress("http://h"), "run-0123abcd", log)
    again._copier.join(timeout=10)
    assert again.save_log().endswith("line 99 ä\none more\n")
    assert log.read_text().count("line 99") == 1


def test_a_short_log_is_written_whole_at_the_end(tmp_path, small):
    job = RayJob(Ray(ray_job.JobStatus.SUCCEEDED, "all of it"), "run-0123abcd", tmp_path / "log", 60.0)
    assert job.save_log() == "all of it"
