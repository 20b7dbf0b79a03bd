"""Two hundred rollouts keep nothing but the files that are documented; the model and the agents are faked."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.endurance import endure, grown, sizes_by_shape, unexpected
from benchmarks.faked_run import Stage

KEPT: list[object] = []


def keep_descriptor(_: Stage) -> None:
    KEPT.append(socket.socket())


def keep_thread(_: Stage) -> None:
    event = threading.Event()
    KEPT.append(event)
    threading.Thread(target=event.wait, daemon=True).start()


def keep_task(_: Stage) -> None:
    KEPT.append(asyncio.ensure_future(asyncio.Event().wait()))


def keep_session(stage: Stage) -> None:
    stage.store.open()


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    for one in KEPT:
        if isinstance(one, socket.socket):
            one.close()
        elif isinstance(one, threading.Event):
            one.set()
    KEPT.clear()


def test_200_rollouts_keep_nothing_but_the_documented_files(tmp_path: Path) -> None:
    held = endure(tmp_path / "run", 200)
    assert grown(held) == dict.fromkeys(grown(held), 0.0)
    assert unexpected(sizes_by_shape(tmp_path / "run"), 200) == []


@pytest.mark.parametrize(
    ("counted", "leak"),
    [
        ("descriptors", keep_descriptor),
        ("threads", keep_thread),
        ("tasks", keep_task),
        ("sessions", keep_session),
    ],
)
def test_what_each_rollout_keeps_is_seen(
    counted: str, leak: Callable[[Stage], object], tmp_path: Path
) -> None:
    found = grown(endure(tmp_path / "run", 20, leak))
    assert found[counted] == pytest.approx(100)
    assert all(by < 100 for name, by in found.items() if name != counted)


def test_a_file_that_each_rollout_leaves_is_seen(tmp_path: Path) -> None:
    endure(tmp_path / "run", 4, lambda stage: (stage.run_dir / f"left_{stage.rollout}").touch())
    assert unexpected(sizes_by_shape(tmp_path / "run"), 4) == ["left_#: 4 files, expected 0"]
