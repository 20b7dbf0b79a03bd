"""The watcher of a run that goes on, and the command that judges a run once more."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from runs import SETTINGS, START, healthy, write

from recipe.resolve import resolve
from recipe.watch import live
from recipe.watch.live import Watch, replay

GIVEN = {"tasks_dir": ("t", "x"), "head_ip": ("h", "x"), "engine": ("miles", "x")}
PROGRAM = "import sys; from recipe.cli import main; sys.argv[0] = 'recipe'; main()"


def alarms(*words):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "alarms", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def watch(tmp_path):
    def make(**settings):
        return Watch(tmp_path, resolve({**GIVEN, **settings}))

    return make


def high_kl(rollout, metrics):
    if rollout >= 2:
        metrics["kl"] = 0.5


def test_it_raises_the_same_alarms_as_a_replay(watch):
    events = healthy(5, metrics=high_kl)
    watcher = watch(stop_on=("kl", "x"))
    raised = [alarm for event in events for alarm in watcher.take(event)]
    assert [(alarm["alarm"], alarm["rollout"], alarm["action"]) for alarm in raised] == [("kl", 2, "stop")]
    assert raised == replay(events, {**SETTINGS, "stop_on": "kl"})


def test_its_own_events_do_not_make_it_speak(watch):
    watcher = watch()
    (alarm,) = [one for event in healthy(3, metrics=high_kl) for one in watcher.take(event)]
    assert watcher.take(alarm) == []


def test_it_tells_what_the_host_has_left_now_and_then(watch, tmp_path):
    watcher = watch()
    (seen,) = watcher.tick()
    assert seen["kind"] == "resources"
    assert 0 < seen["available_memory_bytes"] < seen["total_memory_bytes"]
    assert 0 < seen["free_disk_bytes"] <= shutil.disk_usage(tmp_path).total
    assert seen["checkpoint_bytes"] == 550e9
    assert watcher.tick() == []


def test_a_checkpoint_is_measured_once_it_is_there(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "RESOURCES_SECONDS", 0.0)
    watcher = watch(engine=("local", "x"))
    assert watcher.tick()[-1]["checkpoint_bytes"] == 0
    (tmp_path / "c" / "d").mkdir(parents=True)
    (tmp_path / "c" / "d" / "shard").write_bytes(bytes(1000))
    watcher.take({"time": START, "kind": "checkpoint", "rollout": 0, "path": str(tmp_path / "c")})
    assert watcher.tick()[-1]["checkpoint_bytes"] == 1000
    shutil.rmtree(tmp_path / "c")
    assert watcher.tick()[-1]["checkpoint_bytes"] == 1000


def test_a_checkpoint_that_is_elsewhere_leaves_the_planned_size(watch, monkeypatch):
    monkeypatch.setattr(live, "RESOURCES_SECONDS", 0.0)
    watcher = watch()
    watcher.take({"time": START, "kind": "checkpoint", "rollout": 0, "path": "checkpoints/nowhere"})
    assert watcher.tick()[-1]["checkpoint_bytes"] == 550e9


def test_a_full_disk_is_told_after_the_next_look(watch):
    watcher = watch()
    (seen,) = watcher.tick()
    (alarm,) = watcher.take({**seen, "free_disk_bytes": 1})
    assert alarm["alarm"] == "disk"


def test_a_folder_that_is_gone_does_not_end_the_watch(watch, tmp_path):
    watcher = watch()
    tmp_path.rmdir()
    assert watcher.tick() == []


def test_a_stall_is_raised_while_nothing_happens(watch):
    watcher = watch()
    events = healthy(4, ended=False)
    late = time.time() - events[-1]["time"]
    for event in events:
        watcher.take({**event, "time": event["time"] + late})
    watcher.take({"time": time.time(), "kind": "phase", "phase": "generate", "rollout": 4})
    assert "stall" not in {event.get("alarm") for event in watcher.tick()}
    watcher.take({"time": time.time() - 20_000, "kind": "phase", "phase": "generate", "rollout": 4})
    assert "stall" in {event.get("alarm") for event in watcher.tick()}


def test_the_command_tells_the_alarms_and_fails(tmp_path):
    bad = write(tmp_path / "bad", healthy(3, metrics=high_kl))
    told = alarms(bad)
    assert told.returncode == 1
    assert "kl" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    (alarm,) = json.loads(alarms(bad, "--json").stdout)
    assert (alarm["alarm"], alarm["rollout"]) == ("kl", 2)


def test_the_command_has_nothing_against_a_healthy_run(tmp_path):
    told = alarms(write(tmp_path / "good", healthy(3)))
    assert (told.returncode, told.stdout) == (0, "no alarm\n")


def test_the_command_says_when_there_was_nothing_to_judge(tmp_path):
    told = alarms(write(tmp_path / "empty", []))
    assert (told.returncode, told.stdout) == (0, "no event yet, so nothing to judge\n")


def test_the_command_judges_a_run_whose_stop_on_names_what_is_no_alarm_now(tmp_path):
    told = alarms(write(tmp_path / "old", healthy(1), stop_on="old-alarm"))
    assert (told.returncode, told.stdout) == (0, "no alarm\n")
    assert "old-alarm" in told.stderr


def test_one_odd_clock_raises_no_alarm_while_a_run_goes_on(watch, tmp_path):
    now = time.time()
    moment = datetime.fromtimestamp(now - 60, UTC).isoformat()
    (tmp_path / "run_manifest.json").write_text(json.dumps({"started": moment}))
    watcher = watch(sandbox_hours_max=("100", "x"))
    created = {"kind": "sandbox", "sandbox": "a", "state": "created"}
    for odd in ({**created, "time": 5.0}, {"kind": "phase", "phase": "train", "time": now + 1e9}):
        assert watcher.take(odd) == []
    assert [event["kind"] for event in watcher.tick()] == ["resources"]
    seen = {"time": now, "kind": "resources"}
    assert watcher.take(seen) == []
