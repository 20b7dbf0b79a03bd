"""A run's life with a stand-in for the engine's job: real Ray, real agent server; how it ends in every way."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recipe.presets import SMOKE
from recipe.process import ProcessGroup

SECRET = "planted-value-of-a-secret"

# `recipe smoke`, but with the entry point that the first argument gives.
LAUNCHER = """
import sys
from recipe import cli
from recipe.job import Job
from recipe.run import launch

entrypoint = sys.argv.pop(1)
launch.engine_job = lambda settings, folder, url: Job(entrypoint, {"RUN": str(folder.path)})
cli.main()
"""

START = """
import os, subprocess, tempfile, time
from pathlib import Path
from recipe.events import EventLog

events = EventLog(Path(os.environ["RUN"]) / "events.jsonl")
events.write("phase", phase="start", rollout=None)
# As multiprocessing and torch do, who leave it.
tempfile.mkdtemp()
"""

SUCCEED = """
print("the job sees", dict(os.environ), flush=True)
metrics = dict(reward_mean=0.5, reward_std=0.5, groups_kept=4, groups_dropped={}, groups_surplus=1, turns_mean=2,
               kl=0.0, entropy=0.1, logprob_difference=0.0, grad_norm=1.0)
events.write("rollout", rollout=0, metrics=metrics, seconds={"generate": 1.0})
events.write("end", status="succeeded", error=None)
"""

FAIL = """
events.write("end", status="failed", error="too many groups were dropped")
raise SystemExit(1)
"""

# Leaves a process in a session of its own that does not listen to SIGTERM.
HANG = """
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 5000"], start_new_session=True)
events.write("checkpoint", rollout=0, path="the job is hanging")
time.sleep(5000)
"""


@dataclass
class Run:
    """A launched run. Whatever descends from it carries its folder of temporary files in its environment."""

    process: subprocess.Popen[str]
    folder: Path
    temporary: Path

    def wait_for(self, text: str) -> str:
        """Reads the output up to a line with `text`."""
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return "".join(seen)
        raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")

    def end(self) -> tuple[int, str]:
        """Exit code and the rest of the output."""
        output = self.process.communicate(timeout=300)[0]
        return self.process.returncode, output

    def left_processes(self) -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if f"TMPDIR={self.temporary}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except (OSError, ValueError):
                continue
        return found

    def pid_of(self, word: str) -> int:
        """The process of this run with an argument, or a name, that ends with `word`."""
        for entry in Path("/proc").iterdir():
            try:
                ours = f"TMPDIR={self.temporary}".encode() in (entry / "environ").read_bytes()
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if ours and any(argument.endswith(word.encode()) for argument in arguments):
                    return int(entry.name)
            except (OSError, ValueError):
                continue
        raise AssertionError(f"no process with {word}")

    def left_files(self) -> list[Path]:
        """Temporary files, but for the folder that all sandboxes of a user share."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("inkling-grpo-")]


@pytest.fixture
def start(tmp_path) -> Iterator:
    # Ray's sockets want a short path.
    temporary = Path(tempfile.mkdtemp(prefix="t"))
    temporary.chmod(0o755)
    shutil.copytree(Path(SMOKE["TASKS_DIR"]) / "write-greeting", tmp_path / "tasks" / "write-greeting")
    runs: list[Run] = []

    def run(job: str, *arguments: str) -> Run:
        entrypoint = shlex.join([sys.executable, "-c", START + job])
        settings = [f"RUNS_ROOT={tmp_path}", "RUN_NAME=run", f"TASKS_DIR={tmp_path / 'tasks'}", *arguments]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, entrypoint, "smoke", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(temporary), "WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET},
        )
        runs.append(Run(process, tmp_path / "run", temporary))
        return runs[-1]

    yield run
    for one in runs:
        one.process.kill()
        one.process.communicate()
        wait_until(lambda one=one: not one.left_processes())
    shutil.rmtree(temporary)


def wait_until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_a_job_that_succeeds_leaves_its_folder_and_nothing_else(start):
    run = start(SUCCEED)
    code, output = run.end()
    assert code == 0, output
    assert "Proven:" in output
    assert (run.left_processes(), run.left_files()) == ([], [])
    manifest = json.loads((run.folder / "run_manifest.json").read_text())
    assert (manifest["exit_code"], manifest["error"]) == (0, None)
    assert manifest["prompt_data"]["rows"] == 1
    assert manifest["settings"]["seed"] == {"value": 1, "source": "preset smoke"}
    assert list(manifest["tasks"]) == ["write-greeting"]
    job = json.loads((run.folder / "launcher" / "job.json").read_text())
    assert job["run_dir"] == str(run.folder)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", job["agent_server_url"])
    assert Path(job["settings"]["prompt_data"]).read_text().count("\n") == 1
    for path in ("report/reward.png", "report/metrics.json", "logs/ray.log", "run_manifest.md"):
        assert (run.folder / path).stat().st_size, path
    # What the job saw is what Ray keeps of it, and the whole of it is in the log.
    log = (run.folder / "logs" / "train.log").read_text()
    assert "the job sees" in log
    told = output + "".join(
        path.read_text(errors="replace") for path in run.folder.rglob("*") if path.is_file()
    )
    assert SECRET not in told


def test_a_job_that_fails_is_reported_with_its_own_words(start):
    run = start(FAIL)
    code, output = run.end()
    assert code == 1
    assert f"error: too many groups were dropped\n  where    {run.folder}/logs/train.log" in output
    assert "Traceback" not in output
    assert run.left_processes() == []
    assert json.loads((run.folder / "run_manifest.json").read_text())["exit_code"] == 1


def test_ctrl_c_during_the_job_stops_even_what_detached_itself(start):
    run = start(HANG)
    run.wait_for("the job is hanging")
    run.process.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == 130
    said = "error: interrupted (SIGINT): everything that was started is stopped"
    assert output.splitlines()[-2:] == [said, f"  where    {run.folder}"]
    assert "Traceback" not in output
    assert (run.left_processes(), run.left_files()) == ([], [])
    assert json.loads((run.folder / "run_manifest.json").read_text())["exit_code"] == 130


def test_ctrl_c_while_the_servers_start_stops_them(start):
    run = start(HANG)
    run.wait_for("run folder")
    wait_until(lambda: len(run.left_processes()) > 3)
    run.process.send_signal(signal.SIGTERM)
    code, output = run.end()
    assert code == 130, output
    assert "Traceback" not in output
    assert (run.left_processes(), run.left_files()) == ([], [])


def test_a_launcher_that_is_killed_leaves_nothing_running(start):
    run = start(HANG)
    run.wait_for("the job is hanging")
    run.process.kill()
    wait_until(lambda: not run.left_processes())
    wait_until(lambda: not run.left_files())


@pytest.mark.parametrize(
    ("word", "name"), [("recipe.harbor.agent_server", "agent server"), ("gcs_server", "Ray")]
)
def test_a_server_that_dies_ends_the_run_with_its_name(start, word, name):
    run = start(HANG)
    run.wait_for("the job is hanging")
    os.kill(run.pid_of(word), signal.SIGKILL)
    code, output = run.end()
    assert code == 1
    # Of Ray, it may also be noticed first that it no longer tells about the job.
    assert re.search(f"^error: {name} (ended unexpectedly|no longer answers)", output, re.MULTILINE), output
    assert run.left_processes() == []


def test_an_unsound_task_refuses_the_start_and_leaves_no_folder(start, tmp_path):
    run = start(SUCCEED)
    (tmp_path / "tasks" / "write-greeting" / "solution" / "solve.sh").write_text("#!/bin/bash\nexit 0\n")
    code, output = run.end()
    assert code == 2
    assert "FAILED write-greeting" in output
    assert not run.folder.exists()
    assert run.left_processes() == []


def test_a_machine_that_can_run_no_sandbox_refuses_the_start_and_leaves_no_folder(
    start, tmp_path, monkeypatch
):
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncase "$*" in --version) echo bubblewrap 9.9.9;; *) echo no namespaces here >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    run = start(SUCCEED)
    code, output = run.end()
    assert code == 2, output
    assert "no namespaces here" in output
    assert not run.folder.exists()
    assert run.left_processes() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["RUN_NAME=used"], "the run folder is in use"),
        (["PROMPT_DATA=missing.jsonl"], "could not be read"),
        (["TASKS_DIR=missing"], "the folder of TASKS_DIR is missing"),
        (["AGENT_SERVER_HOST=127.0.0.999"], "AGENT_SERVER_HOST can't be bound"),
        (["PROMPT_DATA=/dev/zero"], "PROMPT_DATA is no regular file"),
        (["LOAD_DIR=missing"], "LOAD_DIR holds no checkpoints"),
        (["NUM_ROLLOUT=none"], "NUM_ROLLOUT has a bad value"),
        (["GLOBAL_BATCH_SIZE=3"], "do not go together"),
    ],
)
def test_a_refused_start_starts_and_writes_nothing(recipe, empty_folder, monkeypatch, arguments, told):
    monkeypatch.setattr(tempfile, "tempdir", str(empty_folder))
    monkeypatch.setattr(ProcessGroup, "start", lambda *_, **__: pytest.fail("something was started"))
    (empty_folder / "used").mkdir()
    shutil.copytree(Path(SMOKE["TASKS_DIR"]) / "write-greeting", empty_folder / "tasks" / "write-greeting")
    before = sorted(empty_folder.rglob("*"))
    code, output = recipe("smoke", f"RUNS_ROOT={empty_folder}", "RUN_NAME=run", "TASKS_DIR=tasks", *arguments)
    assert code == 2
    assert told in output
    assert "Traceback" not in output
    assert sorted(empty_folder.rglob("*")) == before
