"""Seconds to start and to stop a sandbox: what every trial pays before its agent's first command, and at its end."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.measure import Findings, Row, percentile
from recipe.harbor.sandbox import Sandbox

ROUNDS, QUICK_ROUNDS = 100, 20
GOAL = 0.1  # s, of each


def run(*, quick: bool) -> Findings:
    """Medians and 95th percentiles of sandboxes one after another, each with one command between."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    measured = asyncio.run(_measure(rounds))
    findings = Findings("Sandboxes")
    for name, seconds in measured.items():
        middle = statistics.median(seconds)
        goal = f"< {GOAL:g} s"
        findings.rows += [
            Row(f"sandbox {name}, p50", "s", middle, goal=goal, met=middle < GOAL),
            Row(f"sandbox {name}, p95", "s", percentile(seconds, 95)),
        ]
    findings.notes = [f"By the wall clock, {rounds} sandboxes one after another; exec is `/bin/true`."]
    return findings


async def _measure(rounds: int) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {"start": [], "exec": [], "stop": []}
    for index in range(rounds + 1):
        box = Sandbox()
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "start": box.start,
            "exec": partial(box.run, ["/bin/true"]),
            "stop": box.stop,
        }
        for name, step in steps.items():
            begun = time.perf_counter()
            await step()
            if index:  # the first one finds bubblewrap, and reads files that nobody had read
                measured[name].append(time.perf_counter() - begun)
    return measured
