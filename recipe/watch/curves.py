"""The curves of one run or of several, each drawn once: as SVG that takes a page's colours, and as PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from recipe.watch.history import Rollout
from recipe.watch.metrics import METRICS, Metric, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Mapping[str, Sequence[Rollout]]  # rollouts by the run's label

# Of ink, grid and lines. In an SVG each becomes the variable of the page's style, so that dark mode has its own.
INK, GRID = "#1c2024", "#d8dce0"
LINES = ("#2262c9", "#c2570c", "#28804a", "#8a4fc4")
VARIABLES = {INK: "var(--ink)", GRID: "var(--rule)"} | {
    colour: f"var(--line-{place})" for place, colour in enumerate(LINES, 1)
}
NAMED = {metric.name: metric for metric in METRICS}
# In the order of a page: did it learn, is it sound, what do trials look like.
DRAWN = (
    *("reward_mean", "kl", "entropy", "logprob_difference", "grad_norm", "response_tokens_mean"),
    *("turns_mean", "truncated_ratio", "malformed_ratio", "groups_dropped", "tokens_per_second"),
)
PHASES = {"generate": "sample", "train": "train", "update_weights": "sync", "save": "save"}
# Units of which none at all is the mark to read the others from.
COUNTED = ("ratio", "groups")
# Rollouts whose points are still told apart in a picture of this width.
MARKED = 40


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return fmean(values) if values else math.nan


def titled(metric: Metric) -> str:
    """Its title, with its unit unless that says no more."""
    unit = f" ({metric.unit})" if metric.unit and metric.unit not in metric.title else ""
    return metric.title[0].upper() + metric.title[1:] + unit


def draw(runs: Runs) -> Iterator[tuple[str, str, Figure]]:
    """File name, meaning and picture of each metric that a run has, and of the time of a single run."""
    for metric in (NAMED[name] for name in DRAWN):
        figure, axes = _empty(titled(metric))
        drawn = [
            _line(axes, label, rollouts, metric.name, colour)
            for (label, rollouts), colour in zip(runs.items(), LINES, strict=False)
        ]
        if any(drawn):
            if metric.unit in COUNTED:
                axes.set_ylim(bottom=0)
            if len(runs) > 1:
                _legend(axes)
            yield metric.name.removesuffix("_mean"), metric.meaning, figure
    rollouts, *others = runs.values()
    if rollouts and not others:
        figure, axes = _empty("Time (s)")
        _phases(axes, rollouts)
        _legend(axes)
        yield "seconds", "of a rollout, by phase", figure


def _empty(title: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4.5, 2.6), layout="constrained")
    axes = figure.add_subplot(axisbelow=True)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("rollout", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color=GRID, linewidth=0.6)
    axes.tick_params(labelsize=9, color=GRID, labelcolor=INK)
    for side, spine in axes.spines.items():
        spine.set(visible=side in ("left", "bottom"), color=GRID)
    return figure, axes


def _legend(axes: Axes) -> None:
    below = (0, -0.2)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, ncols=4, loc="upper left", bbox_to_anchor=below)


def _line(axes: Axes, label: str, rollouts: Sequence[Rollout], metric: str, colour: str) -> bool:
    at = [rollout.number + 1 for rollout in rollouts]
    values = [number(rollout.metrics.get(metric)) for rollout in rollouts]
    if not any(map(math.isfinite, values)):
        return False
    if metric == "reward_mean":
        spreads = [number(rollout.metrics.get("reward_std")) for rollout in rollouts]
        pairs = list(zip(values, spreads, strict=True))
        below = [max(0.0, value - spread) for value, spread in pairs]
        above = [min(1.0, value + spread) for value, spread in pairs]
        axes.fill_between(at, below, above, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(-0.03, 1.03)
    marker = "o" if len(at) <= MARKED else ""
    axes.plot(at, values, color=colour, marker=marker, markersize=3.5, linewidth=1.6, label=label)
    return True


def _phases(axes: Axes, rollouts: Sequence[Rollout]) -> None:
    """The seconds of each rollout, its phases on top of each other."""
    edges = [rollout.number + 0.5 for rollout in rollouts] + [rollouts[-1].number + 1.5]
    below = [0.0] * len(rollouts)
    for (phase, label), colour in zip(PHASES.items(), LINES, strict=True):
        above = [base + one.seconds.get(phase, 0) for base, one in zip(below, rollouts, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour, label=label, linewidth=0)
        below = above


def svg(figure: Figure) -> str:
    """The picture as an element of a page, in the page's colours and fonts; the same curves give the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    # What it would say of itself and of the time.
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):
        figure.savefig(text, format="svg", transparent=True, metadata=silent)
    drawn = text.getvalue()
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, variable)
    return drawn[drawn.index("<svg") :]
