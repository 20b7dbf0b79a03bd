"""The conditions of the alarms: each a function of the history, the settings and a limit that says what it found."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from recipe.plugins.audit import grown
from recipe.plugins.filters import INFRASTRUCTURE
from recipe.watch.history import History
from recipe.watch.metrics import number

Settings = Mapping[str, Any]  # by lower-case names; an older run's may lack some
Check = Callable[[History, Settings, float], str | None]
# Rollouts at either end that are compared: three smooth a rollout's noise, and fit a run of ten.
WINDOW = 3
# A mean reward is the noisier: of five rollouts, so a run of ten is the first to be judged.
REWARD_WINDOW = 5
# In 3,000 simulated runs without any change (16 or 4 groups a rollout, mean reward 0.05 to 0.8, tasks mostly solved
# always or never) the best window and another one were never so far apart; a fall to a fifth is seen after 2 to 4.
STANDARD_ERRORS = 4.0
# With a true share of 30 %, 64 groups show more than half once in 4,000 times.
LEAST_GROUPS = 64
LEAST_TRIALS = 100
# Some twelve groups: their turns differ by task.
LEAST_UNSOLVED = 100
TRUNCATION_RISE = 0.05
STALL_SECONDS = 1800.0
STALL_PHASES = 3
NUMBERS = ("loss", "grad_norm", "kl", "entropy", "logprob_difference")


def newest(metric: str, told: str) -> Check:
    """Whether a metric of the newest rollout is above the limit."""

    def check(history: History, _settings: Settings, limit: float) -> str | None:
        value = _number(history.newest, metric)
        return f"{told} {value:.3g}, limit {limit:g}" if value > limit else None

    return check


def moved(metric: str, told: str, *, up: bool) -> Check:
    """Whether the last rollouts' mean is beyond `limit` times that of the first."""

    def check(history: History, _settings: Settings, limit: float) -> str | None:
        values = history.values(metric)
        if len(values) < 2 * WINDOW:
            return None
        first, last = statistics.fmean(values[:WINDOW]), statistics.fmean(values[-WINDOW:])
        beyond = last > limit * first if up else last < limit * first
        return f"{told} {last:.3g}, in the first rollouts {first:.3g}" if beyond and first > 0 else None

    return check


def reward_fall(history: History, _settings: Settings, limit: float) -> str | None:
    """A mean over several rollouts far below the best one before it, and beyond what chance does."""
    names = ("reward_mean", "reward_std")
    both = [tuple(number(rollout.metrics.get(name)) for name in names) for rollout in history.rollouts]
    known = [pair for pair in both if all(map(math.isfinite, pair))]
    if len(known) < 2 * REWARD_WINDOW:
        return None
    rewards, spreads = map(list, zip(*known, strict=True))
    ends = range(REWARD_WINDOW, len(rewards) - REWARD_WINDOW + 1)
    best, best_variance = max(_window(rewards, spreads, end) for end in ends)
    now, variance = _window(rewards, spreads, len(rewards))
    # The trials of a group share their task: only groups count as independent.
    groups = REWARD_WINDOW * max(1.0, _number(history.newest, "groups_kept"))
    chance = STANDARD_ERRORS * math.sqrt((best_variance + variance) / groups)
    fallen = now < limit * best and best - now > chance
    told = f"mean reward {now:.2f} in the last {REWARD_WINDOW} rollouts, {best:.2f} in the best"
    return told if fallen else None


def _window(rewards: list[float], spreads: list[float], end: int) -> tuple[float, float]:
    part = slice(end - REWARD_WINDOW, end)
    return statistics.fmean(rewards[part]), statistics.fmean(spread**2 for spread in spreads[part])


def early_endings(history: History, _settings: Settings, limit: float) -> str | None:
    """Unsolved trials of the last rollouts end sooner than at first, though they are not cut more often."""
    if len(history.rollouts) < 2 * WINDOW:
        return None
    until, since = history.rollouts[WINDOW - 1].number, history.rollouts[-WINDOW].number
    first: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for group in history.groups:
        if group.rollout is not None and not until < group.rollout < since:
            part = first if group.rollout <= until else last
            part += [one for one in group.trials if one.get("reward") == 0 and one.get("turns")]
    if min(len(first), len(last)) < LEAST_UNSOLVED:
        return None
    turns = [statistics.fmean(one["turns"] for one in part) for part in (first, last)]
    cut = [statistics.fmean(one.get("status") == "truncated" for one in part) for part in (first, last)]
    ended = turns[1] < limit * turns[0] and cut[1] <= cut[0] + TRUNCATION_RISE
    return f"unsolved trials end after {turns[1]:.1f} turns, at first {turns[0]:.1f}" if ended else None


def not_finite(history: History, _settings: Settings, _limit: float) -> str | None:
    """A number of the newest rollout's step is infinite or none, or the step was skipped."""
    metrics = history.newest
    odd = [name for name in NUMBERS if _lost(metrics, name)]
    if odd:
        return f"not finite: {', '.join(odd)}"
    return "the optimizer skipped its step" if metrics.get("valid_step") is False else None


def skipped_updates(history: History, _settings: Settings, limit: float) -> str | None:
    """No step was taken, or none that could do any good, in the last `limit` rollouts."""
    metrics = [rollout.metrics for rollout in history.rollouts[-int(limit) :]]
    lost = [
        one.get("valid_step", not _lost(one, "grad_norm")) is False or _lost(one, "loss") for one in metrics
    ]
    return f"no update in {sum(lost)} rollouts in a row" if sum(lost) == limit else None


def uniform_groups(history: History, _settings: Settings, limit: float) -> str | None:
    """Too many of the newest kept groups have equal rewards."""
    kept = list(islice((group for group in reversed(history.groups) if group.kept), LEAST_GROUPS))
    uniform = [group.rewards[0] for group in kept if len(set(group.rewards)) == 1]
    if len(kept) < LEAST_GROUPS or len(uniform) <= limit * LEAST_GROUPS:
        return None
    solved = statistics.fmean(reward > 0 for reward in uniform)
    return f"{len(uniform)} of the last {LEAST_GROUPS} groups, {solved:.0%} of them solved"


def infrastructure(history: History, _settings: Settings, limit: float) -> str | None:
    """Too many of the newest trials failed, and not by the policy's doing."""
    trials: list[dict[str, Any]] = []
    for group in reversed(history.groups):
        trials += group.trials
        if len(trials) >= LEAST_TRIALS:
            share = statistics.fmean(map(_failed, trials))
            told = f"{share:.0%} of the last {len(trials)} trials, limit {limit:.0%}"
            return told if share > limit else None
    return None


def _failed(trial: Mapping[str, Any]) -> bool:
    status = trial.get("exit_status")
    return status is None or status in INFRASTRUCTURE or trial.get("status") in {"aborted", "failed"}


def strict_tokens(history: History, settings: Settings, limit: float) -> str | None:
    """Too many trajectories with tokens that nobody sampled or replayed so."""
    allowed = settings.get("audit_max_strict") or 1.0
    share = _number(history.newest, "audit/strict_ratio")
    return f"{share:.0%} of the trajectories; {allowed:.0%} end the job" if share > limit * allowed else None


def native_blocks(history: History, _settings: Settings, _limit: float) -> str | None:
    """Inkling's own tool calls become a habit of Terminus-2."""
    shares = history.values("audit/native_tool_block_rewarded_ratio")
    habit = shares and grown(shares[0], shares[-1])
    return f"{shares[-1]:.0%} of the rewarded trajectories, at first {shares[0]:.0%}" if habit else None


def stall(history: History, _settings: Settings, limit: float) -> str | None:
    """A phase lasts far longer than it used to."""
    lasted = history.now - history.phase_time
    if lasted < STALL_SECONDS or history.phase is None or history.status != "unfinished":
        return None
    past = [one.seconds[history.phase] for one in history.rollouts if history.phase in one.seconds]
    usual = statistics.median(past) if len(past) >= STALL_PHASES else math.inf
    told = f"{history.phase} for {lasted / 60:.0f} min, usually {usual / 60:.1f}"
    return told if lasted > limit * usual else None


def low_memory(history: History, _settings: Settings, limit: float) -> str | None:
    """The head's memory is nearly used up."""
    seen = history.resources or {}
    available, total = _number(seen, "available_memory_bytes"), _number(seen, "total_memory_bytes")
    told = f"{available / 1e9:.1f} GB of {total / 1e9:.0f} GB available"
    return told if available < limit * total else None


def low_disk(history: History, settings: Settings, limit: float) -> str | None:
    """The next checkpoint would fill the disk."""
    seen = history.resources or {}
    if len(history.rollouts) >= (settings.get("num_rollout") or math.inf):
        return None
    free, needed = _number(seen, "free_disk_bytes"), _number(seen, "checkpoint_bytes")
    told = f"{free / 1e9:.1f} GB free, a checkpoint takes {needed / 1e9:.1f} GB"
    return told if free < limit * needed else None


def sandbox_hours(history: History, settings: Settings, limit: float) -> str | None:
    """The run's sandboxes have used up what they may."""
    allowed, hours = settings.get("sandbox_hours_max"), history.sandboxes.hours
    return f"{hours:.3g} h, {allowed:.3g} h allowed" if allowed and hours > limit * allowed else None


def orphans(history: History, _settings: Settings, limit: float) -> str | None:
    """Sandboxes are left that no trial uses."""
    return f"{history.sandboxes.orphans} left" if history.sandboxes.orphans > limit else None


def _lost(metrics: Mapping[str, Any], name: str) -> bool:
    """Whether a metric is there, and is no finite number; null is what some writers make of such a one."""
    return name in metrics and not math.isfinite(number(metrics[name]))


def _number(values: Mapping[str, Any], name: str) -> float:
    """A value, or 0 where there is none."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) else 0.0
