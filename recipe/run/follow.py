"""Follows a job to its end: its events on the terminal and to observers, its servers watched, every wait bounded."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from recipe.errors import InterruptedRunError, RecipeError
from recipe.events import WATCHERS, Event, EventLog, EventReader, Tail
from recipe.job import save_and_stop
from recipe.process import ProcessGroup
from recipe.run.interrupts import Interruption
from recipe.run.log_size import cut_middle
from recipe.run.parts import Run
from recipe.run.ray_job import LeftJobError, RayJob

POLL_SECONDS = 0.2
# Ray is asked for the job's state, and the observers look around, less often than the events are read.
ASK_EVERY = 5
TICK_EVERY = 25
# The job's own deadline, ROLLOUT_TIMEOUT_SEC, comes first; this one ends a job that hangs elsewhere.
SILENCE_MARGIN_SECONDS = 120.0
# A lost connection is told once it is more than a hiccup.
LOST_SECONDS = 30.0
# Of a job's log the terminal shows the start, by which one sees that it comes up, and what sounds like trouble.
START_LINES = 200
TROUBLE = re.compile(
    r"(?i)\b(?:\w*warn(?:ing)?|\w*error|\w*exception|traceback|fatal|killed|out of memory)\b"
)
# The same trouble of 64 workers, with their numbers left out, is one line; and there is an end to it.
TROUBLE_LINES = 200


class Observer(Protocol):
    """Learns of every event, and of time that passes; what it answers becomes events of the run.

    What it answers to the events of an earlier launcher is left out: that launcher has told it.
    """

    def take(self, event: Event) -> Iterable[Event]: ...

    def tick(self) -> Iterable[Event]: ...


def follow(
    run: Run,
    job: RayJob,
    watched: Sequence[ProcessGroup],
    *,
    tracked: bool,
    seen: int = 0,
    observers: Sequence[Observer] = (),
) -> None:
    """Shows the job to its end. A job that is not `tracked` is one of Miles, whose log and journal are translated.

    `seen`: bytes of its log that were shown before. An observer's alarm with the action `stop` has the job save, and
    ends it. Raises RecipeError then, and when the job fails, falls silent, or a server dies. The last event says how
    the run has ended, unless the job goes on.
    """
    following = _Following(run, job, tracked=tracked, seen=seen, observers=observers)
    try:
        following.to_the_end(watched)
    except LeftJobError:
        raise
    except BaseException as error:
        # A full disk must not hide why the run has ended.
        with contextlib.suppress(OSError):
            following.end(error.error() if isinstance(error, Interruption) else error)
        raise
    following.end(None)


class _Following:
    """The events of one run while somebody follows it, and what they lead to."""

    def __init__(
        self, run: Run, job: RayJob, *, tracked: bool, seen: int, observers: Sequence[Observer]
    ) -> None:
        self._run, self._job, self._observers = run, job, observers
        self._reader, self._writer = EventReader(run.folder.events), EventLog(run.folder.events)
        self._end: Event = {}
        self._over = False
        self._stopping: Event | None = None
        self._stop_by = 0.0
        self._limit = run.settings.rollout_timeout_sec + SILENCE_MARGIN_SECONDS
        self._log = None if tracked else Tail(run.folder.train_log, start=seen)
        self._shown: set[str] = set()
        self._lines = 0
        self._failed: set[int] = set()
        self._translator = None
        if not tracked:
            # Of the engines only Miles writes no events itself, and can have been followed before.
            from recipe.engines.miles.events import Translator

            before = list(self._reader.new())
            for event in before:
                run.display.remember(event)
                for observer in observers:
                    self._answers(observer, event)
            self._translator = Translator(run.settings, run.folder.path, before)
            run.display.take({"kind": "phase", "phase": "the job runs"})

    def to_the_end(self, watched: Sequence[ProcessGroup]) -> None:
        last_sign, polls, lost = time.monotonic(), 0, False
        while True:
            self._run.interrupts.check()
            polls += 1
            ended = (self._end or polls % ASK_EVERY == 0) and self._job.ended
            if self._read():
                last_sign = time.monotonic()
            if ended:
                break
            for server in watched:
                if not server.alive:
                    raise server.ended_early()
            lost = self._tell_of_loss(lost)
            self._stop_when_saved()
            if time.monotonic() - last_sign > self._limit:
                raise RecipeError(
                    "the job fell silent",
                    expected=f"a sign of life within {self._limit:g} s",
                    where=self._run.folder.train_log,
                )
            if polls % TICK_EVERY == 0:
                self._tick()
            self._run.display.tick()
            time.sleep(POLL_SECONDS)
        self._over = True
        # Its copy may lag behind the end.
        self._job.save_log()
        self._read(last=True)
        if not self._job.succeeded:
            error, where = self._end.get("error"), self._run.folder.train_log
            raise RecipeError(error, where=where) if error else self._job.failure()

    def end(self, error: BaseException | None) -> None:
        """Writes how the run has ended where the job itself did not."""
        save_and_stop(self._run.folder.path).unlink(missing_ok=True)
        if not self._end:
            stopped = isinstance(error, InterruptedRunError)
            status = "interrupted" if stopped else "failed" if error else "succeeded"
            told = str(error) if isinstance(error, RecipeError) else repr(error)
            self._writer.write("end", status=status, error=told if error else None)

    def _read(self, *, last: bool = False) -> bool:
        """Takes what is new; whether the job gave a sign of life."""
        signs = self._log_lines() if self._log else False
        if self._translator:
            self._write(self._translator.new(last=last))
        for event in self._reader.new():
            signs |= event["kind"] not in WATCHERS
            self._take(event)
        return signs

    def _take(self, event: Event) -> None:
        self._run.display.take(event)
        if event["kind"] == "end":
            self._end = event
        if event["kind"] == "alarm" and event.get("action") == "stop":
            self._begin_stop(event)
        for observer in self._observers:
            self._write(self._answers(observer, event))

    def _answers(self, observer: Observer, event: Event | None = None) -> list[Event]:
        """To an event, or to a moment without one; nothing of an observer that fails: it is not worth the run."""
        try:
            return list(observer.tick() if event is None else observer.take(event))
        except Exception as error:  # noqa: BLE001 - whatever it is
            if id(observer) not in self._failed:
                self._failed.add(id(observer))
                name = type(observer).__name__
                self._run.display.note(f"the run goes on, though its {name} fails: {error!r}")
            return []

    def _begin_stop(self, alarm: Event) -> None:
        if self._stopping or self._end or self._over:
            return
        self._stopping, self._stop_by = alarm, time.monotonic() + self._limit
        save_and_stop(self._run.folder.path).touch()
        self._run.display.note("the job saves after this rollout's step, and is stopped then")

    def _tick(self) -> None:
        for observer in self._observers:
            self._write(self._answers(observer))
        cut_middle(self._run.folder.agent_server_log)

    def _write(self, events: Iterable[Event]) -> None:
        """Into the run's events, from where they are read, shown and observed as all others."""
        for event in events:
            self._writer.append(event)

    def _stop_when_saved(self) -> None:
        if not self._stopping:
            return
        saved = not save_and_stop(self._run.folder.path).exists()
        if saved or time.monotonic() > self._stop_by:
            without = "" if saved else f", without a checkpoint: none came within {self._limit:g} s"
            raise RecipeError(
                f"the run was stopped by the alarm {self._stopping['alarm']}{without}",
                found=self._stopping.get("found"),
                where=self._run.folder.path,
                run=self._stopping.get("do"),
            )

    def _log_lines(self) -> bool:
        """Shows the lines of note; whether there were any lines."""
        assert self._log is not None
        any_line = False
        for raw in self._log.lines():
            any_line = True
            line = raw.decode(errors="replace")
            self._lines += 1
            if self._lines <= START_LINES or self._is_new_trouble(line):
                self._run.display.log_line(line)
        return any_line

    def _is_new_trouble(self, line: str) -> bool:
        if len(self._shown) >= TROUBLE_LINES or not TROUBLE.search(line):
            return False
        kind = re.sub(r"\d+", "", line)
        new = kind not in self._shown
        self._shown.add(kind)
        return new

    def _tell_of_loss(self, told: bool) -> bool:
        lost = self._job.silence > LOST_SECONDS
        if lost and not told:
            self._run.display.note("Ray does not answer; the job may go on, so the connection is tried anew")
        if told and not lost:
            self._run.display.note("Ray answers again")
        return lost
