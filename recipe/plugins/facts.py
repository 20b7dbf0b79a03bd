"""What a node tells of itself before a run, as plain JSON: software, limits, space, network, shared folders.

Nothing is judged here, and nothing but the file that shows RUNS_ROOT to be shared is written. Standard library and
Ray only, and nothing else of recipe: it travels to the nodes.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ray import get_runtime_context
from ray._private import worker

PINS = Path("/etc/inkling-grpo/pins.json")
CUDA = Path("/usr/local/cuda/version.json")
# A version that differs on one node shows as wrong numbers or as a hang, long after the start.
PACKAGES = (
    "torch",
    "sglang",
    "sgl-kernel",
    "sglang-kernel",
    "sglang-router",
    "transformers",
    "transformer-engine",
)
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "nofile": resource.RLIMIT_NOFILE,
}
GIT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
# ioctl's number for an interface's IPv4 address (Linux, netdevice(7)).
SIOCGIFADDR = 0x8915
NONCE = "nonce"


def facts(asked: dict[str, Any]) -> dict[str, Any]:
    """`asked`: folders by source, features, models (files), head (address, port), shared (folder or None), nonce."""
    folders = asked["folders"]
    return {
        "memory_available_mib": _memory_available(),
        "packages": {one.name: one.version for one in distributions() if one.name in PACKAGES},
        "cuda": json.loads(CUDA.read_text())["cuda"]["version"] if CUDA.is_file() else None,
        "limits": {name: resource.getrlimit(number)[0] for name, number in LIMITS.items()},
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").total,  # noqa: S108 - the kernel's own
        "space": {folder: _space(Path(folder)) for folder in (tempfile.gettempdir(), _ray_folder())},
        "pins": json.loads(PINS.read_text()) if PINS.is_file() else None,
        "heads": {name: _commit(folder) for name, folder in folders.items()},
        "changed": {name: _changed(folder) for name, folder in folders.items()},
        "megatron": Path(folders["megatron"], "megatron", "core").is_dir(),
        "features_lacking": [one["name"] for one in asked["features"] if not _holds(one, folders)],
        "sglang": _imported("sglang"),
        "interfaces": interfaces(),
        "route": _route(*asked["head"]),
        "models": {path: _digest(Path(path)) for path in asked["models"]},
        "model_bytes": _model_bytes(Path(asked["models"][0])),
        "shared": share(asked["shared"], asked["nonce"]),
        "runs_space": _space(Path(asked["shared"] or "/")),
    }


def interfaces() -> dict[str, str | None]:
    """The IPv4 address of each network interface by its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return {name: _address(probe, name) for _, name in socket.if_nameindex()}


def share(folder: str | None, nonce: str) -> str | None:
    """Reads the head's file in the shared folder and writes one of this node; why that fails, or None."""
    if folder is None:
        return "the head can't write there"
    try:
        if Path(folder, NONCE).read_text() != nonce:
            return "another text than the head wrote"
        Path(folder, get_runtime_context().get_node_id()).write_text(nonce)
    except OSError as error:
        return str(error)
    return None


def _address(probe: socket.socket, name: str) -> str | None:
    with suppress(OSError):  # it has none
        told = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
        return socket.inet_ntoa(told[20:24])
    return None


def _route(host: str, port: int) -> dict[str, str]:
    """From which address this node reaches the head's dashboard, or why it doesn't."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            return {"address": connection.getsockname()[0]}
    except OSError as error:
        return {"error": str(error)}


def _holds(feature: dict[str, Any], folders: dict[str, str]) -> bool:
    """Whether the file meets the one condition: present, absent or pattern (as recipe.pins.Feature)."""
    with suppress(OSError):
        text = Path(folders[feature["source"]], feature["file"]).read_text(errors="replace")
        if feature["pattern"] is not None:
            return re.search(feature["pattern"], text, re.MULTILINE) is not None
        return feature["absent"] not in text if feature["present"] is None else feature["present"] in text
    return False


def _imported(name: str) -> str | None:
    """Where this Python would import a package from."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return str(Path(next(iter(spec.submodule_search_locations))).resolve())
    return None


def _space(folder: Path) -> dict[str, int | float | None]:
    """Free bytes, share in use, free inodes (None: the file system counts none)."""
    told = os.statvfs(next(part for part in (folder, *folder.parents) if part.exists()))
    used = 1 - told.f_bavail / max(1, told.f_blocks)
    return {
        "free": told.f_bavail * told.f_frsize,
        "used": used,
        "inodes": told.f_favail if told.f_files else None,
    }


def _ray_folder() -> str:
    node: Any = worker.global_worker.node
    return str(node.get_session_dir_path())


def _commit(checkout: str) -> str | None:
    """The commit of a checkout; None where there is none, even in a checkout around it."""
    told = _git(checkout, "rev-parse", "HEAD")
    return told and told.strip()


def _changed(checkout: str) -> int | None:
    """How many files of a checkout's commit were changed or deleted; what was built beside them does not count."""
    told = _git(checkout, "diff", "--name-only", "HEAD")
    return None if told is None else len(told.splitlines())


def _git(checkout: str, *words: str) -> str | None:
    """What git answers about a checkout, whoever owns it; it writes nothing there, not even its index."""
    with suppress(OSError, subprocess.SubprocessError):
        command = [
            "git",
            "--no-optional-locks",
            "--git-dir",
            f"{checkout}/.git",
            "--work-tree",
            checkout,
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
        return done.stdout
    return None


def _digest(path: Path) -> str | None:
    """Twelve digits of a file's SHA-256: enough to tell a handful of copies apart."""
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return None


def _model_bytes(index: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(index.read_text())["metadata"]["total_size"])
    return None


def _memory_available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:"))
