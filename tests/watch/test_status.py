"""Where a run is: told right for every state that a run can be in, in 80 columns, and soon."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from rich.console import Console
from runs import SECONDS, healthy, write

from recipe.watch.history import read
from recipe.watch.status import block, facts, span

PROGRAM = [sys.executable, "-c", "import sys; from recipe.cli import main; sys.argv[0] = 'recipe'; main()"]


@contextmanager
def followed(run):
    """As a launcher does while it follows a run."""
    with (run / "launcher" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def told(run) -> str:
    out = io.StringIO()
    Console(width=80, file=out).print(block(facts(run, read(run))))
    return out.getvalue()


def joined(text: str) -> str:
    return " ".join(text.split())


def line(text: str, name: str) -> str:
    return next(" ".join(line.split()) for line in text.splitlines() if line.split()[:1] == [name])


def half_way(tmp_path, **settings):
    """A run of ten rollouts in its fourth, in which half of the trials have come back; its clock is now."""
    events = healthy(4, ended=False)
    cut = next(i for i, event in enumerate(events) if event["kind"] == "group" and event["rollout"] == 3)
    events = events[: cut + 1]
    late = time.time() - events[-1]["time"] - 1
    return write(
        tmp_path / "run",
        [{**event, "time": event["time"] + late} for event in events],
        exit_code=None,
        num_rollout=10,
        **settings,
    )


def test_a_running_run_tells_its_phase_and_the_time_left(tmp_path):
    run = half_way(tmp_path)
    with followed(run):
        found, text = facts(run, read(run)), told(run)
    assert (found["state"], found["rollouts"], found["phase"]) == ("running", 3, "generate")
    rollout = SECONDS["update_weights"] + SECONDS["generate"] + SECONDS["train"]
    spent = SECONDS["update_weights"] + SECONDS["generate"] / 20
    assert found["seconds_left"] == pytest.approx(7 * rollout - spent, abs=60)
    assert found["trials"]["done"] == 8
    assert found["trials"]["open"] == 152
    assert line(text, "state").startswith("state running: 3 of 10 rollouts in ")
    assert line(text, "now").startswith("now generate for 1 min 4")
    assert "trials: 8 done, 152 open; about 6 h" in joined(text)


def test_a_finished_run_tells_how_it_ended(tmp_path):
    text = joined(told(write(tmp_path / "a", healthy(3))))
    assert "ended 2023-11-15T01:12:00+00:00 with exit code 0, 3 of 100 rollouts in 2 h 58 min" in text
    assert " now " not in text
    text = joined(told(write(tmp_path / "b", healthy(1, ended=False), exit_code=1)))
    assert "with exit code 1, 1 of 100 rollouts in 1 h 00 min: the job failed" in text


def test_a_dead_run_says_so_and_how_it_is_picked_up(tmp_path):
    text = " ".join(told(half_way(tmp_path)).split())
    assert "dead: no launcher follows it, and it has no end" in text
    assert f"`recipe attach {tmp_path}/run`" in text.replace(" ", "").replace(
        "recipeattach", "recipe attach "
    )
    (tmp_path / "x").mkdir()
    assert "recipe attach" not in " ".join(told(half_way(tmp_path / "x", engine="local")).split())


def test_a_run_without_events_yet_is_told(tmp_path):
    run = write(tmp_path / "run", [], exit_code=None)
    with followed(run):
        text = told(run)
    assert line(text, "state") == "state running: 0 of 100 rollouts in 0 s"
    assert line(text, "now") == "now no event yet"
    assert line(text, "alarms") == "alarms none"


def test_a_folder_with_nothing_in_it_is_told_too(tmp_path):
    assert "dead" in told(tmp_path)


def test_a_warm_start_is_told(tmp_path):
    events = [{"time": 1.0, "kind": "phase", "phase": "warm_start"}, {"time": 2.0, "kind": "warm_start"}]
    run = write(
        tmp_path / "run", [*events, {"time": 3.0, "kind": "lesson", "done": 3, "total": 48}], exit_code=None
    )
    assert line(told(run), "now") == "now warm_start for 2 s, lesson 3 of 48 played"


def test_everything_that_matters_is_told_in_80_columns(tmp_path):
    def failing(rollout, trial):
        if rollout == 2 and trial["sample"] == 2 * 20 * 8:
            trial["exit_status"] = "AgentError"

    alarm = {
        "kind": "alarm",
        "alarm": "kl",
        "rollout": 2,
        "found": "[bold]KL[/] 0.5",
        "action": "warn",
        "do": "look",
    }
    events = healthy(3, trial=failing)
    text = told(write(tmp_path / "run", [*events, {**alarm, "time": events[-1]["time"]}]))
    assert max(map(len, text.splitlines())) <= 80
    assert "groups newest rollout 16 kept, 0 dropped, 4 surplus; dropped in all: 1 agent_error" in joined(
        text
    )
    assert line(text, "tasks").startswith("tasks 47 tried, ")
    assert line(text, "worst").count("task-") == 3
    assert line(text, "sandboxes") == "sandboxes 0 open, 120.0 h of all together, 12.00 USD"
    assert line(text, "left") == "left 900 of 2,000 GB memory, 5,000 GB disk"
    assert line(text, "saved") == "saved 1 checkpoint, the last checkpoints/iter_0000002"
    assert line(text, "warn") == "warn kl: [bold]KL[/] 0.5; look"
    for title in ("reward", "turns", "truncated", "KL", "entropy", "gradient", "speed"):
        assert len(line(text, title).split()) >= 4


@pytest.mark.parametrize(("rollouts", "shown"), [(1, 2), (2, 2), (3, 3), (4, 3)])
def test_no_rollout_is_shown_under_two_headings_but_the_only_one(tmp_path, rollouts, shown):
    def rising(rollout, part):
        part["kl"] = rollout / 10

    run = write(tmp_path / "run", healthy(rollouts, metrics=rising))
    kl = facts(run, read(run))["metrics"]["kl"]
    assert (kl["first"], kl["newest"]) == (0.0, (rollouts - 1) / 10)
    assert kl["before"] == ((rollouts - 2) / 10 if rollouts > 2 else None)
    assert len(line(told(run), "KL").split()) == shown + 2  # its name and its unit


@pytest.mark.parametrize(
    ("tasks", "named"), [(2, {"each": 2}), (5, {"worst": 3, "best": 2}), (9, {"worst": 3, "best": 3})]
)
def test_no_task_is_named_twice(tmp_path, tasks, named):
    run = write(tmp_path / "run", healthy(1, started=tasks, kept=tasks))
    text = told(run)
    for name in ("each", "worst", "best"):
        lines = [part for part in text.splitlines() if part.split()[:1] == [name]]
        assert [joined(part).count("task-") for part in lines] == ([named[name]] if name in named else [])
    ends = facts(run, read(run))["tasks"]
    assert not ends["worst"].keys() & ends["best"].keys()


def test_a_rollout_without_metrics_is_told(tmp_path):
    text = told(write(tmp_path / "run", healthy(2, metrics=lambda _, part: part.clear())))
    assert "2 of 100 rollouts" in joined(text)


def test_the_facts_are_one_json_object_without_nan(tmp_path):
    run = write(tmp_path / "run", healthy(2, metrics=lambda _, part: part.update(grad_norm=float("nan"))))
    printed = subprocess.run([*PROGRAM, "status", run, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(printed.stdout, parse_constant=pytest.fail)
    assert (found["rollouts"], found["metrics"]["grad_norm"]["newest"]) == (2, None)


def test_it_imports_neither_torch_nor_ray_nor_matplotlib(tmp_path):
    run = write(tmp_path / "run", healthy(1))
    check = "import sys; from recipe.watch import history, status; from pathlib import Path; "
    check += f"status.facts(Path({str(run)!r}), history.read(Path({str(run)!r}))); "
    check += "sys.exit(len({'torch', 'ray', 'matplotlib', 'httpx', 'jinja2'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_following_ends_with_the_run(tmp_path):
    run = half_way(tmp_path)
    with followed(run):
        following = subprocess.Popen([*PROGRAM, "status", run, "--follow"], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            following.wait(2)
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert "dead" in out


def test_ctrl_c_leaves_a_run_that_is_followed_alone(tmp_path):
    run = half_way(tmp_path)
    with followed(run):
        following = subprocess.Popen(
            [*PROGRAM, "status", run, "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FORCE_COLOR": "1"},
        )
        read_until(following.stdout, "running")
        following.send_signal(signal.SIGINT)
        rest, problem = following.communicate(timeout=60)
    assert following.returncode == 130
    assert problem == ""
    assert rest.endswith("no longer watched; the run goes on\n")
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl", "launcher", "run_manifest.json"]


def read_until(stream, word: str) -> None:
    for text in stream:
        if word in text:
            return
    pytest.fail(f"it ended without {word!r}")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (61, "1 min 01 s"), (3600, "1 h 00 min")])
def test_a_span_of_time_has_two_units(seconds, text):
    assert span(seconds) == text


def command(*words) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["status"], ["alarms"], ["report"], ["compare", "."]])
def test_a_folder_that_is_no_runs_is_refused_and_left_alone(tmp_path, words):
    told = command(*words, tmp_path)
    assert (told.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "there is no such run" in told.stderr


def test_following_shows_text_only(tmp_path):
    told = command("status", write(tmp_path / "run", healthy(1)), "--follow", "--json")
    assert (told.returncode, told.stdout) == (2, "")


def test_what_a_run_wrote_reaches_no_terminal_as_code(tmp_path):
    evil = "\x1b]0;x\x07\x1b[31m\x9b31m\u202e\ud800"
    alarm = {"kind": "alarm", "alarm": evil, "rollout": 1, "found": evil, "action": "warn", "do": evil}
    saved = {"kind": "checkpoint", "rollout": 1, "path": evil}
    events = healthy(1)
    run = write(tmp_path / "run", [*events, *({**one, "time": events[-1]["time"]} for one in (alarm, saved))])
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(told(run))
    printed = command("status", run, "--json").stdout
    assert printed.isascii()
    assert json.loads(printed)["alarms"][0]["found"] == evil.replace("\ud800", "?")


def test_numbers_of_a_narrow_terminal_are_whole(tmp_path):
    out = io.StringIO()
    run = write(tmp_path / "run", healthy(2))
    Console(width=40, file=out).print(block(facts(run, read(run))))
    assert "…" not in out.getvalue()


def test_a_running_run_counts_from_its_start_and_a_dead_ones_sandboxes_go_on(tmp_path):
    run = half_way(tmp_path)
    manifest = json.loads((run / "run_manifest.json").read_text())
    manifest["started"] = datetime.fromtimestamp(time.time() - 100_000, UTC).isoformat()
    (run / "run_manifest.json").write_text(json.dumps(manifest))
    with followed(run):
        assert facts(run, read(run))["seconds"] == pytest.approx(100_000, abs=60)
    open_since = {"time": time.time() - 7200, "kind": "sandbox", "sandbox": "x", "state": "created"}
    dead = write(tmp_path / "dead", [open_since], exit_code=None)
    assert facts(dead, read(dead))["sandboxes"]["hours"] == pytest.approx(2, abs=0.1)
    assert facts(dead, read(dead))["seconds"] < 60


def test_a_moved_runs_checkpoint_is_told_where_it_is(tmp_path):
    events = healthy(1)
    saved = {
        "time": events[-1]["time"],
        "kind": "checkpoint",
        "rollout": 0,
        "path": "/old/checkpoints/iter_9",
    }
    run = write(tmp_path / "run", [*events, saved])
    (run / "checkpoints" / "iter_9").mkdir(parents=True)
    assert str(run / "checkpoints" / "iter_9") in told(run).replace("\n", "").replace(" ", "")
