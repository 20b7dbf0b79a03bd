"""What a run of 200 rollouts keeps: memory, descriptors, threads, tasks, sessions, and the files of its folder.

The loop is real, the model and the agents are faked (see faked_run.py); Ray, the actors' own models and the real
agent server are not covered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import multiprocessing
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.faked_run import SMALL, Stage, play
from benchmarks.measure import Findings, Row
from recipe.errors import RecipeError

ROLLOUTS, QUICK_ROLLOUTS = 200, 80
# Of the whole run: what is opened once is open by then, and each window sees every kind of rollout.
WARM_UP, WINDOW = 0.25, 0.25
COLLECT_EVERY = 10
GOAL_MB = 1.0
UNTIL_SAVED = SMALL["SAVE_INTERVAL"]


@dataclass(frozen=True)
class Held:
    """What the process has at one moment: counts, and bytes of memory (RSS)."""

    descriptors: int
    threads: int
    tasks: int
    sessions: int
    children: int
    memory: int


COUNTS = ("descriptors", "threads", "tasks", "sessions", "children")

# The folder's files by their shape, numbers as #: how many there are after `rollouts` rollouts.
FILES: dict[str, Callable[[int], int]] = {
    "checkpoints/iter_#/complete.json": lambda rollouts: -(-rollouts // UNTIL_SAVED),
    "checkpoints/iter_#/model.safetensors": lambda rollouts: -(-rollouts // UNTIL_SAVED),
    "checkpoints/latest_checkpointed_iteration.txt": lambda _: 1,
    "dump_details/engine_turns.jsonl": lambda _: 1,
    "dump_details/rollout_#.jsonl": lambda rollouts: rollouts,
    "events.jsonl": lambda _: 1,
    "launcher/job.json": lambda _: 1,
    "launcher/prompts.jsonl": lambda _: 1,
    "tensorboard/events": lambda _: 1,
}


def run(*, quick: bool) -> Findings:
    """Growth per 100 rollouts. Raises RecipeError when a count grows, or a file is there that is not known."""
    rollouts = QUICK_ROLLOUTS if quick else ROLLOUTS
    with tempfile.TemporaryDirectory(prefix="inkling-grpo-benchmark-") as folder:
        run_dir = Path(folder) / "run"
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            held = alone.submit(endure, run_dir, rollouts).result()
        sizes = sizes_by_shape(run_dir)
    wrong = [f"{name} grow by {by:g} per 100 rollouts" for name, by in grown(held).items() if by > 0]
    wrong += unexpected(sizes, rollouts)
    if wrong:
        raise RecipeError("a run keeps what it should not", found="; ".join(wrong))
    by_folder: Counter[str] = Counter()
    for shape, of_shape in sizes.items():
        by_folder[shape.partition("/")[0]] += sum(of_shape)
    findings = Findings("Endurance")
    memory = memory_slope(held) / 1e6
    findings.rows = [
        Row("memory per 100 rollouts", "MB", memory, goal=f"< {GOAL_MB:g} MB", met=memory < GOAL_MB),
        *(Row(f"{name} per 100 rollouts", "", by) for name, by in grown(held).items()),
        *(Row(f"{name} per 100 rollouts", "kB", size / rollouts / 10) for name, size in by_folder.items()),
    ]
    findings.notes = [
        f"{rollouts} rollouts of two trained trials and up to two of a surplus group, two turns each; memory after "
        f"collecting garbage, by a line through all after the first quarter; at the end {held[-1]}."
    ]
    return findings


def endure(run_dir: Path, rollouts: int, also: Callable[[Stage], object] = lambda _: None) -> list[Held]:
    """Runs the job and looks at this process once a rollout; `also` is called before. Raises RecipeError."""
    seen: list[Held] = []

    def look(stage: Stage) -> None:
        also(stage)
        if stage.rollout % COLLECT_EVERY == 0:
            gc.collect()
        seen.append(_held(stage))

    gc.freeze()  # what was there before is none of the run's, and would be looked through each time
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code = play(run_dir, rollouts, look)
    finally:
        gc.unfreeze()
    if code or len(seen) != rollouts:
        raise RecipeError(
            "the faked run did not come to its end", found=f"exit code {code}, {len(seen)} rollouts"
        )
    return seen


def _held(stage: Stage) -> Held:
    process = psutil.Process()
    return Held(
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        tasks=len(asyncio.all_tasks()),
        sessions=len(stage.store),
        children=sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children")),
        memory=process.memory_info().rss,
    )


def grown(held: Sequence[Held]) -> dict[str, float]:
    """By how much each count's floor has risen per 100 rollouts; a peak says nothing, as connections come and go."""
    counts = {name: np.array([asdict(one)[name] for one in held]) for name in COUNTS}
    start, width = int(len(held) * WARM_UP), int(len(held) * WINDOW)
    apart = len(held) - width - start
    return {
        name: float(values[-width:].min() - values[start : start + width].min()) / apart * 100
        for name, values in counts.items()
    }


def memory_slope(held: Sequence[Held]) -> float:
    """Bytes per 100 rollouts, by a line through what there was after each collection, the warm-up left out."""
    numbers = np.arange(0, len(held), COLLECT_EVERY)
    numbers = numbers[numbers >= len(held) * WARM_UP]
    return float(np.polyfit(numbers, [held[number].memory for number in numbers], 1)[0]) * 100


def sizes_by_shape(run_dir: Path) -> dict[str, list[int]]:
    """The bytes of each file below, by the file's shape."""
    sizes = defaultdict(list)
    for path in sorted(run_dir.rglob("*")):
        if path.is_file():
            shape = re.sub(r"\d+", "#", str(path.relative_to(run_dir)))
            # TensorBoard's have the time, the process and the machine in their name.
            sizes[re.sub(r"\.out\..*", "", shape)].append(path.stat().st_size)
    return dict(sizes)


def unexpected(sizes: Mapping[str, Sequence[int]], rollouts: int) -> list[str]:
    """Which files are more or fewer than FILES says."""
    wrong = []
    for shape in sorted({*sizes, *FILES}):
        found, expected = len(sizes.get(shape, ())), FILES.get(shape, lambda _: 0)(rollouts)
        if found != expected:
            wrong.append(f"{shape}: {found} files, expected {expected}")
    return wrong
