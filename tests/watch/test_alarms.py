"""Alarms: each is raised by its own fault, once, and none by a healthy run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import SETTINGS, healthy

from recipe.errors import BadInputError
from recipe.watch.alarms import ALARMS, NAMES, markdown, stopping
from recipe.watch.live import replay
from recipe.watch.metrics import METRICS as TABLE

METRICS = [metric.name for metric in TABLE]
PAGE = Path(__file__).parents[2] / "docs" / "alarms.md"
ROLLOUTS = 12
FAULT = 6  # the rollout from which on something is wrong


def set_to(value, *names):
    """A fault: from FAULT on these have another value."""

    def change(rollout, part):
        if rollout >= FAULT:
            part |= dict.fromkeys(names, value)

    return change


def times(factor, name):
    def change(rollout, part):
        if rollout >= FAULT:
            part[name] *= factor

    return change


def no_rewards(rollout, trial):
    if rollout >= FAULT:
        trial["reward"] = 0.0


def equal_rewards(_rollout, trial):
    if trial["sample"] // 8 % 10 < 6:
        trial["reward"] = float(trial["task"] > "task-200")


def failures(rollout, trial):
    if rollout >= FAULT and trial["sample"] % 8 == 0 and trial["sample"] // 8 % 2 == 0:
        trial |= {"reward": None, "exit_status": "AgentError", "status": "aborted"}


def given_up(rollout, trial):
    if rollout >= FAULT and trial["reward"] == 0:
        trial["turns"] = 2


def native_blocks(rollout, metrics):
    metrics["audit/native_tool_block_rewarded_ratio"] = 0.04 if rollout < FAULT else 0.2


def stalled():
    events = healthy(6, ended=False)
    return [*events, {"time": events[-1]["time"] + 1, "kind": "phase", "phase": "generate", "rollout": 6}]


def later(events, seconds, **event):
    return [*events, {"time": events[-1]["time"] + seconds, **event}]


def with_orphan():
    return later(healthy(1), 1, kind="sandbox", sandbox="x", state="orphan")


def metrics(change):
    return lambda: healthy(ROLLOUTS, metrics=change)


def trials(change):
    return lambda: healthy(ROLLOUTS, trial=change)


def resources(change):
    return lambda: healthy(ROLLOUTS, resources=change)


REHEARSALS = {
    "entropy-collapse": metrics(times(0.2, "entropy")),
    "entropy-explosion": metrics(times(4, "entropy")),
    "kl": metrics(set_to(0.4, "kl")),
    "reward-fall": trials(no_rewards),
    "early-endings": trials(given_up),
    "longer-replies": metrics(times(4, "response_tokens_mean")),
    "shorter-replies": metrics(times(0.1, "response_tokens_mean")),
    "not-finite": lambda: healthy(FAULT + 1, metrics=set_to(math.nan, "grad_norm")),
    "skipped-updates": metrics(set_to(False, "valid_step")),
    "train-rollout-difference": metrics(set_to(0.3, "logprob_difference")),
    "uniform-groups": trials(equal_rewards),
    "infrastructure": trials(failures),
    "truncation": metrics(set_to(0.5, "truncated_ratio")),
    "malformed": metrics(set_to(0.5, "malformed_ratio")),
    "token-audit": metrics(set_to(0.15, "audit/strict_ratio")),
    "native-tool-blocks": metrics(native_blocks),
    "stall": lambda: later(stalled(), 6.5 * 2000, kind="resources"),
    "host-memory": resources(set_to(80e9, "available_memory_bytes")),
    "disk": resources(lambda _, part: part.update(checkpoint_bytes=550e9, free_disk_bytes=500e9)),
    "sandbox-hours": lambda: healthy(ROLLOUTS),
    "sandbox-orphans": with_orphan,
}
# What comes along because it is the same fault seen from another side.
TOGETHER = {"skipped-updates": {"not-finite"}, "reward-fall": {"uniform-groups"}}


def raised(events, **others):
    return replay(events, {**SETTINGS, **others})


def names(alarms):
    return {alarm["alarm"] for alarm in alarms}


@pytest.mark.parametrize("name", NAMES)
def test_each_alarm_is_raised_by_its_own_fault_and_no_other_is(name):
    allowed = 100.0 if name == "sandbox-hours" else None
    alarms = raised(REHEARSALS[name](), sandbox_hours_max=allowed)
    assert names(alarms) - TOGETHER.get(name, set()) == {name}
    (alarm,) = [one for one in alarms if one["alarm"] == name]
    entry = next(one for one in ALARMS if one.name == name)
    assert (alarm["action"], alarm["do"]) == (entry.action, entry.do)
    assert alarm["found"]


@pytest.mark.parametrize("rollouts", [1, 3, 10, 100])
def test_a_healthy_run_raises_no_alarm(rollouts):
    assert raised(healthy(rollouts), sandbox_hours_max=5000.0) == []


@pytest.mark.parametrize("rollouts", [3, 10])
def test_a_healthy_run_of_the_tiny_models_size_raises_no_alarm(rollouts):
    assert raised(healthy(rollouts, started=5, kept=4)) == []


def test_an_alarm_speaks_again_only_when_it_was_over_for_a_while():
    def flickering(rollout, part):
        if rollout in (2, 4, 5, 10):
            part["kl"] = 0.5

    alarms = raised(healthy(ROLLOUTS, metrics=flickering))
    assert [alarm["rollout"] for alarm in alarms] == [2, 10]


def test_a_phase_is_no_stall_before_it_has_a_median_nor_within_half_an_hour():
    early = [event for event in stalled() if event["kind"] != "rollout"]
    assert raised(later(early, 1e6, kind="resources")) == []
    assert raised(later(stalled(), 5.5 * 2000, kind="resources")) == []


def test_a_stall_is_known_from_the_silence_before_the_next_event():
    events = later(stalled(), 6.5 * 2000, kind="phase", phase="train", rollout=6)
    assert names(raised(events)) == {"stall"}


def test_a_reward_that_only_wavers_has_not_fallen():
    def wavering(rollout, part):
        part |= {"reward_mean": 0.1 if rollout % 2 else 0.3, "reward_std": 0.4}

    assert raised(healthy(30, metrics=wavering)) == []


def test_cut_trials_are_no_early_endings():
    def cut(rollout, trial):
        given_up(rollout, trial)
        if rollout >= FAULT:
            trial["status"] = "truncated"

    assert raised(healthy(ROLLOUTS, trial=cut)) == []


def test_a_surplus_trial_is_no_failure_of_the_infrastructure():
    flushed = [event for event in healthy(3) if event.get("exit_status") == "Flushed"]
    assert len(flushed) == 3 * 32
    assert raised(healthy(3)) == []


def test_the_disk_is_not_watched_for_a_checkpoint_that_is_not_due():
    full = later(healthy(3), 1, kind="resources", free_disk_bytes=1, checkpoint_bytes=550e9)
    assert raised(full, num_rollout=3) == []
    assert names(raised(full, num_rollout=4)) == {"disk"}


def test_metrics_that_an_engine_lacks_raise_nothing():
    assert raised(healthy(ROLLOUTS, metrics=lambda _, part: part.clear())) == []


NUMBER = st.none() | st.floats() | st.integers(-2, 9)
TEXT = st.none() | st.sampled_from(["Submitted", "AgentError", "aborted", "truncated", "?"])
TRIAL = st.fixed_dictionaries(
    {}, optional={"reward": NUMBER, "turns": NUMBER, "exit_status": TEXT, "status": TEXT, "task": TEXT}
)
EVENTS = st.fixed_dictionaries(
    {
        "time": st.floats(0, 1e10),
        "kind": st.sampled_from(["phase", "trial", "group", "rollout", "checkpoint", "resources", "end"]),
        "rollout": st.none() | st.integers(0, 9),
    },
    optional={
        "metrics": st.dictionaries(st.sampled_from(METRICS), NUMBER | TEXT | st.booleans()),
        "seconds": st.dictionaries(st.sampled_from(["train", "save"]), st.floats(0, 1e5)),
        "trials": st.lists(TRIAL, max_size=40) | st.just({}),
        "kept": st.booleans(),
        "phase": st.sampled_from(["train", "save"]),
        "trial": TEXT,
        "state": st.sampled_from(["started", "done"]),
        "path": TEXT,
        "available_memory_bytes": NUMBER,
        "total_memory_bytes": NUMBER,
    },
)

SANDBOXES = st.fixed_dictionaries(
    {
        "time": st.floats(0, 1e10),
        "kind": st.just("sandbox"),
        "state": st.sampled_from(["created", "deleted", "orphan"]),
    },
    optional={"sandbox": TEXT, "seconds": NUMBER},
)


@settings(deadline=None)
@given(st.lists(EVENTS | SANDBOXES, max_size=40))
def test_no_event_however_odd_ends_the_watch(events):
    raised(events, sandbox_hours_max=1.0)


def test_stop_on_chooses_what_stops():
    marked = {alarm.name for alarm in ALARMS if alarm.action == "stop"}
    assert stopping("") == marked
    assert {"reward-fall", "skipped-updates", "sandbox-hours"} <= marked
    assert stopping("none") == frozenset()
    assert stopping("kl, disk") == {"kl", "disk"}
    (alarm,) = raised(healthy(ROLLOUTS, metrics=set_to(0.4, "kl")), stop_on="kl")
    assert alarm["action"] == "stop"


def test_an_unknown_name_in_stop_on_is_refused_with_the_nearest():
    with pytest.raises(BadInputError) as refused:
        stopping("kl,reward-fal")
    assert refused.value.facts == {"expected": "reward-fall", "found": "reward-fal"}


def test_names_are_told_apart_and_every_alarm_has_its_rehearsal():
    assert len(set(NAMES)) == len(NAMES)
    assert set(REHEARSALS) == set(NAMES)


def test_the_page_of_alarms_is_as_its_table_writes_it():
    assert PAGE.read_text() == markdown()


def spoiled(change, name, value):
    """A fault in a run of which one rollout told too little."""

    def metrics(rollout, part):
        change(rollout, part)
        if rollout == 2:
            part[name] = value

    return metrics


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "x"])
@pytest.mark.parametrize(
    ("alarm", "metric", "change"),
    [
        ("entropy-collapse", "entropy", times(0.01, "entropy")),
        ("longer-replies", "response_tokens_mean", times(10, "response_tokens_mean")),
        ("shorter-replies", "response_tokens_mean", times(0.1, "response_tokens_mean")),
        ("reward-fall", "reward_mean", set_to(0.0, "reward_mean", "reward_std")),
        ("reward-fall", "reward_std", set_to(0.0, "reward_mean", "reward_std")),
    ],
)
def test_one_number_that_is_none_silences_no_alarm(alarm, metric, change, value):
    assert alarm in {
        one["alarm"] for one in replay(healthy(20, metrics=spoiled(change, metric, value)), SETTINGS)
    }


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_loss_of_null_is_not_finite_and_one_that_is_absent_is_not_known(value):
    found = {one["alarm"] for one in replay(healthy(5, metrics=set_from_start(loss=value)), SETTINGS)}
    assert {"not-finite", "skipped-updates"} <= found
    found = {one["alarm"] for one in replay(healthy(5, metrics=set_from_start(grad_norm=value)), SETTINGS)}
    assert "not-finite" in found

    def unknown(_rollout, part):
        part["grad_norm"] = value
        del part["valid_step"]

    assert "skipped-updates" in {one["alarm"] for one in replay(healthy(5, metrics=unknown), SETTINGS)}

    def absent(_rollout, part):
        for name in ("loss", "grad_norm", "valid_step"):
            del part[name]

    assert replay(healthy(5, metrics=absent), SETTINGS) == []


def set_from_start(**values):
    return lambda _rollout, part: part.update(values)


def test_stop_on_is_read_in_any_case_and_none_stands_alone():
    assert stopping("KL, Stall") == {"kl", "stall"}
    assert stopping("NONE") == frozenset()
    with pytest.raises(BadInputError, match="stands alone"):
        stopping("none,kl")


@pytest.mark.parametrize(("stop_on", "action"), [("old-alarm", "warn"), ("old-alarm,kl", "stop")])
def test_a_name_of_another_version_in_stop_on_stops_nothing(stop_on, action):
    high = set_from_start(kl=9.0)
    (alarm,) = replay(healthy(2, metrics=high), {**SETTINGS, "stop_on": stop_on})
    assert (alarm["alarm"], alarm["action"]) == ("kl", action)


def test_hours_below_one_are_told():
    gone = {"time": 1.0, "kind": "sandbox", "sandbox": "a", "state": "deleted", "seconds": 30.0}
    events = [gone, {"time": 2.0, "kind": "resources"}]
    (found,) = replay(events, {**SETTINGS, "sandbox_hours_max": 0.005})
    assert found["found"] == "0.00833 h, 0.005 h allowed"
