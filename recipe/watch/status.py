"""Where a run is: one dictionary of facts, for programs as it is, for people as a block of 80 columns."""

from __future__ import annotations

import fcntl
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from recipe.events import EventReader
from recipe.untrusted import clean
from recipe.watch.history import History, manifest_of, recorded, saved_at, window
from recipe.watch.metrics import METRICS, number

SHOWN = (
    *("reward_mean", "reward_std", "turns_mean", "response_tokens_mean", "truncated_ratio"),
    *("malformed_ratio", "kl", "entropy", "logprob_difference", "grad_norm", "tokens_per_second"),
)
# Tasks at either end, and alarms, that fit a screen of 24 lines with the rest.
FEW = 3
# A redraw asks the disk, which may be shared, and an eye sees no more.
REDRAW_SECONDS = 2.0


def show(run: Path, console: Console, *, follow: bool) -> None:
    """Prints where the run is; with `follow`, anew until it no longer runs."""
    history, reader = History(*window(manifest_of(run))), EventReader(run / "events.jsonl")
    state, told = "running", None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            history.until = window(manifest_of(run))[1]
            for event in reader.new():
                history.take(event)
            before, state = state, (found := facts(run, history))["state"]
            # Seen dead once, it may be about to write its end.
            if not follow or state == "ended" or before == state == "dead":
                break
            here = (history.phase, history.phase_rollout)
            if console.is_terminal:
                live.update(block(found), refresh=True)
            elif here != told:  # a file or a pipe gets one block a phase
                console.print(block(found))
                told = here
            time.sleep(REDRAW_SECONDS)
    console.print(block(found))


def facts(run: Path, history: History) -> dict[str, Any]:
    """What is known of a run, as plain JSON; times in seconds, sizes in bytes."""
    manifest = manifest_of(run)
    settings = recorded(manifest)
    state = "ended" if manifest.get("ended") else "running" if is_followed(run) else "dead"
    if state == "running":
        history.pass_time(time.time())
    elif state == "dead":  # nobody stops its sandboxes
        history.sandboxes.now = max(history.now, time.time())
    done, wanted = len(history.rollouts), settings.get("num_rollout")
    price, hours = settings.get("sandbox_hour_price"), history.sandboxes.hours
    return {
        "run": clean(str(run)),
        "state": state,
        **{name: settings.get(name) for name in ("engine", "agent", "sandbox_backend")},
        **{name: manifest.get(name) for name in ("exit_code", "error", "ended")},
        "seconds": history.now - history.started if history.started else 0.0,
        "phase": history.phase,
        "phase_seconds": history.now - history.phase_time if history.phase else None,
        "warm_start": history.warm_start if history.phase == "warm_start" else None,
        "rollouts": done,
        "num_rollout": wanted,
        "seconds_left": _left(history, wanted) if state == "running" else None,
        "trials": {"open": len(history.open_trials), "done": len(history.finished_trials)},
        "metrics": {
            name: {
                "first": values[0],
                "before": values[-2] if len(values) > 2 else None,
                "newest": values[-1],
            }
            for name in SHOWN
            if (values := [number(one.metrics[name]) for one in history.rollouts if name in one.metrics])
        },
        "groups": {
            "newest": {name: history.newest.get(f"groups_{name}") for name in ("kept", "dropped", "surplus")},
            "current": dict(Counter(group.reason or "kept" for group in history.current_groups)),
            "dropped": dict(Counter(group.reason for group in history.groups if not group.kept)),
        },
        "tasks": _tasks(history),
        "sandboxes": {
            **{name: getattr(history.sandboxes, name) for name in ("open", "created", "orphans", "hours")},
            "cost": None if price is None else price * hours,
        },
        "resources": history.resources,
        "checkpoints": history.checkpoints,
        "alarms": history.alarms,
    }


def is_followed(run: Path) -> bool:
    """Whether a launcher follows the run: it holds the lock in its folder for as long."""
    try:
        with (run / "launcher" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _left(history: History, wanted: int | None) -> float | None:
    """Until the last rollout's end, from the median of the finished ones. None before the first."""
    ends = [rollout.time for rollout in history.rollouts]
    if not ends or not wanted:
        return None
    # The first one alone has no end before it: its phases are all there is.
    took = [later - earlier for earlier, later in pairwise(ends)]
    usual = statistics.median(took or [sum(history.rollouts[0].seconds.values())])
    return max(0.0, (wanted - len(ends)) * usual - (history.now - ends[-1]))


def _tasks(history: History) -> dict[str, Any]:
    """Of each task the mean reward of its newest kept group: the worst, the best of the others, and their number."""
    newest = {
        str(group.trials[0].get("task")): statistics.fmean(group.rewards)
        for group in history.groups
        if group.kept and group.rewards
    }
    ranked = sorted(newest.items(), key=lambda item: item[1])
    return {
        "tried": len(ranked),
        "unsolved": sum(mean == 0 for mean in newest.values()),
        "worst": dict(ranked[:FEW]),
        "best": dict(ranked[FEW:][: -FEW - 1 : -1]),
    }


def block(of: dict[str, Any]) -> Group:
    """The facts for people."""
    lines = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for name, told in _lines(of):
        lines.add_row(clean(name), Text(clean(told)))
    return Group(lines, *([_table(of["metrics"])] if of["metrics"] else []))


def _lines(of: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "run", f"{of['run']}: {of['agent']} on {of['engine']}, sandboxes on {of['sandbox_backend']}"
    yield "state", _state(of)
    if of["state"] != "ended":
        yield "now", _now(of)
    yield "groups", _told_groups(of["groups"])
    tasks = of["tasks"]
    if tasks["tried"]:
        yield "tasks", f"{tasks['tried']} tried, {tasks['unsolved']} of them not solved when last tried"
        ends = {"worst": tasks["worst"], "best": tasks["best"]} if tasks["best"] else {"each": tasks["worst"]}
        for end, means in ends.items():
            yield f"  {end}", ", ".join(f"{task} {mean:.2f}" for task, mean in means.items())
    boxes = of["sandboxes"]
    if boxes["created"]:
        cost = "" if boxes["cost"] is None else f", {boxes['cost']:,.2f} USD"
        left = f", {boxes['orphans']} orphans" if boxes["orphans"] else ""
        yield "sandboxes", f"{boxes['open']} open, {boxes['hours']:,.1f} h of all together{cost}{left}"
    if seen := of["resources"]:
        memory, total, disk = (
            (seen.get(name) or 0) / 1e9
            for name in ("available_memory_bytes", "total_memory_bytes", "free_disk_bytes")
        )
        yield "left", f"{memory:,.0f} of {total:,.0f} GB memory, {disk:,.0f} GB disk"
    paths = of["checkpoints"]
    count = f"{len(paths)} checkpoint{'s' * (len(paths) > 1)}"
    yield (
        "saved",
        f"{count}, the last {saved_at(Path(of['run']), paths[-1])}" if paths else "no checkpoint yet",
    )
    alarms = of["alarms"]
    yield "alarms", str(len(alarms) or "none")
    for alarm in alarms[-FEW:]:
        yield f"  {alarm.get('action')}", f"{alarm['alarm']}: {alarm.get('found')}; {alarm.get('do')}"


def _state(of: dict[str, Any]) -> str:
    done = f"{of['rollouts']} of {of['num_rollout']} rollouts in {span(of['seconds'])}"
    if of["state"] == "running":
        return f"running: {done}"
    if of["state"] == "ended":
        error = f": {of['error']}" if of["error"] else ""
        return f"ended {of['ended']} with exit code {of['exit_code']}, {done}{error}"
    more = f"; pick it up with `recipe attach {of['run']}`" if of["engine"] == "miles" else ""
    return f"dead: no launcher follows it, and it has no end; {done}{more}"


def _now(of: dict[str, Any]) -> str:
    if of["phase"] is None:
        return "no event yet"
    told = f"{of['phase']} for {span(of['phase_seconds'])}"
    if of["warm_start"]:
        told += f", {of['warm_start']}"
    trials = of["trials"]
    if trials["open"] or trials["done"]:
        told += f"; trials: {trials['done']} done, {trials['open']} open"
    return told if of["seconds_left"] is None else f"{told}; about {span(of['seconds_left'])} left"


def _told_groups(groups: dict[str, Any]) -> str:
    parts, newest = [], groups["newest"]
    if newest["kept"] is not None:
        dropped = number(newest["dropped"] or {})
        parts.append(
            f"newest rollout {newest['kept']} kept, {dropped:g} dropped, {newest['surplus'] or 0} surplus"
        )
    for name, counts in (("this one so far", groups["current"]), ("dropped in all", groups["dropped"])):
        if counts:
            parts.append(f"{name}: " + ", ".join(f"{count} {reason}" for reason, count in counts.items()))
    return "; ".join(parts) or "none yet"


def _table(metrics: dict[str, dict[str, float | None]]) -> Table:
    names = ("first", "before", "newest")
    columns = (Column(name, justify="right", overflow="fold") for name in names)
    shown = Table(
        Column(overflow="fold"), *columns, Column("unit", overflow="fold"), box=None, padding=(0, 2, 0, 0)
    )
    for metric in METRICS:
        if values := metrics.get(metric.name):
            numbers = ("" if values[name] is None else f"{values[name]:.4g}" for name in names)
            shown.add_row(metric.title, *numbers, metric.unit)
    return shown


def span(seconds: float) -> str:
    """Seconds in the units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
