"""The self-check passes sound tasks, and fails ones whose solution is wrong or whose test is too easy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

import pytest
from proofs import left_in, processes_naming, processes_of, wait_until

from recipe.errors import BadInputError
from recipe.harbor import bwrap, sandbox
from recipe.harbor.selfcheck import SIGNALS, check_tasks, main
from recipe.process import ProcessGroup

CHECK = "grep -qx 42 answer && r=1 || r=0; echo $r > /logs/verifier/reward.txt"


@pytest.fixture(autouse=True)
def handlers_restored():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tasks_dir(make_task):
    make_task("sound", test=CHECK, solution="echo 42 > answer")
    make_task("wrong-solution", test=CHECK, solution="echo 43 > answer")
    make_task("too-easy", solution="true")
    return make_task("broken", dockerfile="FROM x\nADD y /\n").parent


def test_each_task_is_judged_by_both_trials(tasks_dir) -> None:
    checks = {check.name: check for check in check_tasks(tasks_dir)}
    rewards = {name: (check.oracle, check.nop, check.passed) for name, check in checks.items()}
    assert rewards == {
        "sound": (1, 0, True),
        "wrong-solution": (0, 0, False),
        "too-easy": (1, 1, False),
        "broken": (None, None, False),
    }
    assert "line 2" in str(checks["broken"])


def test_the_command_says_one_line_per_task_and_its_verdict(tasks_dir, capsys) -> None:
    assert main(["--tasks-dir", str(tasks_dir), "sound"]) == 0
    assert capsys.readouterr().out.startswith("ok     sound ")
    assert main(["--tasks-dir", str(tasks_dir), "--json", "too-easy", "sound"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(check["name"], check["nop"]) for check in found] == [("too-easy", 1.0), ("sound", 0.0)]


def test_a_check_that_is_ended_leaves_no_sandbox(make_task, scratch_root, tmp_path) -> None:
    tasks = make_task(solution="sleep 777500").parent
    check = ProcessGroup.start(
        "check",
        [sys.executable, "-m", "recipe.harbor.selfcheck", "--tasks-dir", str(tasks)],
        log=tmp_path / "log",
        env=dict(os.environ) | {"TMPDIR": str(scratch_root.parent)},
    )
    wait_until(lambda: processes_of("sleep 777500"))
    check.stop(grace=120)  # as long as a busy machine needs
    assert check.leader.returncode == 130, check.log_tail()
    assert not processes_of("sleep 777500")
    left = {path.name: left_in(path) for path in scratch_root.parent.iterdir()}
    assert left == {f"inkling-grpo-{os.getuid()}": []}


@pytest.mark.parametrize("seconds", [0, 0.1, 0.3, 0.6])
def test_a_check_that_is_ended_at_any_moment_even_twice_leaves_nothing(
    make_task, scratch_root, tmp_path, seconds
) -> None:
    make_task("one", solution="sleep 0.2")
    tasks = make_task("two", solution="sleep 777502").parent
    argv = [sys.executable, "-m", "recipe.harbor.selfcheck", "--tasks-dir", str(tasks)]
    env = dict(os.environ) | {"TMPDIR": str(scratch_root.parent)}
    check = ProcessGroup.start("check", argv, log=tmp_path / "log", env=env)
    try:
        wait_until(lambda: left_in(scratch_root.parent))
        time.sleep(seconds)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(check.leader.pid, number)
            time.sleep(0.01)
        assert check.wait_end(seconds=60) == 130
    finally:
        check.stop()
    left = {path.name: left_in(path) for path in scratch_root.parent.iterdir()}
    assert left in ({}, {f"inkling-grpo-{os.getuid()}": []})
    wait_until(lambda: not processes_naming(scratch_root.parent))


def test_a_solution_that_takes_too_long_is_named_as_such(make_task) -> None:
    [check] = check_tasks(make_task(test=CHECK, solution="sleep 777503", agent_seconds=1).parent)
    assert (check.oracle, check.error) == (0, "oracle: TimeLimitExceeded")


def test_a_machine_that_cannot_run_a_sandbox_is_a_bad_input(tasks_dir, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bwrap, "PYTHON", "/usr/bin/no-such-python")
    assert main(["--tasks-dir", str(tasks_dir)]) == 2
    assert capsys.readouterr().err.startswith("a sandbox could not be started")


def test_a_machine_without_tmux_is_refused_for_terminus_2_only(make_task, monkeypatch, capsys) -> None:
    tasks = make_task("sound", test=CHECK, solution="echo 42 > answer").parent
    assert main(["--tasks-dir", str(tasks), "--agent", "terminus-2"]) == 0
    monkeypatch.setitem(sandbox.ENVIRONMENT, "PATH", "/bin-without-tmux")
    capsys.readouterr()
    assert main(["--tasks-dir", str(tasks), "--agent", "terminus-2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("no terminal can be opened in a sandbox")
    assert "apt-get install tmux" in said
    asyncio.run(sandbox.probe())


def test_an_unknown_task_and_an_empty_folder_are_refused(tasks_dir, tmp_path, capsys) -> None:
    with pytest.raises(BadInputError, match="no such task"):
        check_tasks(tasks_dir, ["sound", "missing"])
    assert main(["--tasks-dir", str(tmp_path / "none")]) == 2
    assert "no such task" in capsys.readouterr().err
