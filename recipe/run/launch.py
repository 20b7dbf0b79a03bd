"""A run's whole life, in order: check, start the servers, submit the job, follow it, stop everything."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Sequence

from rich.console import Console

from recipe import rules
from recipe.doctor import checks, lineage
from recipe.doctor.report import NAMES
from recipe.doctor.results import require_known
from recipe.errors import BadInputError, RecipeError
from recipe.events import Event, EventLog
from recipe.harbor.ledger import Ledger, refuse_orphans
from recipe.run.display import Display
from recipe.run.engine import engine_job, prepare
from recipe.run.folder import RunFolder, write_json
from recipe.run.follow import Observer, follow
from recipe.run.interrupts import Interruption, Interrupts
from recipe.run.manifest import Manifest
from recipe.run.parts import Run
from recipe.run.ray_job import LeftJobError, RayJob
from recipe.settings import Settings
from recipe.tasks.prompts import Row, write_prompt_data
from recipe.watch.live import Watch


def launch(settings: Settings, argv: Sequence[str], console: Console, interrupts: Interrupts) -> RunFolder:
    """Runs the job to its end and returns its folder.

    Raises BadInputError when the start is refused (no run folder is left), RecipeError when the run failed,
    InterruptedRunError after Ctrl-C, SIGTERM or SIGHUP. Whatever was started is stopped in every case.
    """
    rules.check(settings)
    require_known(settings.skipped_checks, NAMES)
    rows = checks.check(settings, settings.skipped_checks)
    # Until something stands ready that removes or finishes the folder.
    interrupts.hold()
    folder = RunFolder.create(settings.run_dir)
    manifest = _begin_records(folder, settings, rows, argv)
    try:
        interrupts.release()
        with folder.locked(), Display(console, settings.num_rollout, interrupts.held) as display:
            display.note(f"run folder {folder.path}")
            if manifest.starts_from:
                display.note(lineage.told(manifest.starts_from))
            _run(Run(settings, folder, manifest, interrupts, display))
    except BaseException as error:
        interrupts.hold()
        if isinstance(error, BadInputError):
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        raise finished(manifest, error, folder, console) from None
    manifest.finish(None)
    return folder


def finished(manifest: Manifest, error: BaseException, folder: RunFolder, console: Console) -> BaseException:
    """The error that the user is told; the manifest has it too. Where that fails, it is still the one to be told."""
    told = error.error() if isinstance(error, Interruption) else error
    if isinstance(told, RecipeError):
        told.facts.setdefault("where", str(folder.path))
    if isinstance(told, LeftJobError) and folder.job_file.exists():
        # The run has not ended, and somebody has to look after it.
        told.facts["run"] = f"recipe attach {folder.path}"
        return told
    with contextlib.suppress(OSError):
        try:
            manifest.finish(told)
        except OSError as second:
            lacking = f"run_manifest.json lacks the end of the run: {second}"
            console.print(lacking, soft_wrap=True, highlight=False, markup=False)
    return told


def _begin_records(folder: RunFolder, settings: Settings, rows: list[Row], argv: Sequence[str]) -> Manifest:
    """The prompt data, where none was given, and the manifest; an error leaves no run folder."""
    try:
        if settings.builds_prompt_data:
            write_prompt_data(rows, settings.prompt_data)
        return Manifest.begin(folder, settings, rows, argv)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _run(run: Run) -> None:
    ledger = Ledger(run.folder.trials, run.settings.sandbox_backend)
    try:
        prepared = prepare(run)
        settings, folder = run.settings, run.folder
        job = engine_job(settings, folder, settings.agent_server_url or prepared.server.url)
        # Known before Ray has it: a launcher that is killed meanwhile leaves no job that nobody can find.
        job_id = f"{settings.run_name}-{secrets.token_hex(4)}"
        write_json(
            folder.job_file,
            {
                "run_dir": str(folder.path),
                "agent_server_url": prepared.server.url,
                "job_id": job_id,
                "settings": settings.public(),
            },
        )
        run.manifest.add(job={"id": job_id, "entrypoint": job.entrypoint, "environment": sorted(job.env)})
        submitted = run.begin(lambda: RayJob.submit(prepared.ray, job, folder.train_log, job_id=job_id))
        run.display.note(f"job {job_id}")
        follow(run, submitted, prepared.watched, tracked=job.tracked, observers=observers(run, ledger))
    finally:
        stop(run)
        told = close(run, ledger)
    refuse_orphans(told, run.settings.run_name)


def observers(run: Run, ledger: Ledger) -> tuple[Observer, ...]:
    """Who watches a run while it lasts."""
    return Watch(run.folder.path, run.settings), ledger


def close(run: Run, ledger: Ledger) -> list[Event]:
    """The last look at the sandboxes, which goes into the run's events; what is left of them is told there."""
    told = ledger.close()
    # A full disk, or a folder that somebody has removed, does not change how the run has ended.
    with contextlib.suppress(OSError):
        if told and run.folder.path.exists():
            log = EventLog(run.folder.events)
            for event in told:
                log.append(event)
    return told


def stop(run: Run) -> None:
    """Stops whatever the run has begun, last first; no signal interrupts it."""
    run.interrupts.hold()
    # A full disk or a closed pipe, where the output goes to, must not keep us from stopping.
    with contextlib.suppress(OSError):
        run.display.stopping()
    run.running.close()
