"""What a run came to: a table in the terminal, and a folder with a page, its curves and its metrics."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Column, Table

from recipe.errors import BadInputError, RecipeError
from recipe.files import write_whole
from recipe.untrusted import clean
from recipe.watch.curves import PHASES, draw, svg
from recipe.watch.history import History, Rollout, read, saved_at, settings_of
from recipe.watch.metrics import number

LEGEND = (
    "reward: mean±spread; groups: kept/dropped/surplus; KL to the reference; entropy in nats a token; "
    "Δlogprob: mean |train - rollout| a token; grad: norm before clipping; the last four: seconds"
)
# Of the pictures as files: sharp on a screen of twice the usual density.
DOTS_PER_INCH = 150


def show(run: Path, console: Console) -> History:
    """Prints the report and writes RUN/report/, whatever state the run is in.

    Raises BadInputError when report/ leads elsewhere.
    """
    history = read(run)
    _write(run, history)
    if history.rollouts:
        console.print(table(history))
    for line in summary(run, history):
        console.print(clean(line), soft_wrap=True, highlight=False, markup=False)
    return history


def _write(run: Path, history: History) -> None:
    from recipe.watch import page

    folder = run / "report"
    if folder.is_symlink():
        raise BadInputError("a report is not written through a link", expected="a folder", found=folder)
    folder.mkdir(exist_ok=True)
    write_whole(folder / "metrics.json", json.dumps(history.metrics, indent=2, sort_keys=True) + "\n")
    pictures = []
    for name, meaning, figure in draw({run.resolve().name: history.rollouts}):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        write_whole(folder / f"{name}.png", picture.getvalue())
        pictures.append((name, meaning, Markup(svg(figure))))  # noqa: S704 - ours, from numbers
    write_whole(folder / "index.html", page.write(run, history, pictures, _measured(run, history)))


def _measured(run: Path, history: History) -> dict[str, tuple[float, float]]:
    """What was planned and what came of it; nothing for a run without a rollout, or of another version's settings."""
    from recipe.doctor.plan import build
    from recipe.doctor.plan_report import against, restored

    try:
        return against(build(restored(run)), history, run)
    except RecipeError:
        return {}


def table(history: History) -> Table:
    """A row a rollout, narrow enough for 80 columns."""
    headings = ("", "reward", "groups", "turns", "KL", "entropy", "Δlogprob", "grad", *PHASES.values())
    columns = (Column(heading, justify="right", overflow="fold") for heading in headings)
    shown = Table(*columns, box=box.SIMPLE_HEAD, padding=0, caption=LEGEND, caption_justify="left")
    for rollout in history.rollouts:
        shown.add_row(*_cells(rollout))
    return shown


def _cells(rollout: Rollout) -> list[str]:
    def cell(name: str, form: str) -> str:
        value = number(rollout.metrics.get(name))
        return "-" if math.isnan(value) else f"{value:{form}}"

    return [
        str(rollout.number + 1),
        f"{cell('reward_mean', '.2f')}±{cell('reward_std', '.2f')}",
        "/".join(cell(f"groups_{name}", ".0f") for name in ("kept", "dropped", "surplus")),
        cell("turns_mean", ".1f"),
        cell("kl", ".4f"),
        cell("entropy", ".3f"),
        cell("logprob_difference", ".0e"),
        cell("grad_norm", ".2f"),
        *(f"{rollout.seconds[phase]:.1f}" if phase in rollout.seconds else "" for phase in PHASES),
    ]


def summary(run: Path, history: History) -> list[str]:
    """Where everything lies, and what was proven and what was not."""
    places = {
        "page": run / "report" / "index.html",
        "metrics": run / "report" / "metrics.json",
        "trials": run / "trials",
        "checkpoint": saved_at(run, history.checkpoints[-1]) if history.checkpoints else "none was due",
        "logs": run / "logs",
        "what ran": run / "run_manifest.md",
    }
    return [
        *(f"{name:<14}{place}" for name, place in places.items()),
        f"{'digest':<14}{history.digest} (of the metrics; equal for equal seeds when DETERMINISTIC=1)",
        "",
        _verdict(history, settings_of(run).get("engine")),
    ]


def _verdict(history: History, engine: object) -> str:
    rollouts = history.rollouts
    if history.status != "succeeded" or not rollouts:
        return f"This run is {history.status}, with {len(rollouts)} finished rollouts: it proves nothing."
    means = [f"{number(rollout.metrics.get('reward_mean')):.2f}" for rollout in rollouts]
    rewards = means[0] if len(means) == 1 else f"{means[0]} in the first rollout and {means[-1]} in the last"
    proven = f"the mean reward was {rewards} ({len(means)} in all). "
    if engine == "miles":
        return f"Proven: the job ran on the cluster; {proven}Not proven: anything about tasks it was not trained on."
    return (
        f"Proven: the whole job ran on real parts (sandboxes, agent, verifier, session server, Ray, GRPO); {proven}"
        "Not proven: anything about Inkling-Small itself, about GPUs or about Miles; the model here is a tiny one."
    )
