"""Whatever a job of Miles leaves: it is read without an error, and becomes events that are JSON."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from fuzzing import TEXT, cut, nearly, no_hang, strict, text_of, tried, values
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "run"))
from miles_standin.checkout.miles.utils import log_forms

from recipe.engines.miles.events import Translator
from recipe.events import EventLog, parse
from recipe.job import journal
from recipe.resolve import load
from recipe.settings import Settings

LOG = [
    *log_forms.timed("update_weights"),
    *log_forms.sampled(0, {"agent/turns_mean": 3.5, "audit/malformed": 1.0}),
    *log_forms.trained(0),
    *log_forms.trained(0, grad_norm="nan", valid=False),
    *log_forms.sampled(1, {}),
    *log_forms.trained(1),
]
MESSAGES = [
    "perf 0: {",
    "step 0: {'a': " + "-" * 5000 + "1}",
    "step 0: {'a': " + "(" * 5000 + "1" + ")" * 5000 + "}",
    "step 0: {'train/loss': 1e999, 'audit/\\ud800': inf, 'train/step': 1}",
    "rollout 0: {[1]: 2, **x, 'a': (1).real}",
    "perf 0: {'rollout/dynamic_filter/drop_a': nan, 'rollout/dynamic_filter/drop_b': inf, 'perf/rollout_time': -1}",
    "perf 0: {'a': " + "9" * 5000 + "}",
    "perf 99999999999999999999: {}",
]
TOLD = [
    {"kind": "phase", "phase": "generate", "rollout": 0, "time": 1e9},
    {"kind": "trial", "trial": "t", "task": "t", "state": "started", "rollout": 0, "time": 1e9},
    {
        "kind": "group",
        "rollout": 0,
        "kept": True,
        "reason": None,
        "time": 1e9,
        "trials": [{"reward": 0.5, "turns": 3}],
    },
    {
        "kind": "rollout",
        "rollout": 0,
        "metrics": {"loss": 1},
        "seconds": {"train": 2},
        "trials": {},
        "time": 1e9,
    },
]
DUMPED = {
    "type": "metric",
    "rollout_id": None,
    "metrics": {"rollout/step": 0, "train/step": 1, "train/loss": None},
}
LINES = cut(
    st.one_of(
        st.sampled_from(LOG).map(str.encode),
        (st.sampled_from(MESSAGES) | TEXT).map(
            lambda message: log_forms.logged("main", "a.py:1", message).encode(errors="replace")
        ),
        st.sampled_from(TOLD).flatmap(nearly).map(text_of),
        nearly(DUMPED, values(st.sampled_from(sorted(DUMPED["metrics"])))).map(text_of),
        st.binary(max_size=20),
    )
)
PARTS = st.lists(st.lists(LINES, max_size=8).map(b"\n".join), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def settings() -> Settings:
    given = {"HEAD_IP": "h", "TASKS_DIR": "t", "RUNS_ROOT": "/runs", "RUN_NAME": "r", "NUM_ROLLOUT": "500"}
    return load("train-camel", [f"{name}={value}" for name, value in given.items()])


@given(
    parts=PARTS, told=st.lists(st.sampled_from(TOLD).flatmap(nearly), max_size=3), saved=cut(st.just(b"3\n"))
)
@example(parts=[b"x" * 10_000_000, b"\n" + LOG[0].encode() * 50_000 + b"\n"], told=[], saved=b"\xff")
@example(parts=["\n".join(LOG).replace("0.0625", "inf").encode() + b"\n"], told=TOLD, saved=b"9" * 5000)
@tried(100)
def test_any_lines_are_read_and_what_they_tell_is_json(settings, parts, told, saved):
    with tempfile.TemporaryDirectory() as folder, no_hang():
        run = Path(folder)
        for name in ("logs", "launcher", "checkpoints/iter_0000003", "dump_details/events"):
            (run / name).mkdir(parents=True)
        (run / "checkpoints/latest_checkpointed_iteration.txt").write_bytes(saved)
        known = [event for one in told if (event := parse(text_of(one)))]
        translator, found = Translator(settings, run, known), []
        for part in parts:
            for file in (run / "logs/train.log", journal(run), run / "dump_details/events/main.jsonl"):
                with file.open("ab") as sink:
                    sink.write(part)
            found += translator.new()
        found += translator.new(last=True)
        log = EventLog(run / "events.jsonl")
        for event in found:
            log.append(event)
        for line in (run / "events.jsonl").read_bytes().splitlines():
            assert parse(line).keys() == strict(line).keys()
