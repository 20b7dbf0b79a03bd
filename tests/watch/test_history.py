"""The read model: what events add up to, in whatever order and state they come."""

from __future__ import annotations

import json
import os

import pytest
from runs import START, healthy, write

from recipe.errors import BadInputError
from recipe.events import parse
from recipe.watch.history import History, latest_run, manifest_of, read, require_run, settings_of


def taken(*events):
    history = History()
    for number, event in enumerate(events):
        if sound := parse(json.dumps({"time": START + number, **event}).encode()):
            history.take(sound)
    return history


def phase(name, rollout=None):
    return {"kind": "phase", "phase": name, "rollout": rollout}


def trial(name, state, rollout, **more):
    return {"kind": "trial", "trial": name, "state": state, "rollout": rollout, **more}


def rollout(number, **metrics):
    return {
        "kind": "rollout",
        "rollout": number,
        "metrics": metrics,
        "seconds": {"train": 2.0},
        "trials": {"a": 1},
    }


def test_a_whole_run_adds_up(tmp_path):
    history = read(write(tmp_path / "run", healthy(4)))
    assert (len(history.rollouts), len(history.groups), history.status) == (4, 4 * 16, "succeeded")
    assert (history.open_trials, history.finished_trials, history.current_groups) == ({}, [], [])
    assert history.checkpoints == ["checkpoints/iter_0000003"]
    assert (history.sandboxes.created, history.sandboxes.open) == (640, 0)
    assert history.sandboxes.hours == pytest.approx(640 * 900 / 3600)


def test_a_run_without_events_is_an_empty_history(tmp_path):
    history = read(tmp_path)
    assert (history.rollouts, history.phase, history.status, history.started) == ([], None, "unfinished", 0.0)


def test_trials_are_those_of_the_rollout_under_way():
    history = taken(
        trial("a", "started", 0),
        trial("b", "started", 0),
        trial("c", "started", 0),
        trial("a", "done", 0, reward=1.0),
        {
            "kind": "group",
            "rollout": 0,
            "kept": True,
            "reason": None,
            "trials": [{"reward": 1.0}, {"reward": None}],
        },
    )
    assert (set(history.open_trials), [one["trial"] for one in history.finished_trials]) == (
        {"b", "c"},
        ["a"],
    )
    assert [group.rewards for group in history.current_groups] == [[1.0]]


def test_a_rollout_told_late_leaves_what_the_next_one_has_begun():
    history = taken(
        trial("a", "started", 0),
        trial("b", "started", 1),
        trial("c", "started", 1),
        trial("c", "done", 1),
        {"kind": "group", "rollout": 1, "kept": True, "reason": None, "trials": []},
        rollout(0),
    )
    assert (set(history.open_trials), [one["trial"] for one in history.finished_trials]) == ({"b"}, ["c"])
    assert len(history.current_groups) == 1


def test_groups_without_a_rollout_belong_to_the_one_they_came_in():
    group = {"kind": "group", "rollout": None, "kept": False, "reason": "flushed", "trials": []}
    assert len(taken(group, rollout(0), group).current_groups) == 1


def test_trials_of_the_warm_start_are_forgotten_once_a_rollout_is_under_way():
    events = [phase("warm_start"), trial("a", "started", None), trial("b", "done", None)]
    history = taken(*events)
    assert (len(history.open_trials), len(history.finished_trials)) == (1, 1)
    history = taken(*events, phase("generate", 0), trial("c", "started", 0))
    assert (set(history.open_trials), history.finished_trials) == ({"c"}, [])


def test_phases_warm_start_and_the_end_are_told():
    history = taken(phase("start"), phase("warm_start"), {"kind": "lesson", "done": 3, "total": 8})
    assert (history.phase, history.phase_time, history.warm_start) == (
        "warm_start",
        START + 1,
        "lesson 3 of 8 played",
    )
    history = taken(phase("train", 4), {"kind": "end", "status": "failed", "error": "no"})
    assert (history.phase_rollout, history.status, history.error) == (4, "failed", "no")


def test_what_the_watchers_themselves_say_is_kept():
    watchers = [{"kind": "alarm", "alarm": "kl"}, {"kind": "resources"}, {"kind": "sandbox", "sandbox": "x"}]
    history = taken(phase("train"), *watchers)
    assert (history.now, history.started, history.phase_time) == (START + 3, START, START)
    assert (len(history.alarms), history.resources["kind"]) == (1, "resources")


def test_open_sandboxes_count_for_as_long_as_they_are_open():
    history = taken({"kind": "sandbox", "sandbox": "x", "state": "created"}, {"kind": "resources"})
    history.pass_time(START + 7200)
    assert (history.sandboxes.hours, history.sandboxes.open) == (2.0, 1)


def test_an_orphan_is_counted_and_goes_on_costing():
    history = taken(
        {"kind": "sandbox", "sandbox": "x", "state": "created"},
        {"kind": "sandbox", "sandbox": "x", "state": "orphan"},
    )
    history.pass_time(START + 3600)
    assert (history.sandboxes.orphans, history.sandboxes.open, history.sandboxes.hours) == (1, 1, 1.0)


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "rollout", "metrics": 3},
        {"kind": "group"},
        {"kind": "checkpoint"},
        {"kind": "trial", "state": "done"},
        {"kind": "something new", "x": [1]},
        {"kind": "phase", "time": "yesterday"},
        {"kind": "phase", "time": None},
    ],
)
def test_an_event_that_lacks_what_its_kind_has_is_passed_over(event):
    history = taken(event)
    assert (history.rollouts, history.groups, history.checkpoints, history.phase) == ([], [], [], None)


def test_metrics_have_no_times_and_a_digest_of_them():
    slow, fast = (
        taken(rollout(0, loss=1.0, tokens_per_second=1)),
        taken(rollout(0, loss=1.0, tokens_per_second=9)),
    )
    assert slow.metrics == [{"rollout": 0, "loss": 1.0}]
    assert slow.digest == fast.digest != taken(rollout(0, loss=2.0)).digest


def test_values_are_of_the_rollouts_that_have_them():
    history = taken(rollout(0, kl=1), rollout(1, loss=2.0), rollout(2, kl="much"), rollout(3, kl=0.5))
    assert history.values("kl") == [1.0, 0.5]


def test_settings_are_as_recorded_and_a_run_without_a_manifest_has_none(tmp_path):
    assert settings_of(write(tmp_path / "run", [], lr=3e-5))["lr"] == 3e-5
    (tmp_path / "run" / "run_manifest.json").write_text("{")
    assert settings_of(tmp_path / "run") == {}
    (tmp_path / "run" / "run_manifest.json").write_text(json.dumps({"settings": []}))
    assert settings_of(tmp_path / "run") == {}


def test_the_latest_run_is_the_one_begun_last(tmp_path):
    with pytest.raises(BadInputError, match="no run yet"):
        latest_run(tmp_path)
    for name in ("b", "a"):
        write(tmp_path / name, [])
    (tmp_path / "no run").mkdir()
    os.utime(tmp_path / "b", (1, 1))
    assert latest_run(tmp_path) == tmp_path / "a"
    manifest = tmp_path / "b" / "run_manifest.json"
    manifest.write_text(manifest.read_text().replace("T22:13", "T22:43"))
    os.utime(tmp_path / "b", (1, 1))
    assert latest_run(tmp_path) == tmp_path / "b"


@pytest.mark.parametrize(
    "manifest", ["[]", "3", "{", '{"settings": null}', '{"settings": ["a"], "nodes": 5}']
)
def test_a_manifest_of_another_form_tells_nothing(tmp_path, manifest):
    (tmp_path / "run_manifest.json").write_text(manifest)
    assert (settings_of(tmp_path), manifest_of(tmp_path).get("nodes")) == ({}, None)


def test_a_setting_has_a_value_and_a_source_and_counts_only_as_a_number(tmp_path):
    told = {"lr": {"value": 1}, "flat": 3, "num_rollout": {"value": "many", "source": "default"}}
    (tmp_path / "run_manifest.json").write_text(json.dumps({"settings": told, "nodes": [3, {"ip": "a"}]}))
    assert settings_of(tmp_path) == {"lr": 1, "num_rollout": None}
    assert manifest_of(tmp_path)["settings"]["lr"]["source"] == "not recorded"
    assert manifest_of(tmp_path)["nodes"] == [{"ip": "a"}]


def test_a_pipe_is_no_manifest(tmp_path):
    os.mkfifo(tmp_path / "run_manifest.json")
    assert manifest_of(tmp_path) == {}


@pytest.mark.parametrize("odd", [5.0, START + 50 * 365 * 86400])
def test_one_odd_clock_makes_no_long_run(tmp_path, odd):
    events = healthy(2)
    start = {"time": odd, "kind": "sandbox", "sandbox": "x", "state": "created"}
    history = read(write(tmp_path / "run", [events[0], start, *events[1:]]))
    assert history.now - history.started == pytest.approx(events[-1]["time"] - START, abs=2)
    assert history.sandboxes.hours < 2 * 20 * 8


def test_what_is_not_finite_is_no_value():
    history = taken(rollout(0, kl=1), rollout(1, kl=float("nan")), rollout(2, kl=None), rollout(3, kl=2))
    assert history.values("kl") == [1, 2]


def test_a_folder_without_events_and_manifest_is_no_run(tmp_path):
    with pytest.raises(BadInputError, match="no such run"):
        require_run(tmp_path)
    (tmp_path / "events.jsonl").touch()
    assert require_run(tmp_path) == tmp_path
