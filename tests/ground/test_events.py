"""The event file: readable while it is written, and after a writer was killed."""

from __future__ import annotations

import json
import math
import os
import pathlib

import numpy as np
import pytest

from recipe import events
from recipe.events import EventLog, EventReader, Tail, parse


def test_a_reader_gets_each_event_once_and_with_its_time(tmp_path):
    log, reader = EventLog(tmp_path / "events.jsonl"), EventReader(tmp_path / "events.jsonl")
    log.write("phase", phase="train", rollout=0)
    first = list(reader.new())
    log.write("end", status="succeeded", error=None)
    assert [event["kind"] for event in first + list(reader.new())] == ["phase", "end"]
    assert isinstance(first[0]["time"], float)
    assert list(reader.new()) == []


def test_a_missing_file_has_no_events(tmp_path):
    assert list(EventReader(tmp_path / "none").new()) == []


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    path.write_bytes(b'{"time": 1, "kind": "end", "sta')
    assert list(reader.new()) == []
    with path.open("ab") as file:
        file.write(b'tus": "failed"}\n')
    assert [event["status"] for event in reader.new()] == ["failed"]


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    lines = [
        b'{"time": 1, "kind": "a"}',
        b'{"time": 1, "kind": "b", "cut',
        b"[1]",
        b'{"time": 1, "no": "kind"}',
    ]
    lines += [b"\xff\xfe", b'{"time": 1, "kind": "c"}', b'{"kind": "d"}', b'{"time": null, "kind": "d"}']
    lines += [b'{"time": %s, "kind": "d"}' % time for time in (b'"1"', b"NaN", b"1e999", b"1" * 400, b"true")]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert [event["kind"] for event in EventReader(path).new()] == ["a", "c"]


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({"kind": "sandbox", "seconds": "long", "sandbox": 3}, {"kind": "sandbox"}),
        ({"kind": "rollout", "rollout": 1.5, "seconds": {"train": None, "save": 1}, "metrics": [], "trials": 3},
         {"kind": "rollout", "seconds": {"save": 1}}),
        ({"kind": "group", "trials": [3, {"reward": [], "turns": math.inf, "task": {}, "sample": 0}]},
         {"kind": "group", "trials": [{"sample": 0}]}),
        ({"kind": "resources", "free_disk_bytes": "much"}, {"kind": "resources"}),
        ({"kind": "new", "path": None, "x": [1]}, {"kind": "new", "path": None, "x": [1]}),
    ],
)  # fmt: skip
def test_a_value_that_has_not_the_type_of_its_key_is_not_known(told, known):
    assert parse(json.dumps({"time": 1, **told}).encode()) == {"time": 1, **known}


def test_half_a_pair_of_surrogates_and_a_number_without_measure_harm_nobody():
    event = parse(
        b'{"time": 1, "kind": "x", "found": "a\\ud800\\ud83d\\ude00", "y": -1e300, "z": %s}' % (b"9" * 5000)
    )
    assert (event["found"], event["y"], event["z"]) == ("a?\U0001f600", -math.inf, math.inf)


def test_a_pipe_or_a_folder_is_refused_and_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            list(EventReader(path).new())


def test_array_scalars_and_paths_become_plain_values(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("checkpoint", rollout=np.int64(3), loss=np.float32(0.5), path=pathlib.Path("/x"))
    (event,) = EventReader(tmp_path / "events.jsonl").new()
    assert (event["rollout"], event["loss"], event["path"]) == (3, 0.5, "/x")


def test_a_file_that_was_replaced_or_cut_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    path.write_text("a\nb\n")
    assert list(tail.lines()) == [b"a", b"b"]
    path.write_text("a\nb\nc\n")  # the same, written whole again
    assert list(tail.lines()) == [b"c"]
    for other in ("x\n", "y\nz\nand more of it\n"):
        path.rename(tmp_path / "rotated")
        path.write_text(other)
        assert list(tail.lines()) == other.encode().splitlines()


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n")
    tail = Tail(path, start=100)
    with path.open("ab") as file:
        file.write(b"new\nhalf")
    assert list(tail.lines()) == [b"new"]
    monkeypatch.setattr(events, "CHUNK", 8)
    with path.open("ab") as file:
        file.write(b" a line\nb\nc\n" + b"long" * 10 + b"\nend\n")
    found = list(tail.lines())
    assert found[0] == b"half a line" or b"".join(found[:2]) == b"half a line"
    assert b"".join(found) == b"half a linebc" + b"long" * 10 + b"end"
    assert found[-1] == b"end"


def test_the_seconds_of_a_trial_are_a_number_and_those_of_a_rollout_go_by_phase():
    def seconds(kind, told):
        return parse(json.dumps({"time": 1, "kind": kind, "seconds": told}).encode()).get("seconds")

    assert [seconds("sandbox", 3), seconds("rollout", {"train": 3})] == [3, {"train": 3}]
    assert [seconds("sandbox", {}), seconds("rollout", 3)] == [None, None]
