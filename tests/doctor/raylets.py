"""A Ray cluster of several nodes on this machine: each an address of loopback, with tools of its own on PATH."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from recipe import keeper
from recipe.process import ProcessGroup, free_ports
from recipe.run.ray_cluster import PORT_OPTIONS, STOP_SECONDS

# Of 127.0.0.1, Ray would make another address of this machine.
HEAD = "127.0.0.2"
# Only the head has a dashboard and takes clients.
OF_HEAD = ("port", "dashboard-port", "ray-client-server-port")
START_SECONDS = 180.0
# Its last argument is the folder, and a command follows.
OWN_FOLDER = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')


def gpu_tool(folder: Path, driver: str = "570.86.15", count: int = 8) -> Path:
    """A folder with a program nvidia-smi, which tells of `count` GPUs without any process."""
    folder.mkdir(parents=True)
    tool = folder / "nvidia-smi"
    rows = f"NVIDIA H200, 143771, 4, {driver}\\n" * count
    tool.write_text(f"#!/bin/sh\ncase $1 in *gpu=*) printf '{rows}';; esac\n")
    tool.chmod(0o755)
    return folder


@contextmanager
def raylets(logs: Path, tools: Sequence[Path], token: str, hidden: Path | None = None) -> Iterator[int]:
    """A node for each of `tools`, at HEAD and on, the first the head; the port of the dashboard.

    The last one has a folder of its own in place of `hidden`.
    """
    with ExitStack() as stack:
        port = dict(zip(PORT_OPTIONS, free_ports(len(PORT_OPTIONS), HEAD), strict=True))
        start(stack, logs, HEAD, tools[0], token, port, ["--head", f"--dashboard-host={HEAD}"])
        url, headers = f"http://{HEAD}:{port['dashboard-port']}", {"Authorization": f"Bearer {token}"}
        wait_until(lambda: httpx.get(f"{url}/api/jobs/", headers=headers).is_success)
        alive = f"{url}/nodes?view=summary"
        for number, path in enumerate(tools[1:], 3):
            ip = f"127.0.0.{number}"
            names = [name for name in PORT_OPTIONS if name not in OF_HEAD]
            ports = dict(zip(names, free_ports(len(names), ip), strict=True))
            prefix = [*OWN_FOLDER, str(hidden)] if hidden and path is tools[-1] else []
            start(stack, logs, ip, path, token, ports, [f"--address={HEAD}:{port['port']}"], prefix)
            # One after the other: a node that is kept waiting by others gives up after 30 s.
            count = number - 1
            wait_until(
                lambda count=count: len(httpx.get(alive, headers=headers).json()["data"]["summary"]) == count
            )
        yield port["dashboard-port"]


def start(
    stack: ExitStack,
    logs: Path,
    ip: str,
    tools: Path,
    token: str,
    ports: dict[str, int],
    more: list[str],
    prefix: Sequence[str] = (),
) -> None:
    folder = Path(tempfile.gettempdir()) / f"ray-{secrets.token_hex(4)}"
    argv = [sys.executable, "-S", keeper.__file__, str(folder), *prefix]
    argv += [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--node-ip-address={ip}", *more]
    argv += [f"--{name}={value}" for name, value in ports.items()]
    argv += ["--num-gpus=8", "--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats"]
    argv += ["--min-worker-port=0", "--max-worker-port=0"]
    argv += ["--no-monitor", f"--temp-dir={folder}"] if "--head" in more else []
    env = {
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "TMPDIR": str(folder),
        "HOME": str(logs),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # Else Ray starts a worker for each processor before anybody asks for one.
        "RAY_prestart_worker_first_driver": "0",
    }
    process = ProcessGroup.start(f"Ray at {ip}", argv, log=logs / f"{ip}.log", env=env)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(process.stop, grace=STOP_SECONDS)


def may_hide(folder: Path) -> bool:
    """Whether this user may mount: containers often may not."""
    return (
        subprocess.run([*OWN_FOLDER, str(folder), "true"], capture_output=True, check=False).returncode == 0
    )


def wait_until(holds) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError, KeyError, ValueError, TypeError):
            if holds():
                return
        time.sleep(0.2)
    raise TimeoutError("Ray did not start")
