"""A rehearsal notices what a broken job leaves, and that a fault is told otherwise than its row says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recipe.engines.local import checkpoint
from recipe.harbor.scratch import default_root
from rehearsal import clock
from rehearsal import job as jobs
from rehearsal.__main__ import try_fault
from rehearsal.aftermath import wrong
from rehearsal.faults import FAULTS, Fault
from rehearsal.job import PLANTED, ROOT, Job

SAYS = "the disk is full"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that ended with exit code 1, as it should, and left nothing."""
    monkeypatch.setattr(jobs, "reap_and_list", list)
    job = Job(root=tmp_path)
    job.temporary.mkdir()
    (job.folder / "launcher").mkdir(parents=True)
    (job.root / "output").write_text(f"error: {SAYS}\n")
    (job.folder / "run_manifest.json").write_text(json.dumps({"exit_code": 1, "error": SAYS}))
    job.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    job.process.wait()
    return job


def test_a_job_that_ended_as_said_has_nothing_wrong(ended):
    checkpoint.save(ended.folder / "checkpoints", 0, {"weight": np.zeros(2)})
    assert list(wrong(ended, 1, SAYS)) == []


def test_another_exit_code_and_other_words_are_told(ended):
    found = list(wrong(ended, 0, "all is well"))
    assert [text.split(",")[0] for text in found] == [
        "exit code 1",
        f"the output does not say 'all is well'; it ends: error: {SAYS}",
        "the manifest says exit code 1",
    ]


def test_a_traceback_is_told(ended):
    (ended.root / "output").write_text(f"{SAYS}\nTraceback (most recent call last):\n")
    assert list(wrong(ended, 1, SAYS)) == ["the output holds a traceback"]


def test_a_process_that_goes_on_is_told_and_killed(ended, monkeypatch):
    monkeypatch.setattr(jobs, "LEFT_SECONDS", 0.2)
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(jobs, "reap_and_list", lambda: [process.pid])
    assert list(wrong(ended, 1, SAYS)) == [f"left running: {process.pid} sleep 60 "]
    assert process.wait(10) == -signal.SIGKILL


def test_after_sigkill_a_sandbox_and_half_a_checkpoint_may_be_left_and_the_manifest_unended(ended):
    scratch = ended.temporary / default_root().name
    scratch.mkdir(mode=0o711)
    (scratch / "1-sandbox").mkdir()
    (ended.folder / "checkpoints" / "iter_0000001.partial-7").mkdir(parents=True)
    (ended.folder / "run_manifest.json").write_text(json.dumps({"exit_code": None, "error": None}))
    ended.process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    ended.process.wait()
    assert list(wrong(ended, -9, SAYS)) == []
    assert not list(scratch.iterdir())


def test_files_that_are_left_are_told(ended):
    (ended.temporary / "ray-1").mkdir()
    (ended.temporary / default_root().name / "1-sandbox").mkdir(parents=True)
    found = sorted(wrong(ended, 1, SAYS))
    assert found == [
        f"left in the folder of temporary files: {default_root().name}/1-sandbox",
        "left in the folder of temporary files: ray-1",
    ]


def test_a_cut_checkpoint_and_a_half_written_one_are_told(ended):
    folder = ended.folder / "checkpoints"
    path = checkpoint.save(folder, 0, {"weight": np.zeros(2)})
    (path / checkpoint.WEIGHTS).write_bytes(b"cut")
    (folder / "iter_0000001.partial-7").mkdir()
    incomplete, partial = wrong(ended, 1, SAYS)
    assert "the checkpoint is not complete" in incomplete
    assert partial == "half-written checkpoints are left: iter_0000001.partial-7"


def test_a_port_that_is_still_in_use_is_told(ended):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        (ended.folder / "launcher" / "job.json").write_text(json.dumps({"agent_server_url": url}))
        assert list(wrong(ended, 1, SAYS)) == [f"{url} is still in use"]


def test_a_secret_in_any_file_of_the_job_is_told(ended):
    (ended.folder / "launcher" / "note").write_text(f"key={PLANTED['DAYTONA_API_KEY']}")
    assert list(wrong(ended, 1, SAYS)) == ["secret found: runs/run/launcher/note"]


def test_a_trial_that_ends_twice_is_told_and_in_a_run_that_ended_well_one_that_never_ends(ended):
    trials = [("a", "started"), ("a", "done"), ("a", "done"), ("b", "started")]
    ended.events = [{"kind": "trial", "trial": trial, "state": state} for trial, state in trials]
    assert list(wrong(ended, 1, SAYS)) == ["trial doubled: a"]
    ended.process = subprocess.Popen(["true"])
    ended.process.wait()
    assert "trial lost: b" in wrong(ended, 0, SAYS)


def test_a_clock_that_never_jumped_is_told(ended):
    ended.events = [{"time": 5.0}, {"time": 9.0}]
    assert list(clock.jumped(ended)) == ["no clock has jumped"]
    ended.events.append({"time": 3609.0})
    assert list(clock.jumped(ended)) == []


def test_a_clock_leaves_nothing_of_ended_processes(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "SHARED", tmp_path)
    names = [f"{kind}_{pid}" for kind in ("sem.faketime_sem", "faketime_shm") for pid in (os.getpid(), 2**30)]
    for name in names:
        (tmp_path / name).touch()
    clock.prepare(ended)
    ended.closing.close()
    assert sorted(path.name for path in tmp_path.glob("*faketime*")) == sorted(names[::2])


def test_a_job_that_ends_before_its_fault_is_told():
    refused = Fault("none", "a bad setting", 0, prepare=lambda job: job.settings.append("NUM_ROLLOUT=none"),
                    when=lambda _event: True, cause=lambda _job: None)  # fmt: skip
    (found,), trials = try_fault(refused)
    assert found.startswith("the job ended before the fault could be caused")
    assert trials == 0


def test_a_fault_that_cannot_be_caused_is_told_and_its_job_is_ended():
    jobs_tried = []
    broken = Fault("none", "its cause fails", 0, prepare=jobs_tried.append, when=lambda _event: True,
                   cause=lambda job: (job.root / "nothing").unlink())  # fmt: skip
    (found,), _ = try_fault(broken)
    assert found.startswith("FileNotFoundError")
    (job,) = jobs_tried
    assert job.code is not None
    assert not job.root.exists()


def test_events_that_come_at_once_are_all_kept(ended):
    (ended.folder / "events.jsonl").write_text(
        "".join(f'{{"time": {n}, "kind": "lesson"}}\n' for n in range(3))
    )
    assert ended.wait(lambda event: event["time"] == 0)
    assert [event["time"] for event in ended.events] == [0, 1, 2]


def test_every_fault_has_a_name_of_its_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 35


def test_the_readme_knows_how_many_faults_there_are():
    assert f"in {len(FAULTS)} ways" in (ROOT / "README.md").read_text()
