"""What a sound node of the cluster tells, as recipe/plugins/nodes.py prints it."""

from __future__ import annotations

import json
from typing import Any

from recipe.container.image import record
from recipe.pins import load_pins
from recipe.resolve import load
from recipe.settings import Settings

GIB = 2**30
SOURCES = load_pins().recipes["camel"].sources


def settings_of(*words: str) -> Settings:
    return load("train-camel", ["HEAD_IP=10.0.0.1", "TASKS_DIR=t", "RUNS_ROOT=/runs", *words])


def process(run: str | None = None, **facts: Any) -> dict[str, Any]:
    told = {"pid": 7, "user": "someone", "command": "sglang::router", "gpu_memory_mib": None}
    return told | {"run": run} | facts


def node(number: int = 1, **facts: Any) -> dict[str, Any]:
    """The node 10.0.0.NUMBER of eight; the first is the head."""
    gpu = {"name": "NVIDIA H200", "memory_mib": 143771, "memory_used_mib": 4, "driver": "570.86.15"}
    told = {
        "ip": f"10.0.0.{number}",
        "hostname": f"node{number}",
        "alive": 8,
        "head": number == 1,
        "error": None,
        "router": {"dropped": []},
        "session_servers": {"seconds": 8.0, "cpu_seconds": 9.0, "cores": 128},
        "ray_gpus_available": 8.0,
        "python": "3.12.3",
        "ray": "2.60.0",
        "gpus": [gpu] * 8,
        "leftovers": [],
        "cleaned": [],
        "skew_seconds": 0.0,
        "memory_available_mib": 1900 * 1024,
        "packages": {"torch": "2.9.1+cu129"},
        "cuda": "12.9.1",
        "limits": {"memlock": -1, "stack": 64 * 2**20, "nofile": 65536},
        "shared_memory_bytes": 64 * GIB,
        "space": {"/tmp": {"free": 50 * GIB, "used": 0.95, "inodes": 10**6}},
        "pins": json.loads(record(load_pins(), "camel")),
        "heads": {"miles": SOURCES["miles"].rev, "sglang": SOURCES["sglang"].rev, "megatron": "c" * 40},
        "changed": {"miles": 0, "sglang": 0, "megatron": None},
        "megatron": True,
        "features_lacking": [],
        "sglang": "/sgl-workspace/sglang/python/sglang",
        "interfaces": {"lo": "127.0.0.1", "eth0": f"10.0.0.{number}", "ib0": None, "docker0": "172.17.0.1"},
        "route": {"address": f"10.0.0.{number}"},
        "models": {"/m/index.json": "0123456789ab"},
        "model_bytes": 540 * 10**9,
        "shared": None,
        "runs_space": {"free": 3 * 540 * 10**9, "used": 0.1, "inodes": 600_000},
    }
    return told | facts


def nodes(count: int = 8, **facts: Any) -> list[dict[str, Any]]:
    """`count` sound nodes, the last one but for `facts`."""
    return [*(node(number) for number in range(1, count)), node(count, **facts)]
