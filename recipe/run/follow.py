"""Follows a job to its end: its events or its log on the terminal, its servers watched, every wait bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from recipe.errors import RecipeError
from recipe.events import Event, EventReader
from recipe.process import ProcessGroup
from recipe.run.parts import Run
from recipe.run.ray_job import RayJob

POLL_SECONDS = 0.2
# Ray is asked for the job's state less often than the events are read.
ASK_EVERY = 5
# The job's own deadline, ROLLOUT_TIMEOUT_SEC, comes first; this one ends a job that hangs elsewhere.
SILENCE_MARGIN_SECONDS = 120.0
# A lost connection is told once it is more than a hiccup.
LOST_SECONDS = 30.0


def follow(run: Run, job: RayJob, watched: Sequence[ProcessGroup], *, tracked: bool, seen: int = 0) -> None:
    """Shows the job to its end: its events when it is `tracked`, else the lines of its log after `seen` bytes.

    Raises RecipeError when it fails, falls silent, or a server dies.
    """
    signs = _events(run) if tracked else _log_lines(run, seen)
    if not tracked:
        run.display.take({"kind": "phase", "phase": "the job runs"})
    limit = run.settings.rollout_timeout_sec + SILENCE_MARGIN_SECONDS
    last_sign, polls, lost = time.monotonic(), 0, False
    end: Event = {}
    while True:
        run.interrupts.check()
        polls += 1
        ended = (end or polls % ASK_EVERY == 0) and job.ended
        for sign in next(signs):
            last_sign = time.monotonic()
            if sign.get("kind") == "end":
                end = sign
        if ended:
            break
        for server in watched:
            if not server.alive:
                raise server.ended_early()
        lost = _tell_of_loss(run, job, lost)
        if time.monotonic() - last_sign > limit:
            raise RecipeError(
                "the job fell silent",
                expected=f"a sign of life within {limit:g} s",
                where=run.folder.train_log,
            )
        run.display.tick()
        time.sleep(POLL_SECONDS)
    # Its copy may lag behind the end.
    job.save_log()
    next(signs)
    if not job.succeeded:
        raise RecipeError(end["error"], where=run.folder.train_log) if end.get("error") else job.failure()


def _events(run: Run) -> Iterator[list[Event]]:
    reader = EventReader(run.folder.events)
    while True:
        events = list(reader.new())
        for event in events:
            run.display.take(event)
        yield events


def _log_lines(run: Run, seen: int) -> Iterator[list[Event]]:
    """Each new whole line of the log is shown; the dictionaries only count."""
    rest = ""
    while True:
        # Its copy may have been replaced by the whole log: that is longer.
        if run.folder.train_log.exists():
            with run.folder.train_log.open(errors="replace", newline="") as log:
                log.seek(seen)
                rest += log.read()
                seen = log.tell()
        *lines, rest = rest.split("\n")
        for line in lines:
            run.display.log_line(line)
        yield [{"kind": "line"} for _ in lines]


def _tell_of_loss(run: Run, job: RayJob, told: bool) -> bool:
    lost = job.silence > LOST_SECONDS
    if lost and not told:
        run.display.note("Ray does not answer; the job may go on, so the connection is tried anew")
    if told and not lost:
        run.display.note("Ray answers again")
    return lost
