"""A private Ray on this machine: own ports, token and folder; loopback only; nothing of it outlives us."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from recipe import keeper
from recipe.given import child_environment
from recipe.process import LOOPBACK, ProcessGroup, free_ports

# Actors and the job's supervisor ask for one logical CPU each; what runs at once is the engine's affair.
LOGICAL_CPUS = 8
# The weights of the tiny model are 52 MB, and a new version is put while the old one is still held.
OBJECT_STORE_BYTES = 256 * 2**20
# Seven seconds on two free cores.
START_SECONDS = 120.0
# The keeper's own two graces and a margin.
STOP_SECONDS = keeper.GRACE_SECONDS + keeper.KILL_SECONDS + 4
PORT_OPTIONS = (
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "node-manager-port",
    "object-manager-port",
    "ray-client-server-port",
    "port",
)


@dataclass
class RayCluster:
    """`jobs_url` is the address of the Jobs API, `headers` what it wants to see; `folder` holds all its files."""

    process: ProcessGroup
    folder: Path
    jobs_url: str
    headers: dict[str, str]

    @classmethod
    def start(cls, log: Path) -> RayCluster:
        """Starts Ray's head node and returns at once; see `wait_ready`."""
        # Not in the run folder: Ray puts sockets deep below it, and a socket's path has at most 107 bytes.
        folder = Path(tempfile.gettempdir()) / f"ray-{secrets.token_hex(4)}"
        ports = free_ports(len(PORT_OPTIONS) + 1)
        options = [f"--{name}={port}" for name, port in zip(PORT_OPTIONS, ports, strict=False)]
        token = secrets.token_hex(32)
        ray = Path(sys.executable).with_name("ray")
        argv = [
            sys.executable,
            "-S",
            keeper.__file__,
            str(folder),
            str(ray),
            "start",
            "--head",
            "--block",
            *options,
        ]
        argv += [f"--dashboard-host={LOOPBACK}", f"--node-ip-address={LOOPBACK}", f"--temp-dir={folder}"]
        argv += ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats", "--no-monitor"]
        argv += [f"--num-cpus={LOGICAL_CPUS}", "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        # Ray speaks to nobody beyond loopback, and a proxy's address may hold a password.
        passed_on = {
            name: value for name, value in child_environment().items() if "proxy" not in name.lower()
        }
        env = passed_on | _environment(folder, token, ports[-1])
        process = ProcessGroup.start("Ray", argv, log=log, env=env)
        return cls(process, folder, f"http://{LOOPBACK}:{ports[0]}", {"Authorization": f"Bearer {token}"})

    def wait_ready(self, watch: Callable[[], None]) -> None:
        """Waits until the Jobs API answers. Raises RecipeError with the log's tail when Ray can't start."""
        self.process.wait_ready(self._answers, seconds=START_SECONDS, watch=watch)

    def _answers(self) -> bool:
        try:
            # It lists jobs only when the head node's agent, which starts them, is up as well.
            return httpx.get(f"{self.jobs_url}/api/jobs/", headers=self.headers, timeout=5).is_success
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """Ends every process of this Ray, and removes the folder that a keeper which was killed has left."""
        self.process.stop(grace=STOP_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def _environment(folder: Path, token: str, metric_port: int) -> dict[str, str]:
    return {
        # Else Ray starts a worker for each processor before anybody asks for one.
        "RAY_prestart_worker_first_driver": "0",
        # What multiprocessing and torch leave behind goes with Ray's own files; no name there comes near 107 bytes.
        "TMPDIR": str(folder),
        # Off, Ray binds loopback instead of every interface.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Other users of this machine reach loopback too, and the Jobs API runs commands.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "DASHBOARD_METRIC_PORT": str(metric_port),
        # Logs tell every line as it is: by default Ray folds repeated ones of several workers.
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        # By default Ray waits for its actors to end by themselves: when it is stopped, the job is over.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
