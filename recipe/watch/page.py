"""The report as one HTML file: no script, no network, and every text from a trial escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import escape

from recipe.plugins.filters import INFRASTRUCTURE
from recipe.untrusted import clean
from recipe.watch import trajectories
from recipe.watch.curves import mean
from recipe.watch.history import History, Rollout, manifest_of
from recipe.watch.metrics import figure, number
from recipe.watch.status import facts, span
from recipe.watch.trajectories import Trajectory

# A page of more trajectories, or of more of their text, is slow to open on a phone.
TRAJECTORIES = 200
TEXT_BYTES = 3_800_000
# Rollouts at either end whose mean says whether a run learned: enough to average noise, few enough to see a change.
ENDS = 5
# Standard errors: a difference that chance gives in one run of twenty.
CLEAR = 2.0
# What is not seen in two decimals is no change, even where all rewards are alike.
LEAST_ERROR = 0.005
# Surplus trials end in it too, and nothing is wrong with that.
FLUSHED = "Flushed"

Trial = dict[str, Any]
Shown = tuple[Trial, list[str], Trajectory]  # a trial, why it is on the page, what it did
Failures = dict[tuple[str, str], list[Trial]]  # by kind (trial or group) and name


@dataclass
class Task:
    """A task's graded trials, group by group."""

    groups: list[list[Trial]] = field(default_factory=list)

    @property
    def trials(self) -> list[Trial]:
        return [trial for group in self.groups for trial in group]

    def mean(self, key: str, *places: int) -> float:
        """Of a number of the trials of all groups, or of those at the given places."""
        groups = [self.groups[place] for place in places] or self.groups
        values = [number(trial.get(key)) for group in groups for trial in group]
        return mean([value for value in values if math.isfinite(value)])


def write(
    run: Path, history: History, pictures: Sequence[Any], measured: Mapping[str, tuple[float, float]]
) -> str:
    """The page of a run: its curves are given (name, meaning, SVG), and what was planned and measured."""
    trials = list(_trials(history))
    tasks = _tasks(trials)
    failures = _failures(trials, history)
    shown, left_out = _shown(run / "trials", tasks, failures)
    return render(
        "report.html",
        title=run.resolve().name,
        history=history,
        manifest=manifest_of(run),
        facts=facts(run, history),
        learned=learned(history.rollouts),
        trials=trials,
        broken=sum(trial.get("exit_status") in {*INFRASTRUCTURE} - {FLUSHED} for trial in trials),
        infrastructure=INFRASTRUCTURE,
        pictures=pictures,
        tasks=tasks,
        failures=failures,
        measured=measured,
        shown=shown,
        left_out=left_out,
        first_turns=trajectories.FIRST_TURNS,
    )


def render(template: str, **values: Any) -> str:
    """Fills a template of this folder; whatever is put into one is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters |= {"figure": figure, "span": span}
    return environment.get_template(template).render(**values)


def learned(rollouts: Sequence[Rollout]) -> dict[str, float] | None:
    """Mean reward of the first and of the last `count` rollouts, and how many standard errors lie between.

    The error takes the trials as independent; those of a group share their task. None of fewer than two rollouts.
    """
    found = [of for rollout in rollouts if math.isfinite(number((of := rollout.metrics).get("reward_mean")))]
    count = min(ENDS, len(found) // 2)
    if not count:
        return None
    ends = found[:count] + found[-count:]
    first, last = (mean([number(of["reward_mean"]) for of in end]) for end in (ends[:count], ends[count:]))
    variances = (number(of.get("reward_std")) ** 2 / max(1, number(of.get("trials"))) for of in ends)
    errors = (last - first) / max(math.sqrt(sum(variances)) / count, LEAST_ERROR)
    clear = abs(errors) > CLEAR
    return {"count": count, "first": first, "last": last, "errors": errors, "beyond_chance": clear}


def _trials(history: History) -> Iterator[Trial]:
    """Every trial of which the events tell: those of groups, and those of the unfinished rollout in no group yet."""
    grouped = set()
    for place, group in enumerate(history.groups):
        for trial in group.trials:
            grouped.add(trial.get("trial_name"))
            yield {**trial, "rollout": group.rollout, "group": place}
    yield from (trial for trial in history.finished_trials if trial.get("trial_name") not in grouped)


def _tasks(trials: Sequence[Trial]) -> dict[str, Task]:
    """By name; those with the most groups first."""
    groups: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        graded = math.isfinite(number(trial.get("reward"))) and trial.get("exit_status") not in INFRASTRUCTURE
        if graded and "group" in trial:
            groups.setdefault((str(trial.get("task")), trial["group"]), []).append(trial)
    tasks: dict[str, Task] = {}
    for (name, _), group in groups.items():
        tasks.setdefault(name, Task()).groups.append(group)
    return dict(sorted(tasks.items(), key=lambda item: (-len(item[1].groups), item[0])))


def _failures(trials: Sequence[Trial], history: History) -> Failures:
    """The trials that were not submitted by their end, and the dropped groups (a trial of each) by their reason."""
    found: Failures = {}
    for trial in trials:
        if trial.get("exit_status") not in (None, "Submitted"):
            found.setdefault(("trial", str(trial["exit_status"])), []).append(trial)
    for group in history.groups:
        if not group.kept:
            example = {**(group.trials or [{}])[0], "rollout": group.rollout}
            found.setdefault(("group", str(group.reason)), []).append(example)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] == "group", -len(item[1]))))


def _shown(folder: Path, tasks: Mapping[str, Task], failures: Failures) -> tuple[dict[str, list[Shown]], int]:
    """The trajectories of the page by task, and how many picks had no room."""
    picks: dict[Any, tuple[Trial, list[str]]] = {}
    for reason, trial in _picks(tasks, failures):
        if trial.get("trial_name"):
            picks.setdefault(str(trial["trial_name"]), (trial, []))[1].append(reason)
    shown: dict[str, list[Shown]] = {}
    size = count = 0
    for name, (trial, why) in islice(picks.items(), TRAJECTORIES):
        trajectory = trajectories.read(folder, name)
        texts = [*trajectory.parts, *(part for turn in trajectory.turns for part in turn.parts)]
        more = sum(len(escape(text.shown).encode()) for _, text in texts)
        if size + more <= TEXT_BYTES:
            size, count = size + more, count + 1
            shown.setdefault(str(trial.get("task")), []).append((trial, why, trajectory))
    return dict(sorted(shown.items())), len(picks) - count


def _picks(tasks: Mapping[str, Task], failures: Failures) -> Iterator[tuple[str, Trial]]:
    """Which trials to show and why, the most telling first, so that a full page lacks the least."""
    yield from ((name, trials[0]) for (_, name), trials in failures.items())
    for task in tasks.values():
        yield "first", task.trials[0]
    for task in tasks.values():
        yield "last", task.trials[-1]
    for task in tasks.values():
        yield "best", max(task.trials, key=lambda trial: number(trial["reward"]))
        yield "worst", min(task.trials, key=lambda trial: number(trial["reward"]))
