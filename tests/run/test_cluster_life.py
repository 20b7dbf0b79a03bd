"""A run on a cluster's life: a Ray that is there, stand-ins for Miles and Harbor; how it ends in every way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "harbor"))
from miles_standin.checkouts import make_checkouts
from miles_standin.cluster import GPUS, Wire, ray_head
from miles_standin.launched import Launched, wait_until
from standin.harbor_checkout import make_repository

from recipe.errors import BadInputError, RecipeError
from recipe.plugins import nodes
from recipe.presets import SMOKE
from recipe.process import LOOPBACK, free_port
from recipe.resolve import load
from recipe.run.attach import attach
from recipe.run.dashboard import find_ray
from recipe.run.interrupts import Interrupts

SECRETS = {name: f"planted-{name.lower()}" for name in ("WANDB_API_KEY", "DAYTONA_API_KEY", "HF_TOKEN")}
# Servers of the tests alone are leftovers: others on this machine may have some that run.
TITLES = f"TITLES = {nodes.TITLES}".replace("'", '"')
TITLE = f"sglang-{secrets.token_hex(4)}"
# Seconds: how long a lost connection is tried anew, and when that is told.
BOUNDS = (60.0, 30.0)
# What the dashboard shows of jobs, and of the processes and environments that belong to them.
PAGES = ("jobs/", "v0/jobs?detail=1", "v0/actors?detail=1", "v0/workers?detail=1", "v0/runtime_envs?detail=1")


@dataclass
class World:
    """The head node on which launchers are started: its Ray and what lies on its disk."""

    folder: Path
    ray: Path
    ports: dict[str, int]
    settings: dict[str, str]
    started: list[Launched] = field(default_factory=list)

    @property
    def client(self) -> JobSubmissionClient:
        return JobSubmissionClient(f"http://{LOOPBACK}:{self.ports['dashboard-port']}")

    def launch(
        self,
        name: str,
        orders: dict[str, Any],
        *,
        bounds: tuple[float, float] = BOUNDS,
        **settings: object,
    ) -> Launched:
        self.order(name, **orders)
        given = self.settings | {"RUN_NAME": name, "AGENT_SERVER_PORT": str(free_port())}
        words = [f"{key}={value}" for key, value in (given | settings).items()]
        return self._start(name, ["train-camel", *words], bounds, SECRETS)

    def attach(self, name: str, *, planted: dict[str, str] = SECRETS) -> Launched:
        return self._start(name, ["attach", str(self.folder / "runs" / name)], BOUNDS, planted)

    def _start(
        self, name: str, arguments: list[str], bounds: tuple[float, float], planted: dict[str, str]
    ) -> Launched:
        # Nobody listens at the proxy.
        own = {"TMPDIR": str(self.folder / "tmp"), "UV_OFFLINE": "1", "HTTP_PROXY": f"http://{LOOPBACK}:9"}
        env = os.environ | planted | own
        special = [str(self.folder / "plugins/__init__.py"), *map(str, bounds)]
        log = self.folder / f"launcher{len(self.started)}.log"
        self.started.append(Launched.start(self.folder / "runs" / name, log, [*special, *arguments], env))
        return self.started[-1]

    def order(self, name: str, **orders: Any) -> None:
        """Tells the stand-in of Miles what to do."""
        file = Path(self.settings["MILES_DIR"]) / "behaviour" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        (file.with_suffix(".new")).write_text(json.dumps(orders))
        file.with_suffix(".new").rename(file)

    def status(self, run: Launched) -> JobStatus:
        return self.client.get_job_status(run.record["job_id"])

    def server(self, run: str) -> subprocess.Popen[bytes]:
        """A process that calls itself as inference engines do, of an earlier run."""
        env = {"INKLING_GRPO_RUN": run}
        return subprocess.Popen([f"{TITLE}::scheduler", "600"], executable="/bin/sleep", env=env)

    def assert_nothing_left(self, run: Launched) -> None:
        wait_until(lambda: not list(run.of_the_run()))
        assert not (run.folder / "launcher/netrc").exists()
        # uv keeps its locks.
        assert [path for path in (self.folder / "tmp").iterdir() if not path.name.startswith("uv-")] == []


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("head")
    (folder / "tmp").mkdir()
    (folder / "runs").mkdir()
    shutil.copytree(Path(SMOKE["TASKS_DIR"]) / "write-greeting", folder / "tasks" / "write-greeting")
    shutil.copytree(Path(nodes.__file__).parent, folder / "plugins")
    text = (folder / "plugins/nodes.py").read_text()
    assert text.count(TITLES) == 1
    (folder / "plugins/nodes.py").write_text(text.replace(TITLES, f'TITLES = ("{TITLE}",)'))
    settings = make_checkouts(folder) | {
        "HEAD_IP": LOOPBACK,
        "TASKS_DIR": str(folder / "tasks"),
        "RUNS_ROOT": str(folder / "runs"),
        "HARBOR_DIR": str(folder / "harbor"),
        "HARBOR_COMMIT": make_repository(folder / "harbor"),
        "HARBOR_HOME": str(folder / "home"),
        "AGENT_SERVER_HOST": LOOPBACK,
        "SANDBOX_BACKEND": "daytona",
        "N_SAMPLES_PER_PROMPT": "2",
    }
    with ray_head(folder / "ray.log") as (ray, ports):
        world = World(folder, ray, ports, settings | {"RAY_DASHBOARD_PORT": str(ports["dashboard-port"])})
        yield world
        for run in world.started:
            run.process.kill()
            run.process.wait()


@pytest.fixture(scope="module")
def wire(world) -> Iterator[Wire]:
    with contextlib.closing(Wire(world.ports["dashboard-port"])) as wire:
        yield wire


@pytest.fixture(scope="module")
def runs(world, wire) -> dict[str, Launched]:
    """Started together: a start waits longer than it works."""
    runs = {name: world.launch(name, {"print": ["first"]}) for name in ("cut", "served", "killed", "alone")}
    runs["crash"] = world.launch("crash", {"print": ["what went wrong"], "exit": 3})
    runs["lost"] = world.launch("lost", {"print": ["first"]}, bounds=(8.0, 2.5), RAY_DASHBOARD_PORT=wire.port)
    return runs


def secrets_in(text: str) -> list[str]:
    return [name for name, value in SECRETS.items() if value in text]


def command_lines() -> Iterator[str]:
    """Those of all processes of this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_text(errors="replace")


def text_below(folder: Path, *, without: str = "") -> str:
    """All of it, but for what the stand-in's server wrote of its environment."""
    left_out = (without, "standin.jsonl")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in left_out]
    return "".join(path.read_text(errors="replace") for path in files)


def events_of(run: Launched) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]


def test_a_good_run_leaves_its_whole_folder_no_secret_and_nothing_running(world):
    leftover = world.server("earlier")
    run = world.launch("good", {"print": ["one"]}, CLEAN_LEFTOVERS=1, WANDB_ENTITY="team")
    lines: set[str] = set()
    wait_until(lambda: lines.update(command_lines()) or "\none\n" in run.output or run.process.poll())
    assert secrets_in("".join(lines)) == []
    assert f"127.0.0.1: ended: pid {leftover.pid} of" in run.output
    assert leftover.wait() == -signal.SIGTERM
    assert "warning: commits: 127.0.0.1: miles at " in run.output

    # While it runs, no secret is anywhere but in the login, and in the environment of the server that needs it.
    login = run.folder / "launcher/netrc"
    assert login.stat().st_mode & 0o777 == 0o600
    assert secrets_in(login.read_text()) == ["WANDB_API_KEY"]
    environments = {line: environment for _, line, environment in run.of_the_run()}
    assert len(environments) >= 4, environments
    for line, environment in environments.items():
        allowed = ["DAYTONA_API_KEY"] if "harbor.agent_server" in line else []
        assert secrets_in(environment) == allowed or "cli.main()" in line
    url = f"http://{LOOPBACK}:{world.ports['dashboard-port']}"
    pages = [httpx.get(f"{url}/api/{page}", trust_env=False).text for page in PAGES]
    assert run.record["job_id"] in pages[0]
    assert secrets_in("".join(pages) + text_below(run.folder, without="netrc") + text_below(world.ray)) == []

    world.order("good", print=["one", "two"], exit=0)
    code, output = run.end()
    assert code == 0, output
    assert output.count("\none\n") == output.count("\ntwo\n") == 1
    world.assert_nothing_left(run)
    assert secrets_in(output + text_below(run.folder) + text_below(world.ray)) == []

    seen = json.loads((run.folder / "seen.json").read_text())
    manager = seen["manager"]
    assert manager["rewards"] == [[1.0, 1.0]]
    assert manager["metrics"]["agent/exit_status/Submitted"] == 2
    assert seen["folder"] == world.settings["MILES_DIR"]
    assert seen["login"] == hashlib.sha256(SECRETS["WANDB_API_KEY"].encode()).hexdigest()
    # The plugins are those that travelled, in the driver and in an actor.
    assert seen["file"] == manager["file"]
    assert Path(seen["file"]).is_relative_to(world.ray)

    job = run.manifest["job"]
    for process in (seen, manager):
        assert {name for name in job["environment"] if name not in process["environment"]} == set()
    words = shlex.split(job["entrypoint"])
    assert seen["argv"] == ["train.py", "--num-layers", "42", "--disable-bias-linear", *words[4:]]
    assert words[-2:] == ["--wandb-team", "team"]

    manifest = run.manifest
    assert (manifest["exit_code"], manifest["error"]) == (0, None)
    assert manifest["ended"] > manifest["started"]
    assert manifest["pins"].keys() >= {"image", "model", "miles", "sglang", "harbor"}
    (node,) = manifest["nodes"]
    assert (node["ip"], node["ray_gpus"], node["leftovers"]) == (LOOPBACK, GPUS, [])
    assert [process["pid"] for process in node["cleaned"]] == [leftover.pid]
    assert (run.folder / "logs/train.log").read_text() == world.client.get_job_logs(job["id"])
    assert nodes.MARKER in (run.folder / "logs/nodes.log").read_text()
    assert "the stand-in starts" in (run.folder / "logs/agent_server.log").read_text()
    for file in ("run_manifest.md", "launcher/prompts.jsonl", "launcher/plugins/recipe/plugins/agent.py"):
        assert (run.folder / file).stat().st_size, file

    events = events_of(run)
    trials = [(event["trial"], event["state"]) for event in events if event["kind"] == "trial"]
    assert trials == [("0", "started"), ("0", "done"), ("1", "started"), ("1", "done")]
    phases = [(event["phase"], event["rollout"]) for event in events if event["kind"] == "phase"]
    assert sorted(phases) == [("generate", 0), ("save", 0), ("train", 0), ("update_weights", 0)]
    (group,) = [event for event in events if event["kind"] == "group"]
    told = [(one["sample"], one["turns"], one["task"]) for one in group["trials"]]
    assert told == [(0, 2, "write-greeting"), (1, 2, "write-greeting")]
    (rollout,) = [event for event in events if event["kind"] == "rollout"]
    metrics = rollout["metrics"]
    assert (metrics["reward_mean"], metrics["trials"], metrics["valid_step"]) == (0.5, 2, False)
    assert metrics["grad_norm"] is None  # NaN, which is written as null
    assert rollout["trials"]["agent/exit_status/Submitted"] == 2
    (checkpoint,) = [event for event in events if event["kind"] == "checkpoint"]
    assert checkpoint["path"] == str(run.folder / "checkpoints/iter_0000000")
    end = [event for event in events if event["kind"] == "end"][-1]
    assert (end["status"], end["error"]) == ("succeeded", None)
    assert "the optimizer's step was skipped" in output

    server, *asked = run.asked
    assert server["argv"][server["argv"].index("--environment") + 1] == "daytona"
    assert server["environment"]["DAYTONA_API_KEY"] == SECRETS["DAYTONA_API_KEY"]
    assert [one["path"] for one in asked] == ["/run", "/run", "/flush", "/flush_all"]
    assert asked[0]["body"]["instance_id"] == "write-greeting"
    assert asked[2]["body"] == {"session_server_instance_id": "instance-0"}

    before = text_below(run.folder)
    for again, told in ((world.launch("good", {}), "is in use"), (world.attach("good"), "the run has ended")):
        code, output = again.end()
        assert code == 2
        assert told in output
    assert text_below(run.folder) == before


def test_a_job_that_crashes_is_told_with_the_end_of_its_log(world, runs):
    run = runs["crash"]
    code, output = run.end()
    assert code == 1
    assert "error: the job ended as FAILED (exit code 3)\n  found    the end of its log:" in output
    assert output.splitlines()[-2:] == ["what went wrong", f"  where    {run.folder}/logs/train.log"]
    assert "Traceback" not in output
    assert run.manifest["exit_code"] == 1
    world.assert_nothing_left(run)


def test_ctrl_c_stops_the_job_and_flushes_the_trials(world, runs):
    run = runs["cut"]
    run.wait_for("first")
    run.process.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == 130
    said = "error: interrupted (SIGINT): everything that was started is stopped"
    assert output.splitlines()[-2:] == [said, f"  where    {run.folder}"]
    assert world.status(run) == JobStatus.STOPPED
    assert run.asked[-1]["path"] == "/flush_all"
    assert run.manifest["exit_code"] == 130
    world.assert_nothing_left(run)


def test_the_death_of_the_agent_server_stops_the_job(world, runs):
    run = runs["served"]
    run.wait_for("first")
    (server,) = [pid for pid, line, _ in run.of_the_run() if "harbor.agent_server" in line]
    os.kill(server, signal.SIGKILL)
    code, output = run.end()
    assert code == 1
    assert "error: agent server ended unexpectedly (exit code -9)" in output
    assert world.status(run) == JobStatus.STOPPED
    assert run.manifest["error"].startswith("agent server ended unexpectedly")
    world.assert_nothing_left(run)


def test_a_killed_launcher_is_replaced_by_attach_whose_exit_code_is_the_jobs(world, runs):
    run = runs["killed"]
    run.wait_for("first")
    url = run.record["agent_server_url"]
    code, output = world.attach("killed").end()
    assert code == 2
    assert "another launcher follows this run" in output
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not any("harbor.agent_server" in line for _, line, _ in run.of_the_run()))
    world.order("killed", print=["first", "away"])
    with socket.create_server((LOOPBACK, httpx.URL(url).port)):
        code, output = world.attach("killed").end()
    assert code == 2
    assert f"job {run.record['job_id']} was left as it is\nerror: the agent server's port is in use" in output
    code, output = world.attach("killed", planted={}).end()
    assert code == 2
    assert "error: Daytona needs credentials" in output
    assert world.status(run) == JobStatus.RUNNING
    assert run.manifest["ended"] is None
    attached = world.attach("killed")
    attached.wait_for("goes on")
    world.order("killed", print=["first", "away", "last"])
    attached.wait_for("last")
    assert httpx.get(f"{url}/health", trust_env=False).is_success
    assert (run.folder / "launcher/netrc").exists()
    world.order("killed", print=["first", "away", "last"], exit=3)
    code, output = attached.end()
    assert code == 1
    assert "error: the job ended as FAILED (exit code 3)" in output
    before = output.partition("error: ")[0]
    assert [before.count(f"\n{line}\n") for line in ("first", "away", "last")] == [0, 1, 1]
    assert (run.folder / "logs/train.log").read_text() == world.client.get_job_logs(run.record["job_id"])
    assert run.manifest["exit_code"] == 1
    kinds = Counter(event["kind"] for event in events_of(run))
    assert (kinds["rollout"], kinds["trial"], kinds["checkpoint"], kinds["end"]) == (1, 4, 1, 1)
    world.assert_nothing_left(run)


def test_a_job_that_ended_while_nobody_followed_is_told_by_attach(world, runs):
    run = runs["alone"]
    run.wait_for("first")
    run.process.kill()
    run.process.wait()
    world.order("alone", print=["first", "last"], exit=0)
    wait_until(lambda: world.status(run).is_terminal())
    assert (run.folder / "launcher/netrc").exists()
    code, output = world.attach("alone").end()
    assert code == 0
    assert "has ended meanwhile" in output
    assert "\nlast\n" in output
    assert (run.folder / "logs/train.log").read_text() == world.client.get_job_logs(run.record["job_id"])
    assert run.manifest["exit_code"] == 0
    world.assert_nothing_left(run)


def test_what_belongs_to_a_run_that_goes_on_refuses_a_start_and_is_not_cleaned(world, runs):
    run = runs["lost"]
    run.wait_for("first")
    world.order("lost", print=["first"], server=TITLE)
    wait_until(lambda: any(line.startswith(TITLE) for _, line, _ in run.of_the_run()))
    other = world.launch("other", {}, CLEAN_LEFTOVERS=1)
    code, output = other.end()
    assert code == 2
    assert "error: another run is going on" in output
    assert f"recipe attach {run.folder}" in output
    assert not other.folder.exists()
    assert any(line.startswith(TITLE) for _, line, _ in run.of_the_run())
    world.assert_nothing_left(other)


def test_a_lost_connection_is_tried_anew_and_in_the_end_left_to_attach(world, runs, wire):
    run = runs["lost"]
    run.wait_for("first")
    wire.cut()
    run.wait_for("Ray does not answer; the job may go on")
    world.order("lost", print=["first", "second"])
    wire.restore()
    run.wait_for("Ray answers again")
    run.wait_for("second")
    wire.cut()
    code, output = run.end()
    assert code == 1
    assert "error: Ray no longer answers for the job\n" in output
    assert output.splitlines()[-1] == f"  run      recipe attach {run.folder}"
    assert world.status(run) == JobStatus.RUNNING
    assert run.manifest["ended"] is None
    assert not (run.folder / "launcher/netrc").exists()

    wire.restore()
    attached = world.attach("lost")
    attached.wait_for("goes on")
    world.order("lost", print=["first", "second", "third"])
    attached.wait_for("third")
    log = (run.folder / "logs/train.log").read_text()
    assert [log.count(f"\n{line}\n") for line in ("first", "second", "third")] == [1, 1, 1]
    # What can't be stopped is not said to be.
    wire.cut()
    attached.process.send_signal(signal.SIGTERM)
    code, output = attached.end()
    assert code == 1
    assert "error: the job could not be stopped\n" in output
    assert output.splitlines()[-1] == f"  run      recipe attach {run.folder}"
    assert world.status(run) == JobStatus.RUNNING
    assert run.manifest["ended"] is None

    wire.restore()
    attached = world.attach("lost")
    attached.wait_for("goes on")
    attached.process.send_signal(signal.SIGTERM)
    code, output = attached.end()
    assert code == 130, output
    assert world.status(run) == JobStatus.STOPPED
    assert run.asked[-1]["path"] == "/flush_all"
    assert run.manifest["exit_code"] == 130
    world.assert_nothing_left(run)


def test_a_job_that_ray_does_not_know_leaves_the_run_as_it_is(world, runs):
    known, unknown = runs["crash"], world.folder / "unknown"
    (unknown / "launcher").mkdir(parents=True)
    (unknown / "run_manifest.json").write_text(json.dumps({"ended": None, "exit_code": None}))
    (unknown / "launcher/job.json").write_text(json.dumps(known.record | {"job_id": "none"}))
    with pytest.raises(RecipeError, match="Ray does not know the job none"):
        attach(unknown, Console(), Interrupts())
    assert json.loads((unknown / "run_manifest.json").read_text()) == {"ended": None, "exit_code": None}


def test_a_port_that_is_not_the_dashboards_refuses_the_start_and_leaves_no_folder(world):
    run = world.launch("gcs", {}, RAY_DASHBOARD_PORT=world.ports["port"])
    code, output = run.end()
    assert code == 2
    assert "error: what answers is not Ray's dashboard" in output
    assert not run.folder.exists()
    world.assert_nothing_left(run)


def test_a_dashboard_on_loopback_alone_is_told(world):
    settings = {"HEAD_IP": "127.0.0.2", "RAY_DASHBOARD_PORT": str(world.ports["dashboard-port"])}
    with pytest.raises(BadInputError, match="listens on loopback only"):
        find_ray(
            load("train-camel", [f"{name}={value}" for name, value in (world.settings | settings).items()])
        )
