"""What Miles says becomes events: each once, whatever surrounds it, cuts it, or starts the reading anew."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "run"))
from miles_standin.checkout.miles.utils import log_forms

from recipe.engines.miles import events
from recipe.engines.miles.events import Translator
from recipe.events import Event, EventLog
from recipe.job import journal
from recipe.resolve import load
from recipe.settings import Settings


@pytest.fixture(scope="module")
def settings() -> Settings:
    given = {"HEAD_IP": "h", "TASKS_DIR": "t", "RUNS_ROOT": "/runs", "RUN_NAME": "r", "NUM_ROLLOUT": "500"}
    return load("train-camel", [f"{name}={value}" for name, value in given.items()])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


def make_run(folder: Path) -> Path:
    for name in ("logs", "launcher", "checkpoints", "dump_details/events"):
        (folder / name).mkdir(parents=True)
    return folder


def lines_of(rollouts: int) -> list[str]:
    """The log of a run, from its first line to its last."""
    lines = ["the stand-in starts", *log_forms.timed("update_weights")]
    for rollout in range(rollouts):
        lines += log_forms.sampled(
            rollout, {"agent/turns_mean": 3.5, "audit/exact": 7.0, "audit/malformed": 1.0}
        )
        lines += log_forms.trained(rollout, reward=0.25 * (rollout % 4))
        lines += log_forms.timed("save_model", "update_weights")
    return lines


def journal_of(rollouts: int) -> list[dict[str, Any]]:
    """Four groups a rollout of two trials each; one is dropped, one is not needed."""
    told: list[dict[str, Any]] = []
    for rollout in range(rollouts):
        told.append({"kind": "phase", "phase": "generate"})
        told += [
            {"kind": "trial", "trial": f"{rollout}-{number}", "task": "t", "state": state}
            for number in range(8)
            for state in ("started", "done")
        ]
        for kept, reason in ((True, None), (True, None), (False, "agent_error")):
            trials = [{"reward": reward, "turns": 3, "response_tokens": 900} for reward in (0.0, 1.0)]
            told.append({"kind": "group", "kept": kept, "reason": reason, "trials": trials})
        told.append({"kind": "phase", "phase": "train"})
        for number, event in enumerate(told):
            event.setdefault("rollout", rollout)
            event.setdefault("time", 1e9 + number)
    return told


def write(run: Path, lines: list[str], told: list[dict[str, Any]]) -> None:
    (run / "logs/train.log").write_text("".join(f"{line}\n" for line in lines))
    journal(run).write_text("".join(json.dumps(event) + "\n" for event in told))


def untimed(found: list[Event]) -> list[Event]:
    """As they compare: NaN is not equal to itself."""
    return [json.loads(json.dumps({**event, "time": 0})) for event in found]


def rollouts_of(found: list[Event]) -> list[Event]:
    return [event for event in found if event["kind"] == "rollout"]


def test_a_rollout_has_every_metric_of_the_log_and_of_its_groups(settings, run):
    write(run, lines_of(1), journal_of(1))
    found = Translator(settings, run).new()
    (rollout,) = rollouts_of(found)
    assert rollout["metrics"] == {
        "reward_mean": 0.0,
        "reward_std": 0.5,
        "groups_kept": 2,
        "groups_dropped": {"agent_error": 1},
        "groups_surplus": 1,
        "trials": 4,
        "turns_mean": 3.0,
        "response_tokens_mean": 900.0,
        "truncated_ratio": 0.125,
        "malformed_ratio": 0.25,
        "kl": 0.0625,
        "entropy": 0.4375,
        "logprob_difference": 0.015625,
        "tis_mean": 1.0,
        "clipped_ratio": 0.0,
        "grad_norm": 0.75,
        "loss": -0.0125,
        "learning_rate": 1e-05,
        "valid_step": True,
        "tokens_per_second": 2.0,
        "audit/exact": 7.0,
        "audit/malformed": 1.0,
    }
    assert rollout["seconds"] == {"generate": 1800.25, "train": 950.5, "update_weights": 61.0}
    assert rollout["trials"] == {"agent/turns_mean": 3.5}
    phases = [(event["phase"], event["rollout"]) for event in found if event["kind"] == "phase"]
    assert sorted(phases) == sorted(
        [("generate", 0), ("train", 0), ("update_weights", 0), ("save", 0), ("update_weights", 1)]
    )
    assert sum(event["kind"] == "trial" for event in found) == 16


def test_without_a_journal_the_log_says_what_it_knows(settings, run):
    write(run, lines_of(1), [])
    (rollout,) = rollouts_of(Translator(settings, run).new())
    metrics = rollout["metrics"]
    assert (metrics["reward_mean"], metrics["turns_mean"], metrics["response_tokens_mean"]) == (
        0.0,
        3.5,
        812.5,
    )
    assert metrics["groups_dropped"] == {"agent_error": 2}
    assert not metrics.keys() & {"groups_kept", "reward_std", "trials"}


@pytest.mark.parametrize(
    ("said", "valid"),
    [({"valid": False}, False), ({"grad_norm": "nan"}, False), ({"grad_norm": "inf"}, False), ({}, True)],
)
def test_a_skipped_step_is_told(settings, run, said, valid):
    write(run, log_forms.sampled(0, {}) + log_forms.trained(0, **said), [])
    (rollout,) = rollouts_of(Translator(settings, run).new())
    assert rollout["metrics"]["valid_step"] is valid


def test_a_rollout_is_told_once_it_is_complete_and_a_gap_once_the_next_one_is(settings, run):
    whole = log_forms.sampled(0, {}) + log_forms.trained(0)
    gap = [line for line in log_forms.trained(1) if "perf 1" not in line]
    translator = Translator(settings, run)
    for more, told in ((whole[:-1], []), (whole[-1:], [0]), (log_forms.sampled(1, {}) + gap, [])):
        with (run / "logs/train.log").open("a") as log:
            log.writelines(f"{line}\n" for line in more)
        assert [event["rollout"] for event in rollouts_of(translator.new())] == told
    with (run / "logs/train.log").open("a") as log:
        log.writelines(f"{line}\n" for line in log_forms.sampled(2, {}) + log_forms.trained(2))
    found = rollouts_of(translator.new())
    assert [event["rollout"] for event in found] == [1, 2]
    assert "train" not in found[0]["seconds"]


def test_at_the_end_a_step_without_its_times_is_told_and_an_unfinished_rollout_is_not(settings, run):
    lines = log_forms.sampled(0, {}) + [line for line in log_forms.trained(0) if "perf 0" not in line]
    write(run, lines + log_forms.sampled(1, {}), [])
    translator = Translator(settings, run)
    assert rollouts_of(translator.new()) == []
    assert [event["rollout"] for event in rollouts_of(translator.new(last=True))] == [0]


def dump(run: Path, metrics: dict[str, Any]) -> None:
    event = {"type": "metric", "timestamp": "2026-08-07T10:20:30Z", "rollout_id": None, "metrics": metrics}
    with (run / "dump_details/events/actor_cell0_rank63.jsonl").open("a") as file:
        file.write(json.dumps(event, separators=(",", ":")) + "\n")


def test_dumps_make_up_for_a_lost_log(settings, run):
    dump(run, {"rollout/step": 3, "perf/rollout_time": 2.0, "rollout/truncated_ratio": None})
    dump(run, {"rollout/step": 3, "rollout/raw_reward": 0.5, "perf/train_time": 1.0})
    dump(run, {"train/step": 3, "train/grad_norm": None, "train/loss": 0.5})
    (run / "dump_details/events/odd.jsonl").write_bytes(
        b'{"type": "metric"}\n{"type": "metric", "metrics": 5}\n"metric"\n\xff"metric"\n'
        b'{"type": "metric", "metrics": {"train/step": "x"}}\n{"type": "metric", "metrics": {"train/step": 1e99}}\n'
    )
    (rollout,) = rollouts_of(Translator(settings, run).new())
    assert rollout["rollout"] == 3
    assert rollout["metrics"]["valid_step"] is False
    assert math.isnan(rollout["metrics"]["truncated_ratio"])


def test_checkpoints_are_told_when_megatron_has_named_them(settings, run):
    translator = Translator(settings, run)
    for number in (1, 3, 5):
        (run / f"checkpoints/iter_{number:07d}").mkdir()
    (run / "checkpoints/iter_of_somebody").mkdir()
    assert translator.new() == []
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text("3")
    assert [(event["kind"], event["rollout"]) for event in translator.new()] == [
        ("checkpoint", 1),
        ("checkpoint", 3),
    ]
    assert translator.new() == []


def test_a_line_that_no_logger_of_miles_wrote_is_none_of_its_tables(settings, run):
    table = "perf 0: {'rollout/raw_reward': 1.0, 'train/grad_norm': 1, 'perf/train_time': 1, 'perf/rollout_time': 1}"
    said_by_a_policy = [table, f"(Worker pid=1) {table}", f"[x] {table}", f"message: {table}"]
    write(run, said_by_a_policy, [])
    assert Translator(settings, run).new(last=True) == []
    write(run, [log_forms.logged("rollout_manager", "metrics.py:89", table)], [])
    assert len(rollouts_of(Translator(settings, run).new())) == 1


def test_rollouts_that_the_run_does_not_have_are_none(settings, run):
    write(run, log_forms.sampled(500, {}) + log_forms.trained(500), [])
    assert Translator(settings, run).new(last=True) == []


@pytest.mark.parametrize("again", ["whole", "cut in the middle", "another file", "shorter, then whole"])
def test_a_log_that_is_written_anew_tells_nothing_twice_and_goes_on(settings, run, again):
    log, lines = run / "logs/train.log", lines_of(6)
    write(run, lines[:40], [])
    translator = Translator(settings, run)
    found = translator.new()
    if again == "cut in the middle":
        lines = [*lines[:5], "[... 9 characters of this log were cut here ...]", *lines[30:]]
    if again == "another file":
        log.rename(log.with_name("train.log.1"))
    if again == "shorter, then whole":
        write(run, lines[:3], [])
        found += translator.new()
    write(run, lines, [])
    found += translator.new(last=True)
    whole = make_run(run / "whole")
    write(whole, lines_of(6), [])
    assert untimed(rollouts_of(found)) == untimed(rollouts_of(Translator(settings, whole).new(last=True)))


@given(cut=st.floats(0, 1), restart=st.booleans())
def test_wherever_the_reading_is_cut_and_started_anew_the_events_are_the_same(settings, cut, restart):
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = make_run(Path(folder) / "a"), make_run(Path(folder) / "b")
        write(whole, lines_of(3), journal_of(3))
        expected = Translator(settings, whole).new(last=True)
        log, told = (whole / "logs/train.log").read_bytes(), journal(whole).read_bytes()
        translator = Translator(settings, parts)
        found: list[Event] = []
        for share in (cut, 1):
            # The journal is ahead: groups are written before Miles tells of their rollout.
            journal(parts).write_bytes(told[: int(len(told) * min(1, share + 0.34))])
            (parts / "logs/train.log").write_bytes(log[: int(len(log) * share)])
            if restart:
                events_file = EventLog(parts / "events.jsonl")
                for event in found:
                    events_file.append(event)
                translator = Translator(settings, parts, [json.loads(json.dumps(event)) for event in found])
            found += translator.new(last=share == 1)

    def sorted_events(events: list[Event]) -> list[str]:
        return sorted(json.dumps(event, sort_keys=True) for event in untimed(events))

    assert sorted_events(found) == sorted_events(expected)
    assert rollouts_of(untimed(found)) == rollouts_of(untimed(expected))


def test_hundreds_of_rollouts_are_read_once_and_what_is_new_costs_only_itself(settings, run, monkeypatch):
    taken: list[bytes] = []
    message = events._message
    monkeypatch.setattr(events, "_message", lambda line: taken.append(line) or message(line))
    lines = lines_of(400)
    write(run, lines, [])
    translator = Translator(settings, run)
    assert len(rollouts_of(translator.new())) == 400
    assert len(taken) == len(lines)
    taken.clear()
    with (run / "logs/train.log").open("a") as log:
        log.write("one more\n")
    translator.new()
    assert taken == [b"one more"]
