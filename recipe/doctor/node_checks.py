"""What the cluster's nodes must have: one row a check. A row without a condition holds when all nodes show the same."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.container.image import record
from recipe.container.node import SHARED_MEMORY_GIB
from recipe.doctor import plan
from recipe.doctor.results import UnaskedError
from recipe.pins import load_pins
from recipe.settings import Settings

Node = dict[str, Any]
GIB = 2**30
# A message names as many processes as can be read.
NAMED = 8
# Logs and events of different nodes are compared by their times.
CLOCK_SECONDS = 2.0
# A day's logs, and several rollouts' samples with their routes (4.2 GB each), which the object store may spill.
TEMPORARY_GIB = 50
# Beyond it Ray takes a disk for full (its local_fs_capacity_threshold).
RAY_FULL = 0.95
# What NVIDIA asks for with its PyTorch images, and what Ray asks for.
STACK_BYTES, OPEN_FILES = 64 * 2**20, 65536
# Measured: one session server of Miles.
SESSION_SERVER_BYTES = 1.29e9
PINNED = ("miles", "sglang")
# Of a checkpoint, weights only, where the model's index does not tell.
CHECKPOINT_BYTES = 550e9
# Files: of a checkpoint, two of each GPU and its index; of a rollout's details, one of each sample for each GPU of
# the last stage; of a trial, its logs and records.
CHECKPOINT_FILES, DETAIL_FILES, TRIAL_FILES = 200, 1100, 20


@dataclass(frozen=True)
class NodeCheck:
    """`cell` is what is shown of a node, `holds` judges it; `symptom` is what a run shows that started all the same.

    A cell that can't be told raises UnaskedError: the check is skipped.
    """

    name: str
    expected: str | Callable[[Settings], str]
    cell: Callable[[Node, Settings], Any]
    holds: Callable[[Any, Settings], bool] | None
    symptom: str
    run: str
    strict: bool = False  # without STRICT_PINS it only warns
    equal: bool = False  # besides, all nodes show the same; so it is without `holds`
    head: bool = False  # about the head node alone


def told(process: dict[str, Any]) -> str:
    """A process as people read it."""
    memory = process["gpu_memory_mib"]
    of_run = f", of run {process['run']}" if process["run"] else ""
    on_gpu = f", {memory} MiB of a GPU" if memory else ""
    return f"pid {process['pid']} of {process['user']}{of_run}{on_gpu}: {process['command']}"


def _left(node: Node, _s: Settings) -> list[str]:
    named = [told(process) for process in node["leftovers"]]
    return named[:NAMED] + ([f"and {len(named) - NAMED} more"] if len(named) > NAMED else [])


def _gpus(node: Node, _s: Settings) -> list[str]:
    kinds = Counter(f"{gpu['name']}, {gpu['memory_mib']} MiB" for gpu in node["gpus"])
    return [f"{count} x {kind}" for kind, count in kinds.items()]


def _full(cell: list[str], s: Settings) -> bool:
    return [one.split()[0] for one in cell] == [str(s.gpus_per_node)]


def _commits(node: Node, s: Settings) -> list[str]:
    """The checkouts that are not at their pins, or are changed."""
    sources, heads, changed = load_pins().recipes[s.recipe].sources, node["heads"], node["changed"]
    other = [f"{of} at {heads[of] or 'no commit'}" for of in PINNED if heads[of] != sources[of].rev]
    return other + [f"{of}: {changed[of]} changed files" for of in PINNED if changed[of]]


def _megatron(node: Node, _s: Settings) -> str:
    """The image's digest pins it: it needs no commit."""
    return str(node["heads"]["megatron"] or ("no commit" if node["megatron"] else "missing"))


def _pin_file(node: Node, s: Settings) -> str:
    if node["pins"] is None:
        return "no pin file"
    return "" if node["pins"] == json.loads(record(load_pins(), s.recipe)) else "of other pins"


def _sglang(node: Node, s: Settings) -> str:
    return "" if node["sglang"] == str(s.sglang_dir / "python" / "sglang") else str(node["sglang"])


def _router(node: Node, _s: Settings) -> str:
    told = node["router"]
    if "skipped" in told:
        raise UnaskedError(told["skipped"])
    dropped = ", ".join(told.get("dropped", ()))
    return told.get("error") or (f"drops {dropped}" if dropped else "")


def _start(node: Node, s: Settings) -> str:
    """What the pool of session servers needs to start, from two that were started; and what Miles gives it."""
    told, given = node["session_servers"], 30.0
    by_pool = "session servers get time to start" not in node["features_lacking"]
    if by_pool:  # since then at least 2 s a server
        given = max(given, 2.0 * s.session_servers)
    if "error" in told:
        return str(told["error"])
    if "skipped" in told:
        return f"{2.0 * s.session_servers:.0f} s as a rule ({told['skipped']}), {given:.0f} s given"
    # All start at once: by then each has had its share of the cores.
    needed = max(told["seconds"], s.session_servers * told["cpu_seconds"] / told["cores"])
    measured = (
        f"two took {told['seconds']:.1f} s, {told['cpu_seconds']:.1f} CPU s each, {told['cores']} cores"
    )
    return f"{needed:.0f} s ({measured}), {given:.0f} s given"


def _in_time(cell: str, _s: Settings) -> bool:
    seconds = re.fullmatch(r"(\d+) s .*, (\d+) s given", cell)
    return seconds is not None and int(seconds[1]) <= int(seconds[2])


def _planned(s: Settings) -> float:
    """GiB of a node at its fullest."""
    return max(of_nodes[s.num_nodes] for of_nodes in plan.build(s).phases["host memory"].values())


def _available(node: Node, _s: Settings) -> int:
    return int(node["memory_available_mib"]) // 1024


def _servers(s: Settings) -> float:
    return s.session_servers * SESSION_SERVER_BYTES / GIB


def _limit(name: str) -> Callable[[Node, Settings], float]:
    return lambda node, _s: math.inf if node["limits"][name] < 0 else node["limits"][name]


def _at_least(least: float) -> Callable[[Any, Settings], bool]:
    return lambda cell, _s: cell >= least


def _scarce(node: Node, _s: Settings) -> list[str]:
    """Folders of temporary files without room."""
    return [
        f"{folder}: {of['free'] / GIB:.0f} GiB free, {of['used']:.0%} used"
        for folder, of in node["space"].items()
        if of["free"] < TEMPORARY_GIB * GIB or of["used"] > RAY_FULL
    ]


def _route(node: Node, _s: Settings) -> str:
    """From which interface this node reaches the head."""
    if "error" in node["route"]:
        return f"does not reach it: {node['route']['error']}"
    address = node["route"]["address"]
    names = [name for name, of in node["interfaces"].items() if of == address]
    local = ", link-local" if ipaddress.ip_address(address).is_link_local else ""
    return f"{address} of {names[0] if names else 'an interface without a name'}{local}"


def _absent(node: Node, s: Settings) -> list[str]:
    """The interfaces that NCCL and Gloo are told to use, and that this node has not."""
    nccl, gloo = s.nccl_socket_ifname or "^", (s.gloo_socket_ifname or "").split(",")
    absent = [name for name in gloo if name and name not in node["interfaces"]]
    if nccl.startswith("^"):  # all but these
        return absent
    # NCCL takes the start of a name, and after "=" a whole one.
    fits = str.__eq__ if nccl.startswith("=") else str.startswith
    names = nccl.removeprefix("=").split(",")
    return absent + [name for name in names if not any(fits(one, name) for one in node["interfaces"])]


def _models(node: Node, _s: Settings) -> list[str]:
    return [f"{Path(path).name} {digest or 'missing'}" for path, digest in node["models"].items()]


def _saves(s: Settings) -> int:
    """Every checkpoint, and one more: what can't be written whole must not cost what is there."""
    return plan.saves(s) + 1


def _lacking(node: Node, s: Settings) -> list[str]:
    """What RUNS_ROOT has too little of."""
    space, size = node["runs_space"], _saves(s) * (node["model_bytes"] or CHECKPOINT_BYTES)
    trials = s.over_sampling_batch_size * s.n_samples_per_prompt
    files = _saves(s) * CHECKPOINT_FILES + s.num_rollout * (
        s.dump_details * DETAIL_FILES + trials * TRIAL_FILES
    )
    bytes_lacking = (
        [f"{space['free'] / 1e9:.0f} GB free of {size / 1e9:.0f} GB"] if space["free"] < size else []
    )
    few = space["inodes"] is not None and space["inodes"] < files
    return bytes_lacking + ([f"{space['inodes']} inodes free of {files}"] if few else [])


def nothing(cell: Any, _s: Settings) -> bool:
    """For cells that tell what is wrong."""
    return not cell


SAME = "the same on every node"
HANG = "NCCL hangs at the first collective, or times out"
NODE_CHECKS = (
    NodeCheck("nodes", lambda s: f"{s.num_nodes} nodes (NUM_NODES), and an answer of each",
              lambda n, _: n["error"] or f"one of {n['alive']}", lambda cell, s: cell == f"one of {s.num_nodes}",
              "the job waits for its GPUs and prints nothing", "ray status"),
    NodeCheck("versions", SAME, lambda n, _: f"Python {n['python']}, Ray {n['ray']}", None,
              "workers die, or Ray refuses them for their version", "start every node from one image"),
    NodeCheck("packages", SAME, lambda n, _: [f"{of} {version}" for of, version in n["packages"].items()], None,
              "numbers differ between nodes, or a kernel is missing on one", "start every node from one image"),
    NodeCheck("free GPUs", lambda s: f"{s.gpus_per_node} of each node", lambda n, _: int(n["ray_gpus_available"]),
              lambda cell, s: cell == s.gpus_per_node, "the job waits for its GPUs and prints nothing", "ray status"),
    NodeCheck("GPUs", lambda s: f"{s.gpus_per_node} of one kind, {SAME}", _gpus,
              _full,
              "one node runs out of GPU memory", "nvidia-smi", equal=True),
    NodeCheck("driver", SAME, lambda n, _: sorted({gpu["driver"] for gpu in n["gpus"]}), None, HANG, "nvidia-smi"),
    NodeCheck("CUDA", SAME, lambda n, _: n["cuda"], None, "a kernel can't be compiled on one node",
              "start every node from one image"),
    NodeCheck("leftovers", "no process of SGLang, of Miles or on a GPU", _left, nothing,
              "GPU memory runs out at the start, or a port is in use",
              "CLEAN_LEFTOVERS=1 ends those of earlier runs; the others are their owners' affair"),
    NodeCheck("pin file", "of these pins", _pin_file, nothing, "nobody can tell what is in the image",
              "recipe container build", strict=True),
    NodeCheck("commits", "Miles and SGLang at the recipe's commits, unchanged", _commits, nothing,
              "a flag is unknown, or means something else", "recipe container check", strict=True),
    NodeCheck("Megatron", f"there, and {SAME}", _megatron, lambda cell, _: cell != "missing",
              "ranks differ, or can't be imported", "start every node from one image", equal=True),
    NodeCheck("features", "all that pins/relied_on.json names", lambda n, _: n["features_lacking"], nothing,
              "histories are rendered anew, or trials go on after their rollout", "recipe container check"),
    NodeCheck("imported SGLang", "SGLANG_DIR", _sglang, nothing,
              "SGLang calls itself 0.0.0.dev, or is another than the checkout",
              "pip install --no-deps -e SGLANG_DIR/python"),
    NodeCheck("router", "passes on input_ids, return_meta_info and return_routed_experts", _router,
              nothing, "token ids or routed experts are missing from the engine's replies",
              "install the image's own sglang-router again: PyPI's has the same version and drops them", head=True),
    NodeCheck("memory", lambda s: f"{_planned(s):.0f} GiB available, as planned", _available,
              lambda cell, s: cell >= _planned(s), "the first or second optimizer step ends in a kill for memory",
              "free -g; make plan shows what it assumes, and SKIP_CHECKS=memory takes your word for it"),
    NodeCheck("session servers' memory", lambda s: f"{_servers(s):.0f} GiB available for SESSION_SERVERS", _available,
              lambda cell, s: cell >= _servers(s), "the head node runs out of memory", "SESSION_SERVERS=32", head=True),
    NodeCheck("session servers' start", "SESSION_SERVERS of them before Miles gives up", _start, _in_time,
              "a session server is not ready in time, and the job ends", "SESSION_SERVERS=15, or the pinned Miles",
              head=True),
    NodeCheck("shared memory", f"{SHARED_MEMORY_GIB} GiB in /dev/shm", lambda n, _: n["shared_memory_bytes"] // GIB,
              _at_least(SHARED_MEMORY_GIB), "NCCL or SGLang ends with a bus error", "docker run --shm-size 64g"),
    NodeCheck("memlock", "no limit", _limit("memlock"), _at_least(math.inf),
              "RDMA can't register memory: NCCL is slow, or fails", "docker run --ulimit memlock=-1"),
    NodeCheck("stack", f"{STACK_BYTES} bytes", _limit("stack"), _at_least(STACK_BYTES),
              "a process ends with a segmentation fault", f"docker run --ulimit stack={STACK_BYTES}"),
    NodeCheck("open files", f"{OPEN_FILES}", _limit("nofile"), _at_least(OPEN_FILES),
              "too many open files, hours after the start", f"ulimit -n {OPEN_FILES}, then ray start"),
    NodeCheck("clock", f"less than {CLOCK_SECONDS:g} s from the head's", lambda n, _: round(n["skew_seconds"], 1),
              lambda cell, _: abs(cell) < CLOCK_SECONDS, "events of nodes are in the wrong order", "chronyc makestep"),
    NodeCheck("temporary space", f"{TEMPORARY_GIB} GiB free, and less than {RAY_FULL:.0%} used", _scarce, nothing,
              "Ray's files fill the disk, and the job ends hours after the start", "ray start --temp-dir"),
    NodeCheck("route to the head", "Ray's dashboard at HEAD_IP, not from a link-local address or a bridge of Docker",
              _route, lambda cell, _: not re.search("does not|link-local| of (docker0|br-)", cell),
              "NCCL takes a wrong interface (169.254.x.x) and hangs, or engines reach no session server",
              "HEAD_IP of the interconnect; no firewall between the nodes"),
    NodeCheck("interfaces", "those of NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME", _absent, nothing, HANG,
              "ip -brief address"),
    NodeCheck("shared RUNS_ROOT", "every node reads what the head writes, and the other way", lambda n, _: n["shared"],
              nothing, "a checkpoint lacks the shards of some nodes", "RUNS_ROOT on storage that all nodes mount"),
    NodeCheck("models", f"there, and {SAME}", _models,
              lambda cell, _: not any(one.endswith("missing") for one in cell),
              "some ranks load other weights, or none", "make prepare", equal=True),
    NodeCheck("checkpoints' space", lambda s: f"bytes and inodes of {_saves(s)} checkpoints (all, and one)", _lacking,
              nothing, "the disk is full in the middle of a save", "a larger SAVE_INTERVAL, or another RUNS_ROOT",
              head=True),
)  # fmt: skip
