"""What a node tells about itself, and that cleaning ends a run's leftovers and nothing else; the job on a real Ray."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from recipe.plugins import facts, nodes
from recipe.run.ray_cluster import RayCluster

PATH = os.environ["PATH"]
# A server that does not end when it is asked to: `read` waits for an input that never comes.
STUBBORN = ("-c", "trap '' TERM; echo ready; read forever")

ASKED = {
    "folders": {"miles": "/none", "sglang": "/none", "megatron": "/none"},
    "features": [],
    "models": ["/none/index.json"],
    "head": ["127.0.0.1", 1],
    "shared": None,
    "nonce": "n",
    "clean": [],
}

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that calls itself `title`, of the run `run` or of none."""
    started: list[subprocess.Popen[bytes]] = []

    def start(title: str, run: str | None = None, stubborn: bool = False) -> subprocess.Popen[bytes]:
        env = {"PATH": PATH} | ({nodes.RUN_VARIABLE: run} if run else {})
        process = subprocess.Popen(
            [title, *(STUBBORN if stubborn else ("600",))],
            executable="/bin/bash" if stubborn else "/bin/sleep",
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        if stubborn:
            assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _outside_of_ray(monkeypatch) -> None:
    monkeypatch.setattr(facts, "_ray_folder", lambda: "/tmp")


@pytest.fixture(autouse=True)
def gpus(tmp_path, monkeypatch) -> Callable[..., None]:
    """`gpus(pid, ...)`: nvidia-smi tells of two GPUs, and of these processes on them."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{PATH}")

    def tell(*pids: int, fail: bool = False) -> None:
        rows = "".join(f"{pid}, 1000\\n" for pid in pids)
        cards = "NVIDIA H200, 143771, 17, 570.1\\nNVIDIA H200, 143771, [N/A], 570.1\\n"
        script = f"case $1 in *gpu=*) printf '{cards}';; *) printf '{rows}';; esac"
        tool.write_text(f"#!/bin/sh\n{'echo no driver >&2; exit 9' if fail else script}\n")
        tool.chmod(0o755)

    return tell


def found(*processes: subprocess.Popen[bytes]) -> dict[int, nodes.Process]:
    """Those of `processes` that count as leftovers: other work on this machine may have some as well."""
    ours = {process.pid for process in processes}
    return {process.pid: process for process in nodes.leftovers() if process.pid in ours}


def test_leftovers_are_servers_by_title_and_whatever_is_on_a_gpu(start, gpus):
    scheduler, session = start("sglang::scheduler_TP0", "run-1"), start("/usr/bin/miles-session-server")
    trainer, other = start("python3"), start("notsglang", "run-1")
    gpus(trainer.pid)
    leftovers = found(scheduler, session, trainer, other)
    assert leftovers.keys() == {scheduler.pid, session.pid, trainer.pid}
    assert (leftovers[scheduler.pid].run, leftovers[scheduler.pid].gpu_memory_mib) == ("run-1", None)
    assert (leftovers[session.pid].run, leftovers[session.pid].command) == (
        None,
        "/usr/bin/miles-session-server 600",
    )
    assert (leftovers[trainer.pid].run, leftovers[trainer.pid].gpu_memory_mib) == (None, 1000)
    assert {process.user for process in leftovers.values()} == {nodes.pwd.getpwuid(os.getuid()).pw_name}


def test_a_gpu_process_of_another_container_is_told_and_never_touched(gpus):
    pid = 2**22 + 1  # above the highest that the kernel gives
    gpus(pid)
    assert [process.pid for process in nodes.leftovers() if process.run is None][-1] == pid
    assert nodes.report(ASKED | {"clean": [""]})["cleaned"] == []


def test_cleaning_ends_the_leftovers_of_the_named_runs_and_nothing_else(start, gpus, monkeypatch):
    monkeypatch.setattr(nodes, "TERM_SECONDS", 1.0)
    gentle, stubborn = start("sglang::router", "run-1"), start("miles-router", "run-1", stubborn=True)
    on_gpu = start("python3", "run-2")
    others = [
        start("sglang::router"),
        start("sglang::router", "run-10"),
        start("bash", "run-1"),
        start("python3"),
    ]
    gpus(on_gpu.pid, others[3].pid)
    report = nodes.report(ASKED | {"clean": ["run-1", "run-2"]})
    assert {one["pid"]: one["outcome"] for one in report["cleaned"]} == {
        gentle.pid: "ended",
        stubborn.pid: "killed",
        on_gpu.pid: "ended",
    }
    assert all(process.wait(5) < 0 for process in (gentle, stubborn, on_gpu))
    assert [process.poll() for process in others] == [None] * 4
    left = {one["pid"] for one in report["leftovers"]}
    assert {others[0].pid, others[1].pid, others[3].pid} <= left
    assert not left & {gentle.pid, stubborn.pid}


def test_without_a_run_to_clean_nothing_is_ended(start, gpus):
    process = start("sglang::router", "run-1")
    gpus(process.pid)
    assert nodes.report(ASKED)["cleaned"] == []
    assert process.poll() is None


def test_a_pid_that_means_another_process_by_now_is_left_alone(start, gpus):
    gpus()
    process = start("sglang::router", "run-1")
    seen = found(process)[process.pid]
    earlier = dataclasses.replace(seen, started=seen.started - 1)
    assert [one["outcome"] for one in nodes._end([earlier])] == ["had ended"]
    assert process.poll() is None


def test_a_process_that_ended_meanwhile_is_no_failure(start, gpus):
    gpus()
    process = start("sglang::router", "run-1")
    seen = found(process)[process.pid]
    process.kill()
    process.wait()
    assert [one["outcome"] for one in nodes._end([seen])] == ["had ended"]


def test_a_node_tells_its_gpus(gpus):
    gpus()
    assert nodes.report(ASKED)["gpus"] == [
        {"name": "NVIDIA H200", "memory_mib": 143771, "memory_used_mib": 17, "driver": "570.1"},
        {"name": "NVIDIA H200", "memory_mib": 143771, "memory_used_mib": None, "driver": "570.1"},
    ]


def test_a_node_without_nvidia_smi_has_no_gpus_and_one_with_a_broken_driver_fails(gpus):
    assert nodes.report(ASKED)["gpus"] == []
    gpus(fail=True)
    with pytest.raises(RuntimeError, match="no driver"):
        nodes.report(ASKED)


@pytest.mark.parametrize(
    ("clock", "skew"), [(10.0, 0.0), (10.4, 0.0), (13.0, 2.5), (9.9, pytest.approx(-0.1)), (7.0, -3.0)]
)
def test_a_clock_is_off_only_as_far_as_the_answer_s_time_leaves_no_doubt(clock, skew):
    assert nodes.skew_seconds(10.0, clock, 10.5) == skew


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory) -> Iterator[RayCluster]:
    cluster = RayCluster.start(tmp_path_factory.mktemp("ray") / "log")
    try:
        cluster.wait_ready(lambda: None)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def job(ray_cluster, tmp_path) -> Callable[..., tuple[str, dict[str, Any] | None]]:
    """Runs arguments of the interpreter as a job with the plugins, and nothing else of ours, on its way."""
    package = tmp_path / "stage" / "recipe"
    shutil.copytree(
        Path(nodes.__file__).parent, package / "plugins", ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "__init__.py").touch()
    client = JobSubmissionClient(ray_cluster.jobs_url, headers=ray_cluster.headers)

    def run(*arguments: str) -> str:
        entrypoint = " ".join([f"cd / && {sys.executable} -P", *arguments])
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "nowhere")}
        runtime_env = {"py_modules": [str(package)], "env_vars": env}
        job = client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)
        deadline = time.monotonic() + 60
        while not client.get_job_status(job).is_terminal():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        log = client.get_job_logs(job)
        assert client.get_job_status(job) == JobStatus.SUCCEEDED, log
        return log

    return run


def question(runs_root: Path, **more: Any) -> str:
    return shlex.quote(json.dumps(ASKED | {"runs_root": str(runs_root)} | more))


def answer(log: str) -> dict[str, Any]:
    (line,) = [line for line in log.splitlines() if line.startswith(nodes.MARKER)]
    return json.loads(line.removeprefix(nodes.MARKER))


def test_the_job_asks_every_node_and_cleans(job, start, gpus, tmp_path):
    mine, other = start("sglang::scheduler_TP0", "run-1"), start("sglang::scheduler_TP0")
    gpus(mine.pid, other.pid)
    (tmp_path / "runs").mkdir()
    (node,) = answer(job("-m", "recipe.plugins.nodes", question(tmp_path / "runs", clean=["run-1"])))["nodes"]
    assert (node["alive"], node["error"], node["ip"], node["head"]) == (1, None, "127.0.0.1", True)
    assert (node["shared"], node["skew_seconds"], list((tmp_path / "runs").iterdir())) == (None, 0.0, [])
    assert (node["ray_gpus"], node["ray_gpus_available"], len(node["gpus"])) == (0.0, 0.0, 2)
    assert [one["pid"] for one in node["cleaned"]] == [mine.pid]
    assert other.pid in {one["pid"] for one in node["leftovers"]}
    assert mine.wait(5) == -15
    assert other.poll() is None


def test_a_node_that_fails_is_told_with_its_reason(job, gpus, tmp_path):
    gpus(fail=True)
    (node,) = answer(job("-m", "recipe.plugins.nodes", question(tmp_path)))["nodes"]
    assert node["error"] == "nvidia-smi failed (9): no driver"


def test_the_plugins_reach_actors_that_have_an_environment_of_their_own(job, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import ray\n"
        "@ray.remote(num_cpus=0)\n"
        "class Actor:\n"
        "    def file(self):\n"
        "        import recipe.plugins.agent\n"
        "        return recipe.plugins.agent.__file__\n"
        "import recipe.plugins.agent\n"
        "ray.init()\n"
        "actor = Actor.options(runtime_env={'env_vars': {'NCCL_CUMEM_ENABLE': '0'}}).remote()\n"
        "print('SAME', ray.get(actor.file.remote()) == recipe.plugins.agent.__file__)\n"
        "print('SHIPPED', 'py_modules' in recipe.plugins.agent.__file__)\n"
    )
    log = job(str(script))
    assert "SAME True" in log
    assert "SHIPPED True" in log
