"""Picks up a run on a cluster whose launcher is gone: starts the agent server anew and follows the job to its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from recipe.errors import BadInputError
from recipe.harbor import backends
from recipe.harbor.ledger import BROKEN, Ledger, refuse_orphans
from recipe.process import ProcessGroup
from recipe.resolve import restore
from recipe.run.cluster import start_server
from recipe.run.dashboard import find_ray
from recipe.run.display import Display
from recipe.run.folder import RunFolder
from recipe.run.follow import follow
from recipe.run.interrupts import Interrupts
from recipe.run.launch import close, finished, observers, stop
from recipe.run.login import write_login
from recipe.run.manifest import Manifest
from recipe.run.parts import Run
from recipe.run.ray_job import RayJob


def attach(path: Path, console: Console, interrupts: Interrupts) -> RunFolder:
    """Follows the run in `path` as its launcher would have, and stops the same on Ctrl-C.

    Raises BadInputError when there is nothing to pick up, and what `launch` raises of the run itself.
    """
    folder = RunFolder(path.absolute())
    manifest, record = _records(folder)
    settings = restore(record["settings"])
    with folder.locked(), Display(console, settings.num_rollout, interrupts.held) as display:
        display.note(f"run folder {folder.path}")
        attached = _Attached(Run(settings, folder, manifest, interrupts, display), record["job_id"])
        try:
            attached.follow()
        except BaseException as error:
            interrupts.hold()
            if not attached.responsible:
                display.note(f"job {record['job_id']} was left as it is")
                raise
            raise finished(manifest, error, folder, console) from None
        manifest.finish(None)
    return folder


@dataclass
class _Attached:
    """`responsible` once its job's end is the run's end: until then a failure leaves both as they are."""

    run: Run
    job_id: str
    responsible: bool = False

    def follow(self) -> None:
        run, log = self.run, self.run.folder.train_log
        ledger = Ledger(run.folder.trials, run.settings.sandbox_backend)
        try:
            ray = find_ray(run.settings)
            seen = log.stat().st_size if log.exists() else 0
            job = RayJob.find(ray, self.job_id, log)
            watched = () if job.ended else (_serve(run),)
            with run.interrupts.held():
                self.responsible = True
                run.running.callback(job.stop)
            write_login(run)
            run.display.note(f"job {self.job_id} {'goes on' if watched else 'has ended meanwhile'}")
            follow(run, job, watched, tracked=False, seen=seen, observers=observers(run, ledger))
        finally:
            stop(run)
            told = close(run, ledger) if self.responsible else []
        refuse_orphans(told, run.settings.run_name)


def _serve(run: Run) -> ProcessGroup:
    # A restored run has the secrets of this environment.
    for finding in backends.check(run.settings):
        raise finding
    return start_server(run).process


def _records(folder: RunFolder) -> tuple[Manifest, dict[str, Any]]:
    try:
        manifest, record = Manifest.reopen(folder), json.loads(folder.job_file.read_text())
        engine, _, _ = record["settings"]["engine"], Path(record["settings"]["env_file"]), record["job_id"]
    except (OSError, *BROKEN) as error:
        which, why = (error.filename, error.strerror) if isinstance(error, OSError) else ("damaged", error)
        needed = "a run's folder with its records, run_manifest.json and launcher/job.json"
        hint, found = "recipe attach RUNS_ROOT/RUN_NAME", f"{which}: {why}"
        raise BadInputError("there is no run to pick up", expected=needed, found=found, run=hint) from None
    if engine != "miles":
        raise BadInputError("a run of the engine local ends with its launcher", found=folder.path)
    if manifest.ended:
        raise BadInputError("the run has ended", found=manifest.ended, run=f"recipe report {folder.path}")
    return manifest, record
