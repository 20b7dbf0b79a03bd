"""A job is followed to its end: every event once, to everybody; an alarm that stops has it save first."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from miles_standin.checkout.miles.utils import log_forms
from rich.console import Console

from recipe.errors import RecipeError
from recipe.events import Event, EventLog, EventReader
from recipe.job import journal, save_and_stop
from recipe.process import ProcessGroup
from recipe.resolve import load
from recipe.run import follow as following
from recipe.run.display import Display
from recipe.run.folder import RunFolder
from recipe.run.follow import follow
from recipe.run.interrupts import Interruption, Interrupts
from recipe.run.parts import Run
from recipe.run.ray_job import LeftJobError
from recipe.watch.live import Watch

ALARM = {"alarm": "entropy", "rollout": 0, "found": "0.01", "do": "lower LR"}


@dataclass
class Job:
    """Ends once `steps` are done, one at each time that somebody asks for its state."""

    steps: list[Callable[[], object]]
    succeeded: bool = True
    silence: float = 0.0

    @property
    def ended(self) -> bool:
        if self.steps:
            self.steps.pop(0)()
        return not self.steps

    def save_log(self) -> str:
        return ""

    def failure(self) -> RecipeError:
        return RecipeError("the job ended as FAILED")


@dataclass
class Observer:
    """Remembers what it is told; answers as `answers` says of an event's kind."""

    answers: dict[str, list[Event]] = field(default_factory=dict)
    seen: list[Event] = field(default_factory=list)

    def take(self, event: Event) -> list[Event]:
        self.seen.append(event)
        return self.answers.get(event["kind"], [])

    def tick(self) -> list[Event]:
        return [{"time": 1.0, "kind": "resources"}]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> Iterator[Run]:
    for name, value in {"POLL_SECONDS": 0.01, "ASK_EVERY": 1, "TICK_EVERY": 2}.items():
        monkeypatch.setattr(following, name, value)
    settings = load("train-camel", ["HEAD_IP=h", "TASKS_DIR=t", f"RUNS_ROOT={tmp_path}", "RUN_NAME=run"])
    folder = RunFolder.create(tmp_path / "run")
    with Interrupts() as interrupts, Display(Console(file=io.StringIO(), width=200), 3) as display:
        yield Run(settings, folder, None, interrupts, display)


def output(run: Run) -> str:
    return run.display._console.file.getvalue()


def events(run: Run) -> list[Event]:
    return list(EventReader(run.folder.events).new())


def kinds(found: list[Event]) -> list[str]:
    return [event["kind"] for event in found]


def say(run: Run, kind: str, **fields: Any) -> Callable[[], None]:
    return lambda: EventLog(run.folder.events).write(kind, **fields)


def log(run: Run, *lines: str) -> Callable[[], object]:
    def write() -> None:
        with run.folder.train_log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    return write


def nothing() -> None: ...


def test_the_events_of_a_job_are_shown_and_every_observer_sees_all_of_them(run):
    answer = {"time": 2.0, "kind": "sandbox", "sandbox": "a", "state": "created"}
    one, other = Observer({"phase": [answer]}), Observer()
    job = Job(
        [say(run, "phase", phase="generate", rollout=0), *[nothing] * 9, say(run, "end", status="succeeded")]
    )
    follow(run, job, (), tracked=True, observers=(one, other))
    assert one.seen == other.seen
    found = events(run)
    assert [kind for kind in kinds(found) if kind != "resources"] == ["phase", "sandbox", "end"]
    assert kinds(found).count("resources") >= 3
    assert "rollout 1 of 3: generate" in output(run)


def test_an_alarm_that_stops_has_the_job_save_and_ends_it(run):
    sentinel = save_and_stop(run.folder.path)
    watch = Observer({"rollout": [{"time": 1.0, "kind": "alarm", "action": "stop", **ALARM}]})
    asked = []

    def save() -> None:
        asked.append(sentinel.exists())
        sentinel.unlink()
        say(run, "checkpoint", rollout=0, path="/c")()

    job = Job([say(run, "rollout", rollout=0, metrics={}, seconds={}), *[nothing] * 5, save, *[nothing] * 99])
    with pytest.raises(RecipeError, match="stopped by the alarm entropy\n") as stopped:
        follow(run, job, (), tracked=True, observers=(watch,))
    assert asked == [True]
    assert stopped.value.facts["run"] == "lower LR"
    assert job.steps
    *_, checkpoint, end = [event for event in events(run) if event["kind"] != "resources"]
    assert (checkpoint["kind"], end["kind"], end["status"]) == ("checkpoint", "end", "failed")
    assert "stopped by the alarm entropy" in end["error"]
    assert "alarm entropy: 0.01; lower LR" in output(run)


def test_a_job_that_does_not_save_is_stopped_all_the_same(run, monkeypatch):
    monkeypatch.setattr(following, "SILENCE_MARGIN_SECONDS", 0.3 - run.settings.rollout_timeout_sec)
    watch = Observer({"rollout": [{"time": 1.0, "kind": "alarm", "action": "stop", **ALARM}]})
    more = [say(run, "lesson", done=1, total=2)] * 500
    job = Job([say(run, "rollout", rollout=0, metrics={}, seconds={}), *more])
    with pytest.raises(RecipeError, match="without a checkpoint"):
        follow(run, job, (), tracked=True, observers=(watch,))
    assert job.steps


def test_an_alarm_at_the_end_of_a_job_stops_nothing(run):
    watch = Observer({"rollout": [{"time": 1.0, "kind": "alarm", "action": "stop", **ALARM}]})

    def last() -> None:
        say(run, "rollout", rollout=0, metrics={}, seconds={})()
        say(run, "end", status="succeeded", error=None)()

    follow(run, Job([last]), (), tracked=True, observers=(watch,))
    assert kinds(events(run)) == ["rollout", "end", "alarm"]
    assert "is stopped then" not in output(run)
    assert not save_and_stop(run.folder.path).exists()


def test_an_alarm_that_warns_stops_nothing(run):
    watch = Observer({"rollout": [{"time": 1.0, "kind": "alarm", "action": "warn", **ALARM}]})
    follow(
        run,
        Job([say(run, "rollout", rollout=0, metrics={}, seconds={}), *[nothing] * 5]),
        (),
        tracked=True,
        observers=(watch,),
    )
    assert not save_and_stop(run.folder.path).exists()
    assert events(run)[-1]["status"] == "succeeded"


def test_what_an_earlier_launcher_told_is_not_told_again(run):
    say(run, "phase", phase="generate", rollout=0)()
    say(run, "rollout", rollout=0, metrics={}, seconds={})()
    say(run, "alarm", action="stop", **ALARM)()
    answer = {"time": 1.0, "kind": "alarm", "action": "stop", **ALARM}
    watch = Observer({"rollout": [answer]})
    follow(run, Job([nothing] * 3), (), tracked=False, observers=(watch,))
    assert kinds(watch.seen)[:3] == ["phase", "rollout", "alarm"]
    assert kinds(events(run)).count("alarm") == 1
    assert "done in" not in output(run)


def miles_rollout(run: Run) -> Callable[[], object]:
    def write() -> None:
        told = {
            "time": 1.0,
            "kind": "group",
            "rollout": 0,
            "kept": True,
            "reason": None,
            "trials": [{"reward": 1}],
        }
        journal(run.folder.path).write_text(json.dumps(told) + "\n")
        log(run, *log_forms.sampled(0, {}), *log_forms.trained(0, reward=0.75))()

    return write


def test_a_job_of_miles_has_the_same_events_and_display(run):
    follow(run, Job([log(run, "it starts"), miles_rollout(run), *[nothing] * 3]), (), tracked=False)
    found = [event for event in events(run) if event["kind"] in ("group", "rollout", "end")]
    assert kinds(found) == ["group", "rollout", "end"]
    assert found[-1]["status"] == "succeeded"
    assert "rollout 1 of 3 done in 2811.8 s: mean reward 0.75, 1 groups kept" in output(run)
    before = events(run)
    follow(run, Job([nothing] * 3), (), tracked=False)
    assert kinds(events(run)[len(before) :]) == ["end"]


def test_of_a_long_log_the_terminal_has_the_start_and_each_trouble_once(run, monkeypatch):
    monkeypatch.setattr(following, "START_LINES", 3)
    lines = [f"start {number}" for number in range(3)] + [f"step {number}" for number in range(50)]
    lines += [f"(Worker pid={number}) UserWarning: of {number} GPUs" for number in range(64)]
    lines += ["RuntimeError: no memory", "x_error_count: 0 of it", "all is well"]
    follow(run, Job([log(run, *lines), *[nothing] * 3]), (), tracked=False)
    told = output(run)
    assert [f"start {number}" in told for number in range(3)] == [True] * 3
    assert told.count("UserWarning") == 1
    assert "RuntimeError: no memory" in told
    assert "step 0" not in told
    assert "all is well" not in told


def test_lines_that_were_shown_before_are_not_shown_again(run):
    log(run, "old")()
    seen = run.folder.train_log.stat().st_size
    follow(run, Job([log(run, "new"), *[nothing] * 3]), (), tracked=False, seen=seen)
    assert "old" not in output(run)
    assert "new" in output(run)


def test_a_failed_job_says_why_and_so_does_the_last_event(run):
    with pytest.raises(RecipeError, match="the job ended as FAILED"):
        follow(run, Job([nothing], succeeded=False), (), tracked=False)
    end = events(run)[-1]
    assert (end["kind"], end["status"], end["error"]) == ("end", "failed", "the job ended as FAILED")
    with pytest.raises(RecipeError, match="no policy"):
        follow(
            run, Job([say(run, "end", status="failed", error="no policy")], succeeded=False), (), tracked=True
        )
    assert kinds(events(run)).count("end") == 2


def raising(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


def test_an_interrupted_run_ends_in_its_events_and_one_that_goes_on_does_not(run):
    with pytest.raises(Interruption):
        follow(run, Job([raising(Interruption(2))]), (), tracked=True)
    end = events(run)[-1]
    assert end["status"] == "interrupted"
    assert "interrupted (SIGINT)" in end["error"]
    before = events(run)
    with pytest.raises(LeftJobError):
        follow(run, Job([raising(LeftJobError("Ray no longer answers"))]), (), tracked=True)
    assert events(run) == before


def test_a_job_without_any_sign_of_life_ends_the_run(run, monkeypatch):
    monkeypatch.setattr(following, "SILENCE_MARGIN_SECONDS", 0.2 - run.settings.rollout_timeout_sec)
    # What the launcher itself writes is none.
    with pytest.raises(RecipeError, match="the job fell silent"):
        follow(run, Job([nothing] * 500), (), tracked=True, observers=(Observer(),))


def test_the_death_of_a_server_ends_the_run(run, tmp_path):
    server = ProcessGroup.start("agent server", [sys.executable, "-c", ""], log=tmp_path / "log", env={})
    server.leader.wait()
    with pytest.raises(RecipeError, match="agent server ended unexpectedly"):
        follow(run, Job([nothing] * 500), (server,), tracked=True)


def test_the_agent_servers_log_is_capped_while_the_job_runs(run, monkeypatch):
    from recipe.run import log_size

    monkeypatch.setattr(log_size, "LIMIT_BYTES", 800)
    run.folder.agent_server_log.write_text("a line\n" * 1000)
    follow(run, Job([nothing] * 10), (), tracked=True)
    assert run.folder.agent_server_log.stat().st_size <= 800


@dataclass
class Broken(Observer):
    def take(self, event: Event) -> list[Event]:
        raise KeyError("time")

    def tick(self) -> list[Event]:
        raise ValueError("no host")


@pytest.mark.parametrize("tracked", [True, False])
def test_an_observer_that_fails_ends_no_run_and_is_told_once(run, tracked):
    other = Observer()
    say(run, "phase", phase="start", rollout=None)()
    job = Job([say(run, "phase", phase="generate", rollout=0), *[nothing] * 9])
    follow(run, job, (), tracked=tracked, observers=(Broken(), other))
    assert output(run).count("though its Broken fails") == 1
    assert {"phase", "resources"} <= set(kinds(other.seen))
    assert events(run)[-1]["status"] == "succeeded"


def test_a_line_that_is_no_event_ends_no_run(run):
    def write() -> None:
        with run.folder.events.open("ab") as file:
            file.write(b'\xff\xfe{"broken\n[1,2]\n{"kind": "note"}\n{"kind": "phase", "time": Infinity}\n')
            odd = {
                "kind": "rollout",
                "time": 1,
                "metrics": {"reward_mean": "x", "audit/y": []},
                "seconds": {},
            }
            file.write(json.dumps(odd).encode() + b"\n")

    watch = Watch(run.folder.path, run.settings)
    follow(run, Job([write, *[nothing] * 5]), (), tracked=True, observers=(watch,))
    assert events(run)[-1]["status"] == "succeeded"
    assert "the run goes on, though" not in output(run)


def test_a_run_ends_in_its_events_whatever_ends_it(run):
    with pytest.raises(ZeroDivisionError):
        follow(run, Job([raising(ZeroDivisionError("of ours"))]), (), tracked=True)
    assert events(run)[-1]["error"] == "ZeroDivisionError('of ours')"
