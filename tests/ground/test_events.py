"""The event file: readable while it is written, and after a writer was killed."""

from __future__ import annotations

import pathlib

import numpy as np

from recipe import events
from recipe.events import EventLog, EventReader, Tail


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
    path.write_bytes(b'{"kind": "end", "sta')
    assert list(reader.new()) == []
    with path.open("ab") as file:
        file.write(b'tus": "failed"}\n')
    assert [event["status"] for event in reader.new()] == ["failed"]


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b", "cut\n[1]\n{"no": "kind"}\n\xff\xfe\n{"kind": "c"}\n')
    assert [event["kind"] for event in EventReader(path).new()] == ["a", "c"]


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
