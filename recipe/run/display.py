"""What a run looks like while it runs: one live block on a terminal, else a plain line per event of note."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from recipe.events import Event
from recipe.untrusted import clean
from recipe.watch.metrics import number

# A watcher of a log file should see at least two signs of life a minute.
QUIET_SECONDS = 30.0
# A warm start takes some 200 steps: eight lines of it are enough in a log.
WARM_START_LINES = 8
# Events whose lines stay on a terminal.
LASTING = frozenset({"rollout", "alarm"})
ROLLOUT_PHASES = ("update_weights", "generate", "train", "save")


@dataclass
class State:
    """What the events so far add up to."""

    rollouts: int
    phase: str = "starting the servers"
    finished: int = 0
    running: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    done: int = 0
    warm_start: str = "playing its lessons"

    def take(self, event: Event) -> None:
        """Brings the state up to date."""
        match event:
            case {"kind": "phase", "phase": str(phase)}:
                self.phase = phase
                if phase == "generate":
                    self.running, self.rewards, self.done = set(), [], 0
            case {"kind": "warm_start", "step": step, "steps": steps}:
                self.warm_start = f"step {step} of {steps}"
            case {"kind": "lesson", "done": done, "total": total}:
                self.warm_start = f"lesson {done} of {total} played"
            case {"kind": "trial", "trial": str(trial), "state": "started"}:
                self.running.add(trial)
            case {"kind": "trial", "trial": str(trial), "state": "done"}:
                self.running.discard(trial)
                self.done += 1
                if event.get("reward") is not None:
                    self.rewards.append(event["reward"])
            case {"kind": "rollout"}:
                self.finished += 1
                self.running = set()

    def line(self) -> str:
        """Where the run is, in one line."""
        if self.phase == "warm_start":
            return f"warm start: {self.warm_start}"
        if self.phase not in ROLLOUT_PHASES:
            return "loading the model" if self.phase == "start" else self.phase
        where = f"rollout {min(self.finished + 1, self.rollouts)} of {self.rollouts}: {self.phase}"
        if self.phase != "generate":
            return where
        return f"{where}, trials {len(self.running)} open, {self.done} done{self._mean()}"

    def _mean(self) -> str:
        return f", mean reward {sum(self.rewards) / len(self.rewards):.2f}" if self.rewards else ""


class Display:
    """Shows events until it is closed. Use it as a context manager."""

    def __init__(
        self,
        console: Console,
        rollouts: int,
        whole: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`whole` keeps signals from a print: rich prints once more what a signal interrupted after its flush."""
        self._console = console
        self._whole = whole
        self._state = State(rollouts)
        self._start = time.monotonic()
        self._last_line = self._start
        self._progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._task = self._progress.add_task("rollouts", total=rollouts)
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """One line that stays, after the seconds since the start."""
        self._last_line = time.monotonic()
        line = f"{self._last_line - self._start:6.1f} s  {clean(text)}"
        with self._whole():
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def remember(self, event: Event) -> None:
        """Takes in an event that an earlier launcher has shown."""
        self._state.take(event)
        self._progress.update(self._task, completed=self._state.finished)

    def take(self, event: Event) -> None:
        """Shows an event: on a terminal most of them only move the live block."""
        self.remember(event)
        text = _line_of(event, self._state)
        if text and (event["kind"] in LASTING or not self._live.is_started):
            self.note(text)

    def log_line(self, line: str) -> None:
        """One line of the job's own log, without codes for the terminal."""
        self._last_line = time.monotonic()
        with self._whole():
            self._console.print(clean(line), highlight=False, markup=False, emoji=False, soft_wrap=True)

    def stopping(self) -> None:
        """Tells that the run is over and its servers are being stopped, which takes some seconds."""
        self._state.phase = "stopping what was started"
        if not self._live.is_started:
            self.note(self._state.phase)

    def tick(self) -> None:
        """Called while nothing happens: in a log, says now and then that the run goes on."""
        if not self._live.is_started and time.monotonic() - self._last_line > QUIET_SECONDS:
            self.note(self._state.line())

    def _render(self) -> Table:
        block = Table.grid()
        block.add_row(self._progress)
        block.add_row(f"{time.monotonic() - self._start:6.1f} s  {self._state.line()}")
        return block


def _line_of(event: Event, state: State) -> str | None:
    """The line that an event is worth, if any."""
    match event:
        case {"kind": "phase"}:
            return state.line()
        case {"kind": "lesson", "done": done, "total": total}:
            return state.line() if done == total else None
        case {"kind": "warm_start", "step": int(step), "steps": int(steps), "loss": int() | float() as loss}:
            often = step % max(1, steps // WARM_START_LINES) == 0
            return f"{state.line()}, loss {loss:.3f}" if often else None
        case {"kind": "rollout", "metrics": dict(metrics), "seconds": dict(seconds)}:
            return _rollout_line(state, metrics, sum(seconds.values()))
        case {"kind": "alarm", "alarm": name}:
            return f"alarm {name}: {event.get('found')}; {event.get('do')}"
        case {"kind": "checkpoint", "path": path}:
            return f"checkpoint {path}"
    return None


def _rollout_line(state: State, metrics: dict[str, Any], seconds: float) -> str:
    told = [f"rollout {state.finished} of {state.rollouts} done in {seconds:.1f} s"]
    if "reward_mean" in metrics:
        told.append(f": mean reward {number(metrics['reward_mean']):.2f}")
    if "groups_kept" in metrics:
        told.append(f", {metrics['groups_kept']} groups kept")
    if metrics.get("valid_step") is False:
        told.append(", the optimizer's step was skipped")
    return "".join(told) + _audited(metrics)


def _audited(metrics: dict[str, Any]) -> str:
    """The classes of the token audit with their numbers of trajectories."""
    names = ("audit/strict_ratio", "audit/native_tool_block_rewarded_ratio")
    counts = {
        name: value for name, value in metrics.items() if name.startswith("audit/") and name not in names
    }
    told = ", ".join(f"{number(value):g} {name.removeprefix('audit/')}" for name, value in counts.items())
    return f"; tokens: {told}" if told else ""
