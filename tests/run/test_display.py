"""What a watcher sees: a line per event of note in a log, one block that moves on a terminal."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from recipe.run import display
from recipe.run.display import Display
from recipe.run.interrupts import Interruption, Interrupts

METRICS = {"reward_mean": 0.5, "groups_kept": 4}


def events():
    yield {"kind": "phase", "phase": "warm_start", "rollout": None}
    for done in range(1, 49):
        yield {"kind": "lesson", "done": done, "total": 48}
    for step in range(1, 161):
        yield {"kind": "warm_start", "step": step, "steps": 160, "loss": 1 / step}
    yield {"kind": "phase", "phase": "generate", "rollout": 0}
    for sample in range(3):
        yield {"kind": "trial", "rollout": 0, "trial": f"{sample}", "state": "started"}
    yield {"kind": "trial", "rollout": 0, "trial": "0", "state": "done", "reward": 1.0}
    yield {"kind": "trial", "rollout": 0, "trial": "1", "state": "done", "reward": None}


def show(console: Console, more=()) -> None:
    with Display(console, rollouts=2) as shown:
        for event in (*events(), *more):
            shown.take(event)
        shown.tick()


def test_a_log_gets_a_few_lines_without_control_characters():
    out = io.StringIO()
    show(Console(file=out, width=80))
    lines = [line.split(" s  ")[1] for line in out.getvalue().splitlines()]
    assert lines[:3] == [
        "warm start: playing its lessons",
        "warm start: lesson 48 of 48 played",
        "warm start: step 20 of 160, loss 0.050",
    ]
    assert lines[-1] == "rollout 1 of 2: generate, trials 0 open, 0 done"
    assert len(lines) == 11
    assert "\x1b" not in out.getvalue()


def test_a_long_wait_says_now_and_then_where_the_run_is(monkeypatch):
    monkeypatch.setattr(display, "QUIET_SECONDS", 0.0)
    out = io.StringIO()
    show(Console(file=out, width=80))
    assert "rollout 1 of 2: generate, trials 1 open, 2 done, mean reward 1.00" in out.getvalue()


def test_a_terminal_keeps_only_the_line_of_each_rollout():
    out = io.StringIO()
    finished = {
        "kind": "rollout",
        "rollout": 0,
        "metrics": METRICS,
        "seconds": {"generate": 2.0, "train": 1.5},
    }
    show(Console(file=out, width=80, force_terminal=True), [finished])
    kept = [line for line in out.getvalue().splitlines() if "done in" in line]
    assert len(kept) == 1
    assert "rollout 1 of 2 done in 3.5 s: mean reward 0.50, 4 groups kept" in kept[0]
    assert "step 20 of 160, loss" not in out.getvalue()


def test_a_line_is_printed_once_even_if_a_signal_comes_right_after_it():
    class Interrupting(io.StringIO):
        def flush(self) -> None:
            if not self.closed and self.getvalue().count("\n") == 1:
                signal.raise_signal(signal.SIGINT)

    out = Interrupting()
    with Interrupts() as interrupts, Display(Console(file=out), 2, interrupts.held) as shown:
        with pytest.raises(Interruption):
            shown.note("first")
        interrupts.hold()
        shown.note("second")
    assert [line.split()[-1] for line in out.getvalue().splitlines()] == ["first", "second"]


def test_what_a_job_logs_is_no_code_for_the_terminal():
    out = io.StringIO()
    with Display(Console(file=out, width=80), rollouts=1) as shown:
        shown.log_line("\x1b]0;title\x07a\x9b31mb\u202ec")
        shown.note("\x1b[2Jnote")
    assert "a\ufffd31mb\ufffdc" in out.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out.getvalue())


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "rollout", "metrics": {"reward_mean": None, "audit/x": "much"}, "seconds": {}},
        {"kind": "rollout", "metrics": {}, "seconds": None},
        {"kind": "warm_start", "step": None, "steps": 0, "loss": None},
        {"kind": "phase", "phase": None},
        {"kind": "trial", "trial": None, "state": "started"},
    ],
)
def test_an_event_that_lacks_a_number_is_shown_or_passed_over(event):
    show(Console(file=io.StringIO(), width=80), [event])
