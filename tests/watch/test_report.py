"""The report of a run, made from its events alone."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from recipe.errors import BadInputError
from recipe.events import EventLog
from recipe.watch import report

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


def test_it_says_where_things_are_and_what_was_proven(run):
    folder = run("run")
    text = shown(folder)
    for place in ("report/reward.png", "report/metrics.json", "trials", "logs", "run_manifest.md"):
        assert str(folder / place) in text
    assert "checkpoints/iter_0000001" in text
    assert "0.25 in the first rollout and 0.75 in the last (2 in all)" in text
    assert "Not proven" in text


def test_the_reward_curve_is_a_picture(run):
    folder = run("run")
    shown(folder)
    assert (folder / "report" / "reward.png").read_bytes().startswith(b"\x89PNG")


def test_runs_with_equal_metrics_have_equal_digests_however_long_they_took(run):
    first, second = (report.read(run(name, seconds=at)) for name, at in (("a", 1.0), ("b", 9.0)))
    assert first.digest == second.digest
    assert first.digest != report.read(run("c", reward=0.7500001)).digest


def test_the_metrics_file_is_what_the_digest_is_of(run):
    folder = run("run")
    shown(folder)
    result = report.read(folder)
    assert json.loads((folder / "report" / "metrics.json").read_text()) == result.metrics
    assert result.digest in shown(folder)


def test_a_run_that_was_cut_short_is_reported_as_far_as_it_came_and_proves_nothing(run):
    folder = run("run")
    events = folder / "events.jsonl"
    events.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:1]) + b'{"kind": "roll')
    text = shown(folder)
    assert "This run is unfinished: it proves nothing." in text


def test_a_folder_without_a_finished_rollout_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="nothing to report"):
        shown(tmp_path)
