"""What a job of Miles says, as events: its log, its dumped events where there are any, its checkpoints, our journal.

The log (radixark/Miles at 80a25cb) has all metrics, so it is enough; a dump has the same ones, and makes up for what
a connection to Ray has lost of the log. Groups, trials and the phases of sampling are in the plugins' journal.
Whatever is read twice (a replaced file, a new launcher) is told once. Only lines that Miles' own loggers wrote count:
a log also holds what policies wrote.
"""

from __future__ import annotations

import ast
import json
import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recipe.events import Event, Tail, parse
from recipe.job import journal
from recipe.settings import Settings
from recipe.watch.metrics import SECONDS, from_miles, part, tokens_per_second

# Before a line of a worker: colours, and "(Actor pid=12, ip=10.0.0.2) "; after one that Ray has folded: the count.
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORKER = re.compile(r"(?:\([^()]*pid=[^()]*\) *)+")
FOLDED = re.compile(r" *\[repeated \d+x[^\]]*\].*$")
OF_NOTE = re.compile(rb"(?:perf|rollout|step) \d+: \{|ft op=train_step |Timer \w+ start")
LOGGER = re.compile(r"\[\d{4}-\d\d-\d\d [\d:.]+ [^\]]+\] \S+:\d+ - ")
TABLE = re.compile(r"(perf|rollout|step) (\d{1,9}): (\{.*\})$")
TIMER = re.compile(r"Timer (\w+) start$")
SKIPPED = re.compile(r"ft op=train_step (?=.*\brollout=(\d{1,9})\b).*\bvalid_step=false\b")
# What the actor's timers mean here, and how far ahead of the last sampled rollout the phase is.
PHASES = {"train": ("train", 0), "save_model": ("save", 0), "update_weights": ("update_weights", 1)}
# A rollout is over once its samples, its step and its times are known: one of each table.
COMPLETE = {"rollout/raw_reward", "train/grad_norm", "perf/train_time", "perf/rollout_time"}
# A dump has one file for each of some 70 processes, on a shared disk: they are looked at more rarely than the log.
DUMP_SECONDS = 5.0
LONGEST_TABLE = 1 << 17  # characters; Miles' tables have some 5,000


class Translator:
    """Follows the run in `run_dir`. `known` are the events that it has told before, in another process."""

    def __init__(self, settings: Settings, run_dir: Path, known: Iterable[Event] = ()) -> None:
        self._run_dir = run_dir
        self._rollouts = settings.num_rollout
        samples = settings.rollout_batch_size * settings.n_samples_per_prompt
        self._steps = max(1, samples // settings.global_batch_size)
        self._journal = Tail(journal(run_dir))
        self._log = Tail(run_dir / "logs" / "train.log")
        self._dumps: dict[Path, Tail] = {}
        self._dumps_due = 0.0
        self._logged: dict[int, dict[str, float]] = defaultdict(dict)
        self._skipped: set[int] = set()
        self._groups: dict[int, list[Event]] = defaultdict(list)
        self._trials: Counter[int] = Counter()
        self._sampled = -1  # the last rollout whose samples are there
        self._told: set[tuple[Any, ...]] = set()
        for event in known:
            self._told.add(_key(event))
            self._count(event)

    def new(self, *, last: bool = False) -> list[Event]:
        """The events since the last call. `last`: no more will come, so what is incomplete is told as it is."""
        events = [*self._from_journal(), *self._from_log()]
        if last or time.monotonic() >= self._dumps_due:
            self._read_dumps()
            self._dumps_due = time.monotonic() + DUMP_SECONDS
        events += [*self._finished(last=last), *self._saved()]
        # By their keys, which keeps the first of those that are told twice at once.
        new = {_key(event): event for event in reversed(events) if _key(event) not in self._told}
        self._told |= new.keys()
        return list(reversed(new.values()))

    def _count(self, event: Event) -> None:
        match event:
            case {"kind": "group", "rollout": int(rollout), "kept": bool(), "trials": [dict(), *_]}:
                self._groups[rollout].append(event)
            case {"kind": "trial", "rollout": int(rollout), "state": "started"}:
                self._trials[rollout] += 1

    def _from_journal(self) -> Iterator[Event]:
        for line in self._journal.lines():
            event = parse(line)
            if event is not None and _key(event) not in self._told:
                self._count(event)
                yield event

    def _from_log(self) -> Iterator[Event]:
        for line in self._log.lines():
            message = _message(line)
            if message is None:
                continue
            if table := TABLE.match(message):
                self._take_table(table[1], int(table[2]), table[3])
            elif skipped := SKIPPED.match(message):
                self._skipped.add(int(skipped[1]))
            elif (timer := TIMER.match(message)) and timer[1] in PHASES:
                phase, ahead = PHASES[timer[1]]
                rollout = self._sampled + ahead
                if 0 <= rollout < self._rollouts:
                    yield _event("phase", phase=phase, rollout=rollout)

    def _take_table(self, name: str, number: int, text: str) -> None:
        rollout = number // self._steps if name == "step" else number
        if rollout < self._rollouts:
            self._logged[rollout] |= _numbers(text)
            if name == "perf":
                self._sampled = max(self._sampled, rollout)

    def _read_dumps(self) -> None:
        for path in sorted((self._run_dir / "dump_details" / "events").glob("*.jsonl")):
            for line in self._dumps.setdefault(path, Tail(path)).lines():
                if b'"metric"' in line:
                    self._take_dumped(line)

    def _take_dumped(self, line: bytes) -> None:
        """A MetricEvent; there a number that is none is written as null."""
        try:
            metrics = json.loads(line)["metrics"]
            numbers = {name: math.nan if value is None else float(value) for name, value in metrics.items()}
            step = numbers.get("rollout/step", numbers.get("train/step", math.nan) // self._steps)
            rollout = int(step)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return
        if 0 <= rollout < self._rollouts:
            self._logged[rollout] |= numbers

    def _finished(self, *, last: bool) -> Iterator[Event]:
        """Rollouts that are complete, and those before them, of which no more will come."""
        complete = [rollout for rollout, logged in self._logged.items() if logged.keys() >= COMPLETE]
        if last:  # a step without the rest of its tables
            complete += [rollout for rollout, logged in self._logged.items() if "train/grad_norm" in logged]
        for rollout in sorted(self._logged):
            if rollout <= max(complete, default=-1):
                yield self._rollout(rollout, self._logged.pop(rollout))

    def _rollout(self, rollout: int, logged: dict[str, float]) -> Event:
        seconds = {phase: logged[name] for phase, name in SECONDS.items() if name in logged}
        metrics = from_miles(logged)
        if rollout in self._skipped:
            metrics["valid_step"] = False
        metrics |= _of_groups(self._groups.pop(rollout, []), self._trials.pop(rollout, 0))
        if metrics.get("trials"):
            metrics["malformed_ratio"] = metrics.get("audit/malformed", 0) / metrics["trials"]
        metrics |= tokens_per_second(metrics, seconds)
        return _event(
            "rollout", rollout=rollout, metrics=metrics, seconds=seconds, trials=part(logged, "agent/")
        )

    def _saved(self) -> Iterator[Event]:
        """Checkpoints that are whole: Megatron writes the number of the last one when all else is there."""
        folder = self._run_dir / "checkpoints"
        try:
            last = int((folder / "latest_checkpointed_iteration.txt").read_text())
        except (OSError, ValueError):
            return
        for path in sorted(folder.glob("iter_*")):
            number = path.name.removeprefix("iter_")
            if number.isdecimal() and int(number) <= last:
                yield _event("checkpoint", rollout=int(number), path=str(path))


def _key(event: Event) -> tuple[Any, ...]:
    """What is one and the same event. A run has each phase of a rollout once, and each trial's start and end."""
    names = ("time",) if event["kind"] == "group" else ("rollout", "phase", "trial", "state")
    return (event["kind"], *(str(event.get(name)) for name in names))


def _event(kind: str, **fields: Any) -> Event:
    return {"time": time.time(), "kind": kind, **fields}


def _message(line: bytes) -> str | None:
    """What a logger of Miles wrote, without what stands around it."""
    if len(line) > LONGEST_TABLE or not OF_NOTE.search(line):
        return None
    text = COLOURS.sub("", line.decode(errors="replace"))
    if worker := WORKER.match(text):
        text = text[worker.end() :]
    logger = LOGGER.match(text)
    return FOLDED.sub("", text[logger.end() :]).rstrip() if logger else None


def _numbers(text: str) -> dict[str, float]:
    """The numbers of a printed dictionary; whatever else it holds is left out."""
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Dict(keys=keys, values=values):
                pairs = [(key, _number(value)) for key, value in zip(keys, values, strict=True)]
            case _:
                return {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {
        key.value: value
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and value is not None
    }


def _number(node: ast.expr) -> float | None:
    """A literal number, nan, inf, and either in a call, as NumPy and torch print theirs."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value) if abs(value) < 1e300 or isinstance(value, float) else math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand)
            return None if positive is None else -positive
        case ast.Name(id="nan" | "inf" as name):
            return float(name)
        case ast.Call(args=[argument, *_]):
            return _number(argument)
    return None


def _of_groups(groups: list[Event], started: int) -> dict[str, Any]:
    """What the filter saw: rewards, lengths and counts, as the local engine tells them; empty without groups."""
    if not groups:
        return {}
    kept = [trial for group in groups if group["kept"] for trial in group["trials"]]
    rewards = [trial["reward"] for trial in kept if trial.get("reward") is not None]
    size = len(groups[0]["trials"])
    metrics: dict[str, Any] = {
        "groups_kept": sum(group["kept"] for group in groups),
        "groups_dropped": dict(Counter(str(group.get("reason")) for group in groups if not group["kept"])),
        # Of a surplus group nobody tells but its trials.
        "groups_surplus": max(0, -(-started // size) - len(groups)),
        "trials": len(kept),
    }
    if rewards:
        metrics["reward_std"] = statistics.pstdev(rewards)
        metrics["turns_mean"] = statistics.fmean(trial.get("turns", 0) for trial in kept)
        metrics["response_tokens_mean"] = statistics.fmean(trial.get("response_tokens", 0) for trial in kept)
    return metrics
