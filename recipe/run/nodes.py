"""Looks at every node before a run: what it has, what others left running there, whether there are GPUs enough."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, RecipeError
from recipe.job import Job, RayAddress
from recipe.pins import load_pins
from recipe.plugins.nodes import ANSWER_SECONDS, MARKER
from recipe.run.parts import Run
from recipe.run.ray_job import RayJob, running

# A node that has to fetch the plugins and start Python; the job's own deadline comes first.
JOB_SECONDS = ANSWER_SECONDS + 120.0
# A message names as many processes as can be read.
NAMED = 8
Node = dict[str, Any]


def look(run: Run, ray: RayAddress, plugins: Path) -> list[Node]:
    """What each node told. Raises BadInputError for leftovers, too few GPUs or, with STRICT_PINS, other commits."""
    nodes = _ask(run, ray, plugins, ())
    runs = {process["run"] for _, process in _leftovers(nodes) if process["run"]}
    _require_ended(run, runs & {job.rpartition("-")[0] for job in running(ray)})
    if runs and run.settings.clean_leftovers:
        nodes = _ask(run, ray, plugins, sorted(runs))
        for node in nodes:
            for process in node.get("cleaned", ()):
                run.display.note(f"{node['ip']}: {process['outcome']}: {_told(process)}")
    _require_answers(nodes)
    _require_no_leftovers(nodes)
    _require_gpus(run, nodes)
    _compare_commits(run, nodes)
    return nodes


def _ask(run: Run, ray: RayAddress, plugins: Path, clean: Sequence[str]) -> list[Node]:
    settings, log = run.settings, run.folder.path / "logs" / ("cleaning.log" if clean else "nodes.log")
    words = ["--miles-dir", settings.miles_dir, "--sglang-dir", settings.sglang_dir]
    words += ["--clean", *clean] if clean else []
    # Elsewhere than /, a folder `recipe` would hide the plugins that travel.
    command = "cd / && python3 -P -m recipe.plugins.nodes " + shlex.join(str(word) for word in words)
    job = run.begin(lambda: RayJob.submit(ray, Job(command, packages=(plugins,)), log))
    deadline = time.monotonic() + JOB_SECONDS
    while not job.ended:
        run.interrupts.check()
        if time.monotonic() > deadline:
            raise RecipeError("the nodes did not tell what they have", expected=f"within {JOB_SECONDS:g} s")
        time.sleep(0.2)
    if not job.succeeded:
        raise job.failure()
    lines = [line for line in job.save_log().splitlines() if line.startswith(MARKER)]
    if not lines:
        raise job.failure()
    nodes: list[Node] = json.loads(lines[-1].removeprefix(MARKER))["nodes"]
    return nodes


def _require_ended(run: Run, going_on: set[str]) -> None:
    """A run is more than what is on the nodes: its job, its records, its sandboxes. It is never cleaned away."""
    if going_on:
        raise BadInputError(
            "another run is going on",
            expected="an end of its job first",
            found=", ".join(sorted(going_on)),
            run=f"recipe attach {run.settings.runs_root / min(going_on)}, where Ctrl-C stops it",
        )


def _require_answers(nodes: Iterable[Node]) -> None:
    silent = [f"{node['ip']}: {node['error']}" for node in nodes if node["error"]]
    if silent:
        raise BadInputError(
            f"{len(silent)} nodes could not be looked at", found="\n".join(silent), run="ray status"
        )


def _leftovers(nodes: Iterable[Node]) -> list[tuple[str, dict[str, Any]]]:
    return [(node["ip"], process) for node in nodes for process in node.get("leftovers", ())]


def _told(process: dict[str, Any]) -> str:
    memory = process["gpu_memory_mib"]
    of_run = f", of run {process['run']}" if process["run"] else ""
    on_gpu = f", {memory} MiB of a GPU" if memory else ""
    return f"pid {process['pid']} of {process['user']}{of_run}{on_gpu}: {process['command']}"


def _require_no_leftovers(nodes: Iterable[Node]) -> None:
    found = _leftovers(nodes)
    if not found:
        return
    ours = any(process["run"] for _, process in found)
    more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
    raise BadInputError(
        "processes of SGLang, of Miles or on a GPU are left on the nodes",
        expected="none: a run takes every GPU",
        found="\n".join([f"{ip}: {_told(process)}" for ip, process in found[:NAMED]] + more),
        run="CLEAN_LEFTOVERS=1 ends those of earlier runs; the others are their owners' affair"
        if ours
        else "ask their owners to end them",
    )


def _require_gpus(run: Run, nodes: Iterable[Node]) -> None:
    needed = run.settings.num_nodes * run.settings.gpus_per_node
    free = {node["ip"]: int(node["ray_gpus_available"]) for node in nodes}
    if sum(free.values()) < needed:
        raise BadInputError(
            "too few GPUs are free",
            expected=f"{needed} (NUM_NODES x GPUS_PER_NODE)",
            found=", ".join(f"{ip}: {count}" for ip, count in free.items()),
            run="ray status",
        )


def _compare_commits(run: Run, nodes: Iterable[Node]) -> None:
    sources = load_pins().recipes[run.settings.recipe].sources
    wrong = [
        f"{node['ip']}: {name} at {node[f'{name}_head'] or 'no commit'}"
        for node in nodes
        for name in ("miles", "sglang")
        if node[f"{name}_head"] != sources[name].rev
    ]
    if not wrong:
        return
    facts = {
        "expected": ", ".join(f"{name} {sources[name].rev}" for name in ("miles", "sglang")),
        "found": "\n".join(wrong),
        "run": "recipe container check, on each node",
    }
    if run.settings.strict_pins:
        raise BadInputError("checkouts are not at the recipe's commits", **facts)
    run.display.note(f"warning: checkouts are not at the recipe's commits ({'; '.join(wrong)})")
