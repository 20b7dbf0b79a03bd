"""Processes that we start: watched, ended as a whole, and never outliving who started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe import keeper
from recipe.errors import BadInputError, RecipeError
from recipe.process import LOOPBACK, ProcessGroup, free_ports, port_is_free

# Leaves a child in a session of its own that ignores SIGTERM, and tells its process id.
DETACHING = """
import subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def kept(tmp_path):
    """Starts a program under a keeper whose graces are short; gives the keeper and the detached child's pid."""
    scratch = tmp_path / "scratch"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(keeper.__file__).parent)!r}); import keeper; "
        f"keeper.GRACE_SECONDS = 0.2; sys.exit(keeper.main({str(scratch)!r}, sys.argv[1:]))"
    )
    started = []

    def start(seconds: float):
        argv = [sys.executable, "-c", code, sys.executable, "-c", DETACHING, str(seconds)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, int(process.stdout.readline()), scratch

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_keeper_ends_detached_descendants_and_its_scratch_when_the_program_ends(kept):
    process, child, scratch = kept(0)
    assert process.wait(timeout=30) == 0
    assert not alive(child)
    assert not scratch.exists()


def test_a_keeper_that_is_told_to_stop_ends_everything(kept):
    process, child, scratch = kept(300)
    assert alive(child)
    assert scratch.stat().st_mode & 0o777 == 0o700
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert not alive(child)
    assert not scratch.exists()


def test_a_keeper_passes_the_exit_code_on(tmp_path):
    argv = [sys.executable, "-S", keeper.__file__, str(tmp_path / "none"), "sh", "-c"]
    assert subprocess.run([*argv, "exit 7"]).returncode == 7
    assert subprocess.run([*argv, "kill -9 $$"]).returncode == 137


def test_a_keeper_that_is_stopped_at_any_early_moment_leaves_no_scratch(tmp_path):
    for step in range(12):
        scratch = tmp_path / str(step)
        process = subprocess.Popen([sys.executable, "-S", keeper.__file__, str(scratch), "sleep", "300"])
        time.sleep(step / 100)
        process.terminate()
        process.wait(timeout=30)
        assert not scratch.exists(), f"stopped after {step / 100} s"


def test_without_setpriv_the_start_is_refused_and_setpriv_named(tmp_path):
    with pytest.raises(BadInputError, match=r"setpriv[^$]*util-linux"):
        ProcessGroup.start("thing", ["true"], log=tmp_path / "log", env={"PATH": str(tmp_path)})


def test_a_program_that_refuses_to_start_is_bad_input(tmp_path):
    group = ProcessGroup.start(
        "thing", ["sh", "-c", "echo no namespaces; exit 2"], log=tmp_path / "log", env=os.environ
    )
    with pytest.raises(BadInputError, match=r"thing refused to start[^$]*no namespaces"):
        group.wait_ready(lambda: False, seconds=30)
    group.stop()


def test_waiting_can_be_watched_and_broken_off(tmp_path):
    def watch() -> None:
        raise InterruptedError

    group = ProcessGroup.start("thing", ["sleep", "300"], log=tmp_path / "log", env=os.environ)
    try:
        for wait in (
            lambda: group.wait_ready(lambda: False, seconds=30, watch=watch),
            lambda: group.wait_end(seconds=30, watch=watch),
        ):
            with pytest.raises(InterruptedError):
                wait()
    finally:
        group.stop()


def test_what_a_killed_launcher_started_is_ended(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from recipe.process import ProcessGroup; "
        f"group = ProcessGroup.start('x', ['sleep', '300'], log=Path({str(tmp_path / 'log')!r}), env={{}}); "
        "comm = Path(f'/proc/{group.leader.pid}/comm')\n"
        # Until then the kernel has not been asked to tell it of our end.
        "while comm.read_text().strip() != 'sleep': pass\n"
        "print(group.leader.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not alive(int(done.stdout)))


def test_a_group_that_somebody_has_stopped_ends_in_its_own_way(tmp_path):
    script = f"trap 'echo well > {tmp_path}/ended; exit 0' TERM; echo > {tmp_path}/ready; sleep 60 & wait"
    group = ProcessGroup.start("frozen", ["bash", "-c", script], log=tmp_path / "log", env=dict(os.environ))
    group.wait_ready((tmp_path / "ready").exists, seconds=20)
    os.killpg(group.leader.pid, signal.SIGSTOP)
    group.stop(grace=20)
    assert (tmp_path / "ended").read_text() == "well\n"


def test_a_program_that_ends_while_starting_is_reported_with_its_log(tmp_path):
    group = ProcessGroup.start(
        "thing", ["sh", "-c", "echo why; exit 3"], log=tmp_path / "log", env=os.environ
    )
    with pytest.raises(RecipeError, match=r"thing ended unexpectedly \(exit code 3\)[^$]*why"):
        group.wait_ready(lambda: False, seconds=30)
    group.stop()


def test_a_program_that_never_gets_ready_is_reported(tmp_path):
    group = ProcessGroup.start("thing", ["sleep", "300"], log=tmp_path / "log", env=os.environ)
    try:
        with pytest.raises(RecipeError, match=r"thing was not ready after 0\.1 s"):
            group.wait_ready(lambda: False, seconds=0.1)
    finally:
        group.stop()
    assert not group.alive


def test_asked_ports_are_different_and_free():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as busy:
        busy.bind((LOOPBACK, ports[0]))
        busy.listen()
        assert not port_is_free(ports[0])
        assert port_is_free(ports[1])
