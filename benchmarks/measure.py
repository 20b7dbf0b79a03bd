"""What a benchmark gives back, and how two sides are timed in turns, so that a busy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One line of the table: our value, the other side's, and what was to be reached."""

    subject: str
    unit: str
    ours: float
    other: float | None = None
    ratio: float | None = None  # how many times better ours is
    goal: str = ""
    met: bool | None = None


@dataclass
class Findings:
    """The rows of one benchmark, whom it compares with, and what has to be known to read them."""

    title: str
    against: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Seconds:
    """What one call took: `cpu` of this process, all its threads together, and `wall`."""

    cpu: float
    wall: float


@dataclass
class Steps:
    """Training steps of one side: what each took, and what that side said of it."""

    seconds: list[Seconds] = field(default_factory=list)
    observed: list[dict[str, float]] = field(default_factory=list)

    @property
    def first_norm(self) -> float:
        """The first gradient's, before clipping."""
        return self.observed[0]["grad_norm"]


class Clock:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> Seconds:
        """What passed since the start."""
        return Seconds(time.process_time() - self._cpu, time.perf_counter() - self._wall)


def in_turns(sides: Mapping[str, Callable[[int], object]], rounds: int) -> dict[str, Seconds]:
    """Calls every side with 0, then every side with 1, and so on; each side's median over the rounds."""
    measured: dict[str, list[Seconds]] = {name: [] for name in sides}
    for index in range(rounds):
        for name, side in sides.items():
            clock = Clock()
            side(index)
            measured[name].append(clock.read())
    return {name: median(seconds) for name, seconds in measured.items()}


def median(seconds: Sequence[Seconds]) -> Seconds:
    """The median of either clock."""
    return Seconds(
        cpu=statistics.median(one.cpu for one in seconds),
        wall=statistics.median(one.wall for one in seconds),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
