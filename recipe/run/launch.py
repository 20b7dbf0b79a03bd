"""A run's whole life, in order: check, start the servers, submit the job, follow it, stop everything."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from rich.console import Console

from recipe import rules
from recipe.doctor import checks
from recipe.errors import BadInputError, RecipeError
from recipe.events import Event, EventReader
from recipe.harbor.server import SET, AgentServer, start_agent_server
from recipe.process import ProcessGroup
from recipe.run.display import Display
from recipe.run.engine import check_engine, engine_job
from recipe.run.folder import RunFolder, write_json
from recipe.run.interrupts import Interruption, Interrupts
from recipe.run.manifest import Manifest
from recipe.run.ray_cluster import RayCluster
from recipe.run.ray_job import RayJob
from recipe.settings import Settings, child_environment
from recipe.tasks.prompts import Row, write_prompt_data

POLL_SECONDS = 0.2
# Ray is asked for the job's state less often than the events are read.
ASK_EVERY = 5
# A self-check runs two trials of about a second for each task.
SELF_CHECK_SECONDS = 180.0
# The job's own deadline, ROLLOUT_TIMEOUT_SEC, comes first; this one ends a job that hangs elsewhere.
SILENCE_MARGIN_SECONDS = 120.0


class Part(Protocol):
    def stop(self) -> None: ...


def launch(settings: Settings, argv: Sequence[str], console: Console, interrupts: Interrupts) -> RunFolder:
    """Runs the job to its end and returns its folder.

    Raises BadInputError when the start is refused (no run folder is left), RecipeError when the run failed,
    InterruptedRunError after Ctrl-C, SIGTERM or SIGHUP. Whatever was started is stopped in every case.
    """
    rules.check(settings)
    checks.check(settings)
    rows = checks.prompt_rows(settings)
    check_engine(settings, rows)
    # Until something stands ready that removes or finishes the folder.
    interrupts.hold()
    folder = RunFolder.create(settings.runs_root / settings.run_name)
    manifest = _begin_records(folder, settings, rows, argv)
    try:
        interrupts.release()
        with Display(console, settings.num_rollout, interrupts.held) as display:
            display.note(f"run folder {folder.path}")
            _run(settings, folder, interrupts, display)
    except BaseException as error:
        interrupts.hold()
        if isinstance(error, BadInputError):
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        told = error.error() if isinstance(error, Interruption) else error
        if isinstance(told, RecipeError):
            told.facts.setdefault("where", str(folder.path))
        _finish(manifest, told, console)
        if told is error:
            raise
        raise told from None
    manifest.finish(None)
    return folder


def _begin_records(folder: RunFolder, settings: Settings, rows: list[Row], argv: Sequence[str]) -> Manifest:
    """The prompt data, where none was given, and the manifest; an error leaves no run folder."""
    try:
        if settings.builds_prompt_data:
            write_prompt_data(rows, settings.prompt_data)
        return Manifest(folder, settings, rows, argv)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _finish(manifest: Manifest, error: BaseException, console: Console) -> None:
    """Records how the run failed. Where that fails as well, the run's own error is the one to be told."""
    with contextlib.suppress(OSError):
        try:
            manifest.finish(error)
        except OSError as second:
            told = f"run_manifest.json lacks the end of the run: {second}"
            console.print(told, soft_wrap=True, highlight=False, markup=False)


def _run(settings: Settings, folder: RunFolder, interrupts: Interrupts, display: Display) -> None:
    running = ExitStack()

    def begin[P: Part](start: Callable[[], P]) -> P:
        # A signal waits until the part is sure to be stopped.
        with interrupts.held():
            part = start()
            running.callback(part.stop)
        return part

    try:
        ray = begin(lambda: RayCluster.start(folder.ray_log))
        self_check = begin(lambda: _start_self_check(settings, folder))
        # It waits for the server, and ends it itself when a signal comes meanwhile.
        server = _start_agent_server(settings, folder)
        running.callback(server.stop)
        _wait_self_check(self_check, interrupts)
        display.note("sandbox and tasks are sound")
        ray.wait_ready(interrupts.check)
        display.note(f"Ray at {ray.jobs_url}, agent server at {server.url}")
        job = engine_job(settings, folder, server.url)
        write_json(
            folder.job_file,
            {"run_dir": str(folder.path), "agent_server_url": server.url, "settings": settings.public()},
        )
        ray_job = begin(lambda: RayJob.submit(ray.jobs_url, ray.headers, job, folder.train_log))
        _follow(settings, folder, ray_job, (ray.process, server.process), display, interrupts)
    finally:
        interrupts.hold()
        # A full disk or a closed pipe, where the output goes to, must not keep us from stopping.
        with contextlib.suppress(OSError):
            display.stopping()
        running.close()


def _start_agent_server(settings: Settings, folder: RunFolder) -> AgentServer:
    return start_agent_server(
        tasks_dir=settings.tasks_dir,
        trials_dir=folder.trials,
        backend=settings.sandbox_backend,
        host=settings.agent_server_host,
        port=settings.agent_server_port,
        max_concurrent=settings.agent_max_concurrent,
        agent_timeout_multiplier=settings.harbor_agent_timeout_multiplier,
        log=folder.agent_server_log,
        env=child_environment(),
    )


def _start_self_check(settings: Settings, folder: RunFolder) -> ProcessGroup:
    argv = [sys.executable, "-m", "recipe.harbor.selfcheck", "--tasks-dir", str(settings.tasks_dir)]
    log = folder.path / "logs" / "self_check.log"
    return ProcessGroup.start("the check of sandbox and tasks", argv, log=log, env=child_environment(**SET))


def _wait_self_check(self_check: ProcessGroup, interrupts: Interrupts) -> None:
    """Raises BadInputError when a task's oracle does not get 1 or doing nothing does not get 0."""
    if self_check.wait_end(seconds=SELF_CHECK_SECONDS, watch=interrupts.check):
        raise BadInputError(
            "the sandbox or a task is not sound, so no job was started", found=self_check.log_tail()
        )


def _follow(
    settings: Settings,
    folder: RunFolder,
    job: RayJob,
    servers: Sequence[ProcessGroup],
    display: Display,
    interrupts: Interrupts,
) -> None:
    """Shows the job's events to its end. Raises RecipeError when it fails, falls silent, or a server dies."""
    reader = EventReader(folder.events)
    limit = settings.rollout_timeout_sec + SILENCE_MARGIN_SECONDS
    last_event, polls = time.monotonic(), 0
    end: Event = {}
    while True:
        interrupts.check()
        polls += 1
        ended = (end or polls % ASK_EVERY == 0) and job.ended
        for event in reader.new():
            last_event = time.monotonic()
            display.take(event)
            if event["kind"] == "end":
                end = event
        if ended:
            break
        for server in servers:
            if not server.alive:
                raise server.ended_early()
        if time.monotonic() - last_event > limit:
            raise RecipeError(
                "the job fell silent", expected=f"an event within {limit:g} s", where=folder.events
            )
        display.tick()
        time.sleep(POLL_SECONDS)
    if not job.succeeded:
        raise RecipeError(end["error"], where=folder.train_log) if end.get("error") else job.failure()
