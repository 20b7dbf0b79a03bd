"""What the cluster's nodes have and what earlier runs left on them: a short job that prints one line of JSON.

Run on the head node as `python3 -P -m recipe.plugins.nodes QUESTION`, a JSON object (recipe/doctor/nodes.py). It ends
the leftovers of the runs that `clean` names: a process belongs to a run when its own environment says so, and no
other process is ever ended. Standard library and Ray only, and nothing of recipe that does not travel with it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import pwd
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from recipe.plugins import facts, head

# The line of the job's log that holds the answer starts with it.
MARKER = "INKLING_GRPO_NODES "
# The variable that a run sets for all its processes.
RUN_VARIABLE = "INKLING_GRPO_RUN"
# What SGLang's and Miles' servers call themselves.
TITLES = ("sglang", "miles")
# A node starts a worker (seconds) and cleans (the two waits below); nvidia-smi takes seconds on a cold driver.
ANSWER_SECONDS = 120.0
TOOL_SECONDS = 30.0
# SGLang's processes end at once; a trainer that frees its memory takes seconds.
TERM_SECONDS = 10.0
KILL_SECONDS = 10.0
# A worker that is there already answers in milliseconds.
CLOCK_SECONDS = 10.0
# Ray gives it to the head node alone.
HEAD_RESOURCE = "node:__internal_head__"
# Enough to know a command by; a whole one may hold somebody's secret.
COMMAND_LETTERS = 80


@dataclass(frozen=True)
class Process:
    """`started` is its start in clock ticks after boot: with the pid it names one process for ever."""

    pid: int
    started: int
    user: str
    command: str
    run: str | None
    gpu_memory_mib: int | None = None


def main() -> None:
    """Asks every node that is alive and prints the answer behind MARKER."""
    asked = json.loads(sys.argv[1])
    # So that what was written for the nodes to read is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=_order)  # type: ignore[no-untyped-call]
    available = available_resources_per_node()  # type: ignore[no-untyped-call]
    with _shared(Path(asked.pop("runs_root"))) as (folder, nonce):
        asked |= {"shared": folder and str(folder), "nonce": nonce}
        answers = {node["NodeID"]: _on(node, report, asked) for node in nodes}
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_SECONDS)
        # Not before: while they run, the router is a process of SGLang's and the servers are Miles' as any other.
        router = head.router()
        folders = asked["folders"]
        model = str(Path(asked["models"][0]).parent)
        session_servers = head.session_servers(folders["miles"], folders["megatron"], model)
        told = [
            {
                "ip": node["NodeManagerAddress"],
                "hostname": node["NodeManagerHostname"],
                "alive": len(nodes),
                "head": not _order(node)[0],
                "router": router,
                "session_servers": session_servers,
                "ray_gpus": node["Resources"].get("GPU", 0.0),
                "ray_gpus_available": available.get(node["NodeID"], {}).get("GPU", 0.0),
                **_answer(node, answers[node["NodeID"]], folder, nonce),
            }
            for node in nodes
        ]
    print(MARKER + json.dumps({"nodes": told}), flush=True)


def _order(node: dict[str, Any]) -> tuple[bool, str]:
    """The head comes first."""
    return HEAD_RESOURCE not in node["Resources"], node["NodeManagerAddress"]


def _on(node: dict[str, Any], function: Any, *arguments: Any) -> Any:
    """A task on this node."""
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(function)
    return task.options(scheduling_strategy=there).remote(*arguments)


@contextmanager
def _shared(runs_root: Path) -> Iterator[tuple[Path | None, str]]:
    """A folder in RUNS_ROOT with a text that the nodes must find there; None where none can be made."""
    nonce = secrets.token_hex(16)
    folder = next(part for part in (runs_root, *runs_root.parents) if part.exists()) / f".nodes-{nonce[:8]}"
    try:
        folder.mkdir()
        (folder / facts.NONCE).write_text(nonce)
    except OSError:
        yield None, nonce
    else:
        yield folder, nonce
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _time() -> float:
    return time.time()


def _answer(node: dict[str, Any], reference: Any, folder: Path | None, nonce: str) -> dict[str, Any]:
    """What the node told, whether the head finds its file in RUNS_ROOT, and its clock against the head's."""
    try:
        told = ray.get(reference, timeout=0)
        before = time.time()
        clock = ray.get(_on(node, _time), timeout=CLOCK_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return {"error": f"no answer within {ANSWER_SECONDS:g} s"}
    except ray.exceptions.RayError as error:
        # The cause says it in one line; the error itself is a whole traceback.
        return {"error": str(getattr(error, "cause", error))[-500:]}
    skew = skew_seconds(before, clock, time.time())
    if folder is not None and told["shared"] is None and _text(folder / node["NodeID"]) != nonce:
        told["shared"] = "the head does not find what this node wrote"
    return {"error": None, "skew_seconds": skew, **told}


def skew_seconds(before: float, clock: float, after: float) -> float:
    """How far a clock is ahead (negative: behind) for certain, when it was read between two times of ours."""
    return max(0.0, clock - after) + min(0.0, clock - before)


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text()
    return None


def report(asked: dict[str, Any]) -> dict[str, Any]:
    """This node, after the leftovers of the runs `clean` have been ended. Memory in MiB."""
    clean = asked["clean"]
    cleaned = _end([process for process in leftovers() if process.run in clean]) if clean else []
    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "gpus": [
            {"name": name, "memory_mib": _mib(memory), "memory_used_mib": _mib(used), "driver": driver}
            for name, memory, used, driver in _nvidia_smi(
                "--query-gpu=name,memory.total,memory.used,driver_version"
            )
        ],
        "leftovers": [asdict(process) for process in leftovers()],
        "cleaned": cleaned,
        **facts.facts(asked),
    }


def leftovers() -> list[Process]:
    """Every process that is on a GPU or has one of TITLES, whoever its owner is."""
    memory = {int(pid): _mib(used) for pid, used in _nvidia_smi("--query-compute-apps=pid,used_memory")}
    # A process of another container has a pid here, but no entry in /proc.
    found = {pid: Process(pid, 0, "?", "not visible from here", None, used) for pid, used in memory.items()}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):  # it has just ended
            title = entry.joinpath("cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            if pid in memory or title.rpartition("/")[2].startswith(TITLES):
                found[pid] = _process(pid, memory.get(pid))
    return sorted(found.values(), key=lambda process: process.pid)


def _process(pid: int, gpu_memory_mib: int | None) -> Process:
    """Raises OSError when there is no such process any more."""
    folder = Path(f"/proc/{pid}")
    command = folder.joinpath("cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    run = None
    with suppress(PermissionError):  # another user's: not ours
        for variable in folder.joinpath("environ").read_bytes().split(b"\0"):
            name, _, value = variable.decode(errors="replace").partition("=")
            run = value if name == RUN_VARIABLE else run
    user = str(uid := folder.stat().st_uid)
    with suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    text = command.decode(errors="replace")[:COMMAND_LETTERS]
    return Process(pid, _started(pid), user, text, run or None, gpu_memory_mib)


def _started(pid: int) -> int:
    # Field 22 of the line; the second, a name in parentheses, may hold spaces.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _end(processes: list[Process]) -> list[dict[str, Any]]:
    """Asks all of them to end, waits, then kills what is left; tells of each how it ended."""
    outcome = {process.pid: "had ended" for process in processes}
    with ExitStack() as stack:
        # A handle means the process itself: its pid can't come to mean another one while we wait.
        handles: dict[int, int] = {}
        for process in processes:
            with suppress(OSError):
                handle = os.pidfd_open(process.pid)
                stack.callback(os.close, handle)
                if _process(process.pid, process.gpu_memory_mib) == process:
                    handles[handle] = process.pid
        outcome |= dict.fromkeys(handles.values(), "still there")
        for number, seconds, word in (
            (signal.SIGTERM, TERM_SECONDS, "ended"),
            (signal.SIGKILL, KILL_SECONDS, "killed"),
        ):
            for handle in _signal(set(handles), number, seconds):
                outcome[handles.pop(handle)] = word
    return [{**asdict(process), "outcome": outcome[process.pid]} for process in processes]


def _signal(handles: set[int], number: signal.Signals, seconds: float) -> set[int]:
    """The ones that are over within `seconds` after the signal."""
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    deadline = time.monotonic() + seconds
    waiting = set(handles)
    while waiting and (left := deadline - time.monotonic()) > 0:
        waiting -= set(select.select(waiting, [], [], left)[0])
    return handles - waiting


def _nvidia_smi(query: str) -> list[list[str]]:
    """The rows of the answer; none where there is no nvidia-smi. Raises when it fails or hangs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return []
    if done.returncode:
        raise RuntimeError(
            f"nvidia-smi failed ({done.returncode}): {(done.stdout + done.stderr).strip()[:300]}"
        )
    return [[cell.strip() for cell in row.split(",")] for row in done.stdout.splitlines() if row.strip()]


def _mib(text: str) -> int | None:
    """None for the [N/A] of a driver that doesn't tell."""
    return int(text) if text.isdigit() else None


if __name__ == "__main__":
    main()
