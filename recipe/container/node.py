"""One node's part, as argument lists: it starts the container and joins Ray."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipe.errors import BadInputError
from recipe.files import read_text

GPUS_PER_NODE = 8
# A pipeline stage is a whole node; with fewer stages a GPU's share of the 276B parameters does not fit,
# and the 42 layers are laid out for six to eight.
NODES = range(6, 9)
RAY_PORT = 6379
DASHBOARD_HOST = "0.0.0.0"  # noqa: S104 - the recipe's own: reached from a workstation
DASHBOARD_PORT = 8265
# NCCL and SGLang keep their buffers between processes there.
SHARED_MEMORY_GIB = 64
# glibc gives each thread a heap of its own; the head node's many session servers would eat its memory.
RAY_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}
PROJECT_DIR = "/workspace/inkling-grpo"
# Where the container has the folders of the model, of tasks, prompts and runs, and of this project.
INSIDE = ("/root/models", "/data", PROJECT_DIR)


def mounts(model_root: Path, data_dir: Path, project: Path) -> list[tuple[str, str]]:
    """(outside, inside) of each shared folder, the same on every node.

    Raises BadInputError for a path that can't be written as a mount.
    """
    outsides = [str(path) for path in (model_root, data_dir, project)]
    for outside in outsides:
        if not outside.startswith("/") or ":" in outside or "," in outside or not outside.isprintable():
            raise BadInputError(
                "a folder can't be mounted",
                expected="an absolute path without colon, comma and what can't be printed",
                found=repr(outside),
            )
    return list(zip(outsides, INSIDE, strict=True))


def container_name(recipe: str) -> str:
    """The container's name on its node."""
    return f"inkling-grpo-{recipe}"


def start_command(
    image: str,
    recipe: str,
    shared: Sequence[tuple[str, str]],
    *,
    infiniband: bool = False,
    docker_socket: bool = False,
) -> list[str]:
    """Starts the container, which then waits for what is run in it.

    Host network and IPC: NCCL and Ray talk to other nodes, and to each other, as if there were no container.
    With the host's IPC, the host's own /dev/shm counts and --shm-size is for engines that keep them apart. The
    limits are those that NVIDIA asks for its PyTorch images: locked memory for RDMA, and a stack of 64 MiB.
    """
    command = ["docker", "run", "--detach", "--name", container_name(recipe)]
    command += ["--gpus", "all", "--network", "host", "--ipc", "host"]
    command += ["--shm-size", f"{SHARED_MEMORY_GIB}g"]
    command += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    if infiniband:
        command += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
    socket = [("/var/run/docker.sock", "/var/run/docker.sock")] if docker_socket else []
    for outside, inside in [*shared, *socket]:
        command += ["--volume", f"{outside}:{inside}"]
    return [*command, image, "sleep", "infinity"]


def ray_head_command(
    head_ip: str, *, dashboard_host: str = DASHBOARD_HOST, dashboard_port: int = DASHBOARD_PORT
) -> list[str]:
    """Starts Ray's head on this node, inside the container. The Jobs API is on the dashboard's port.

    Raises BadInputError for a port that is none, or Ray's own.
    """
    if dashboard_port == RAY_PORT or not 1 <= dashboard_port <= 65535:
        raise BadInputError(
            "the dashboard's port has a bad value",
            expected=f"1 to 65535, and not {RAY_PORT}, which is Ray's own",
            found=dashboard_port,
        )
    command = ["--head", "--node-ip-address", head_ip, "--port", str(RAY_PORT)]
    return _ray_start(*command, "--dashboard-host", dashboard_host, "--dashboard-port", str(dashboard_port))


def ray_worker_command(head_ip: str, node_ip: str) -> list[str]:
    """Joins the head's Ray, inside the container."""
    return _ray_start("--address", f"{head_ip}:{RAY_PORT}", "--node-ip-address", node_ip)


def in_container(recipe: str, command: list[str]) -> list[str]:
    """The same command for a shell outside the container."""
    return ["docker", "exec", container_name(recipe), *command]


def check_ip(name: str, value: str, *, listens: bool = False) -> str:
    """`value`, the IPv4 address of a node that others can reach, or one that a node `listens` on.

    Raises BadInputError: a host name can mean another address elsewhere.
    """
    try:
        ip = ipaddress.IPv4Address(value)
    except ValueError:
        ip = ipaddress.IPv4Address("255.255.255.255")
    if ip.is_multicast or ip.is_reserved or (not listens and (ip.is_loopback or ip.is_unspecified)):
        expected = "an IPv4 address" if listens else "the IPv4 address by which other nodes reach it"
        raise BadInputError(f"{name} is no address", expected=expected, found=repr(value))
    return str(ip)


def check_form(name: str, value: str, form: str, expected: str) -> str:
    """`value`, which matches the pattern `form`. Raises BadInputError with what was `expected`."""
    if not re.fullmatch(form, value, re.ASCII):
        raise BadInputError(f"{name} has a bad value", expected=expected, found=repr(value))
    return value


def check_num_nodes(value: int) -> int:
    """`value`, for which the recipe has a layout. Raises BadInputError."""
    if value not in NODES:
        raise BadInputError(
            "NUM_NODES has a bad value", expected=f"{NODES[0]} to {NODES[-1]} nodes", found=value
        )
    return value


def filled(template: Path, values: Mapping[str, str]) -> str:
    """The text of a template, each @name@ in it with its value."""
    return re.sub(r"@([a-z_]+)@", lambda match: values[match[1]], read_text(template))


def _ray_start(*options: str) -> list[str]:
    variables = [f"{name}={value}" for name, value in RAY_ENVIRONMENT.items()]
    node = ["--num-gpus", str(GPUS_PER_NODE), "--disable-usage-stats"]
    return ["env", *variables, "ray", "start", *options, *node]
