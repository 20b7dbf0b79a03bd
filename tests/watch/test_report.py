"""The report in the terminal and its folder, made from a run's events alone."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path

import pytest
import runs
from rich.console import Console

from recipe.errors import BadInputError
from recipe.events import EventLog
from recipe.watch import report
from recipe.watch.history import read

METRICS = {
    "reward_mean": 0.25,
    "reward_std": 0.43,
    "groups_kept": 4,
    "groups_dropped": {"no_spread": 1, "infrastructure": 2},
    "groups_surplus": 1,
    "turns_mean": 2.25,
    "kl": 0.0123,
    "entropy": 0.045,
    "logprob_difference": 2e-6,
    "grad_norm": 1.5,
}


@pytest.fixture
def run(tmp_path):
    """A run of two rollouts; its events can be written with other times or another reward."""

    def write(name: str, *, seconds: float = 1.0, reward: float = 0.75):
        log = EventLog(tmp_path / name / "events.jsonl")
        for number, mean in enumerate((0.25, reward)):
            metrics = {**METRICS, "reward_mean": mean}
            log.write("rollout", rollout=number, metrics=metrics, seconds={"generate": seconds, "train": 2.0})
        log.write("checkpoint", rollout=1, path="checkpoints/iter_0000001")
        log.write("end", status="succeeded", error=None)
        return tmp_path / name

    return write


def shown(folder, width: int = 80) -> str:
    out = io.StringIO()
    report.show(folder, Console(width=width, file=out))
    return out.getvalue()


def test_a_row_a_rollout_with_everything_in_it_fits_80_columns(run):
    text = shown(run("run"))
    rows = [line for line in text.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert " ".join(rows[0].split()) == "1 0.25±0.43 4/3/1 2.2 0.0123 0.045 2e-06 1.50 1.0 2.0"
    assert len(rows) == 2
    assert max(map(len, rows)) <= 80


def test_a_metric_that_an_engine_does_not_tell_is_a_dash(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("rollout", rollout=0, metrics={"reward_mean": 0.5, "kl": float("nan")}, seconds={})
    assert "1 0.50±- -/-/- - - - - -" in " ".join(shown(tmp_path).split())


def test_it_says_where_things_are_and_what_was_proven(run):
    folder = run("run")
    text = shown(folder)
    for place in ("report/index.html", "report/metrics.json", "trials", "logs", "run_manifest.md"):
        assert str(folder / place) in text
    assert "checkpoints/iter_0000001" in text
    assert "0.25 in the first rollout and 0.75 in the last (2 in all)" in text
    assert "Not proven" in text


def test_the_curves_are_pictures(run):
    folder = run("run")
    shown(folder)
    names = ("reward", "kl", "entropy", "turns", "logprob_difference", "grad_norm", "seconds")
    for name in names:
        assert (folder / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "report" / "response_tokens.png").exists()  # no rollout has this metric


def test_runs_with_equal_metrics_have_equal_digests_however_long_they_took(run):
    first, second = (read(run(name, seconds=at)) for name, at in (("a", 1.0), ("b", 9.0)))
    assert first.digest == second.digest
    assert first.digest != read(run("c", reward=0.7500001)).digest


def test_the_metrics_file_is_what_the_digest_is_of(run):
    folder = run("run")
    text = shown(folder)
    history = read(folder)
    assert json.loads((folder / "report" / "metrics.json").read_text()) == history.metrics
    assert history.digest in text


def test_a_run_that_was_cut_short_is_reported_as_far_as_it_came_and_proves_nothing(run):
    folder = run("run")
    events = folder / "events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:1]) + b'{"kind": "roll')
    assert "This run is unfinished, with 1 finished rollouts: it proves nothing." in shown(folder)


def test_a_run_without_a_rollout_is_reported_too(tmp_path):
    folder = runs.write(tmp_path / "run", [], exit_code=None)
    assert "This run is unfinished, with 0 finished rollouts: it proves nothing." in shown(folder)
    assert "No rollout has finished." in (folder / "report" / "index.html").read_text()


def test_a_run_on_the_cluster_is_not_said_to_be_a_tiny_one(tmp_path):
    text = shown(runs.write(tmp_path / "run", runs.healthy(2), engine="miles"))
    assert "tiny" not in text
    assert "ran on the cluster" in text


def test_a_report_is_not_written_through_a_link(run, tmp_path):
    folder = run("run")
    (tmp_path / "other").mkdir()
    (folder / "report").symlink_to(tmp_path / "other")
    with pytest.raises(BadInputError, match="not written through a link"):
        shown(folder)
    assert not list((tmp_path / "other").iterdir())


def test_a_picture_is_written_whole_or_not_at_all(run, monkeypatch):
    folder = run("run")
    shown(folder)
    before = (folder / "report" / "kl.png").read_bytes()

    def full(self, content):
        if self.name.startswith(".kl.png"):
            Path.write_text(self, "cut")
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, content)

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as failed:
        shown(folder)
    assert failed.value.filename == str(folder / "report" / "kl.png")
    assert (folder / "report" / "kl.png").read_bytes() == before
    assert not list((folder / "report").glob(".*"))


def test_the_report_of_this_folder_has_its_name_and_a_moved_run_its_checkpoint(run, monkeypatch):
    folder = run("run")
    EventLog(folder / "events.jsonl").write("checkpoint", rollout=1, path="/elsewhere/run/checkpoints/iter_3")
    (folder / "checkpoints" / "iter_3").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert "checkpoint    checkpoints/iter_3\n" in shown(Path())
    assert "<h1>run</h1>" in Path("report/index.html").read_text()


def test_no_code_for_the_terminal_is_shown(run):
    folder = run("run")
    EventLog(folder / "events.jsonl").write("checkpoint", rollout=1, path="\x1b[2J\x9b31mx\u202e")
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown(folder))


def test_numbers_of_a_narrow_terminal_are_whole(run):
    assert "…" not in shown(run("run"), width=40).partition("page")[0]
