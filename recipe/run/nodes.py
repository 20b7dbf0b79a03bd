"""Looks at every node before a run, and ends what earlier runs left there when that was asked for."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from recipe.doctor.node_checks import Node, told
from recipe.doctor.nodes import judge, question
from recipe.doctor.results import require
from recipe.errors import BadInputError, RecipeError
from recipe.job import Job, RayAddress
from recipe.plugins.nodes import ANSWER_SECONDS, MARKER
from recipe.run.interrupts import Interrupts
from recipe.run.parts import Run
from recipe.run.ray_job import RayJob, running
from recipe.settings import Settings

# A node that has to fetch the plugins and start Python; the job's own deadline comes first.
JOB_SECONDS = ANSWER_SECONDS + 120.0


def look(run: Run, ray: RayAddress, plugins: Path, skip: Collection[str] = ()) -> list[Node]:
    """What each node told. Raises BadInputError with every check that failed, but those of `skip`."""
    settings, logs = run.settings, run.folder.path / "logs"
    nodes = ask(settings, ray, plugins, logs / "nodes.log", run.interrupts)
    runs = {process["run"] for node in nodes for process in node.get("leftovers", ()) if process["run"]}
    _require_ended(run, runs & {job.rpartition("-")[0] for job in running(ray)})
    if runs and settings.clean_leftovers:
        nodes = ask(settings, ray, plugins, logs / "cleaning.log", run.interrupts, sorted(runs))
        for node in nodes:
            for process in node.get("cleaned", ()):
                run.display.note(f"{node['ip']}: {process['outcome']}: {told(process)}")
    results = judge(nodes, settings, skip=skip)
    run.manifest.add(
        checks={one.check: f"{one.verdict}: {one.found}" for one in results if one.verdict != "ok"}
    )
    for result in results:
        if result.verdict in ("warn", "skip"):
            found = result.found.replace("\n", "; ")
            run.display.note(
                f"{'warning' if result.verdict == 'warn' else 'skipped'}: {result.check}: {found}"
            )
    require(results)
    return nodes


def ask(
    settings: Settings,
    ray: RayAddress,
    plugins: Path,
    log: Path,
    interrupts: Interrupts,
    clean: Sequence[str] = (),
) -> list[Node]:
    """What each node tells, after the leftovers of the runs `clean` have been ended.

    Raises RecipeError when the job that asks them fails, or does not end within JOB_SECONDS.
    """
    # Elsewhere than /, a folder `recipe` would hide the plugins that travel.
    command = "cd / && python3 -P -m recipe.plugins.nodes " + shlex.quote(
        json.dumps(question(settings, clean))
    )
    with ExitStack() as stack:
        with interrupts.held():
            job = RayJob.submit(ray, Job(command, packages=(plugins,)), log)
            stack.callback(job.stop)
        deadline = time.monotonic() + JOB_SECONDS
        while not job.ended:
            interrupts.check()
            if time.monotonic() > deadline:
                raise RecipeError(
                    "the nodes did not tell what they have", expected=f"within {JOB_SECONDS:g} s"
                )
            time.sleep(0.2)
        lines = [line for line in job.save_log().splitlines() if line.startswith(MARKER)]
        if not job.succeeded or not lines:
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
