"""Whether the sandboxes that run at once fit what the backend's account may have: more are refused in mid-run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.errors import BadInputError, RecipeError
from recipe.harbor.daytona import Daytona
from recipe.settings import Settings
from recipe.tasks.folders import task_settings

NAMES = ("Cpu", "Memory", "Disk")
MIB_PER_GIB = 1024

Sizes = tuple[float, ...]  # CPUs, GiB of memory, GiB of disk
UNSAID = (1.0, 1.0, 3.0)  # of a sandbox whose task does not say, as Daytona gives them


@dataclass(frozen=True)
class Demand:
    """Of `count` sandboxes at once: `together`, were their tasks mixed evenly, and the `largest` one."""

    count: int
    together: Sizes
    largest: Sizes

    def __str__(self) -> str:
        both = f"{_text(self.together)} together, the largest for {_text(self.largest)}"
        return f"{self.count} sandboxes ask for {both}"


def demand(settings: Settings, tasks: set[Path]) -> Demand:
    """Of AGENT_MAX_CONCURRENT sandboxes. Raises BadInputError for a task that can't be read."""
    columns = list(zip(*(_sizes(settings, task) for task in tasks), strict=True))
    count = settings.agent_max_concurrent
    together = tuple(count * sum(column) / len(tasks) for column in columns)
    return Demand(count, together, tuple(map(max, columns)))


def room(settings: Settings) -> list[tuple[Sizes, Sizes]]:
    """For each region what Daytona's account may still have, and one sandbox of it; empty where nobody tells."""
    if settings.sandbox_backend != "daytona" or settings.daytona_api_key is None:
        return []
    try:
        return [
            (
                tuple(row[f"total{name}Quota"] - row[f"current{name}Usage"] for name in NAMES),
                tuple(row.get(f"max{name}PerSandbox") or float("inf") for name in NAMES),
            )
            for row in Daytona(settings, patient=False).quotas()
        ]
    except (RecipeError, KeyError, TypeError):  # a key without the right to ask, an older server
        return []


def shortages(asked: Demand, rooms: Sequence[tuple[Sizes, Sizes]]) -> Iterator[BadInputError]:
    """One when no region, `rooms` as `room` tells them, has room for all together and for the largest."""
    regions = [(_share(left, asked.together), _share(cap, asked.largest), left, cap) for left, cap in rooms]
    if any(all_fit >= 1 and each_fits >= 1 for all_fit, each_fits, *_ in regions):
        return
    all_fit, each_fits, left, cap = max(regions)
    smaller = "SANDBOX_CPUS, SANDBOX_MEMORY_MB, SANDBOX_STORAGE_MB, or without the largest tasks"
    fewer = f"AGENT_MAX_CONCURRENT={int(asked.count * all_fit)}, or `recipe sandboxes list --all`: what holds the rest"
    yield BadInputError(
        "the sandboxes don't fit Daytona's limits",
        expected=asked,
        found=f"at most {_text(left)} left, and {_text(cap)} for one sandbox",
        run=smaller if each_fits < 1 else fewer,
    )


def _sizes(settings: Settings, task: Path) -> Sizes:
    asked = task_settings(task).environment
    memory, storage = (
        settings.sandbox_memory_mb or asked.memory_mb,
        settings.sandbox_storage_mb or asked.storage_mb,
    )
    said = (settings.sandbox_cpus or asked.cpus, (memory or 0) / MIB_PER_GIB, (storage or 0) / MIB_PER_GIB)
    return tuple(size or unsaid for size, unsaid in zip(said, UNSAID, strict=True))


def _share(given: Sizes, wanted: Sizes) -> float:
    """How many times `given` holds what is wanted."""
    return max(0.0, min(limit / one for limit, one in zip(given, wanted, strict=True)))


def _text(of: Sizes) -> str:
    return f"{of[0]:g} CPUs, {of[1]:g} GiB of memory, {of[2]:g} GiB of disk"
