"""Whatever stands in a run's events and its manifest: those who watch it tell what they can, without an error."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzzing import ANY, cut, ended, nearly, strict, text_of, tried
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "watch"))
from runs import healthy, write

# As many rollouts, groups and trials as every alarm wants before it speaks.
RUN = healthy(12, started=6, kept=6, samples=2)
FIRST = {event["kind"]: event for event in reversed(RUN)}
MORE = [
    {"kind": "group", "rollout": None, "kept": False, "reason": "flushed", "trials": [{"reward": None}]},
    {"kind": "alarm", "alarm": "kl", "rollout": 0, "found": "x", "action": "warn", "do": "y"},
    {"kind": "sandbox", "sandbox": "x", "state": "orphan"},
    {"kind": "audit", "rollout": 0, "type": "assistant_text"},
    {"kind": "lesson", "done": 1, "total": 2},
    {"kind": "warm_start", "step": 1, "steps": 2, "loss": 0.5},
    *FIRST.values(),
]
EVENTS = st.sampled_from([{"time": RUN[-1]["time"], **event} for event in MORE]).flatmap(nearly)
# What is added, and after how many of the run's own events.
ADDED = st.lists(st.tuples(st.integers(0, len(RUN)), cut(EVENTS.map(text_of))), max_size=5)
METRICS = st.dictionaries(st.sampled_from(sorted(FIRST["rollout"]["metrics"])), ANY, max_size=3)


@st.composite
def runs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """events.jsonl and run_manifest.json: a run's whose later rollouts have odd metrics, with odd events in between."""
    metrics = draw(METRICS)
    lines = [
        text_of(
            event | {"metrics": event["metrics"] | metrics}
            if event.get("rollout", 0) in range(6, 20) and event["kind"] == "rollout"
            else event
        )
        for event in RUN[: draw(st.sampled_from([0, len(RUN) - 1, len(RUN)]))]
    ]
    for place, line in draw(ADDED):
        lines.insert(place, line)
    with tempfile.TemporaryDirectory() as folder:
        right = json.loads((write(Path(folder) / "run", RUN) / "run_manifest.json").read_text())
    return b"\n".join([*lines, b""]), draw(cut(nearly(right).map(text_of)))


def told(run: tuple[bytes, bytes], command: str, *words: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in zip(("events.jsonl", "run_manifest.json"), run, strict=True):
            (Path(folder) / name).write_bytes(content)
        code, out, errors = ended(command, folder, *words)
        assert code in (0, 1) if command == "alarms" else code == 0, errors
        return out


@given(runs(), st.sampled_from(["status", "alarms"]), st.booleans())
@example(
    (text_of(MORE[0] | {"time": 1, "trials": [5, {"reward": "much"}], "kept": True}) + b"\n", b"{}"),
    "status",
    False,
)
@tried(60)
def test_any_events_are_told(run, command, as_json):
    out = told(run, command, *["--json"] * as_json)
    if as_json:
        strict(out.encode())


def odd(event: dict[str, Any]) -> dict[str, Any]:
    """A rollout has each metric as three things in turn; a group one trial of half its fields, and one of odd ones."""
    if event["kind"] == "group":
        return event | {
            "trials": [{"task": 1, "reward": 0.5}, {**event["trials"][0], "seconds": "much", "reward": None}]
        }
    if event["kind"] == "rollout":
        values = [None, "much", 1e308]
        metrics = {
            name: values[(place + event["rollout"]) % 3] for place, name in enumerate(event["metrics"])
        }
        return event | {"metrics": metrics, "seconds": {}}
    return event


# Each of these has its part in the report, and few drawn runs have them all.
@example((b"\n".join([text_of(odd(event)) for event in RUN] + [b""]), b"{}"))
@given(runs())
@tried(6)
def test_any_events_make_a_report(run):
    told(run, "report")
