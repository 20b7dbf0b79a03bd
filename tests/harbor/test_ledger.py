"""Every sandbox of a run is told: asked for, gone, or left; from real trials' folders and from broken ones."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.errors import RecipeError
from recipe.harbor.ledger import Ledger, refuse_orphans
from recipe.harbor.trials import TrialRequest, run_trial

STARTED, ENDED = "2026-01-01T00:00:10Z", "2026-01-01T00:00:52.500000Z"


def make_trial(trials: Path, name: str, task: str = "a-task") -> Path:
    folder = trials / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"task": {"path": f"/tasks/{task}"}, "trial_name": name}))
    return folder


def end(folder: Path, **facts: Any) -> None:
    result = {"environment_setup": {"started_at": STARTED, "finished_at": STARTED}, "finished_at": ENDED}
    (folder / "result.json").write_text(json.dumps(result | facts))


def states(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["trial_name"], event["state"]) for event in events]


def test_a_real_trials_sandbox_is_created_and_deleted_with_its_seconds(
    make_task: Callable[..., Path], request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(make_task("greet"), sleep=0.3)
    ledger = Ledger(request.trials_dir, "local")
    assert ledger.tick() == []
    told = []

    async def work() -> None:
        trial = asyncio.create_task(run_trial(request))
        while not told and not trial.done():
            told.extend(ledger.tick())
            await asyncio.sleep(0.01)
        assert not list(request.trials_dir.glob("*/result.json"))
        await trial

    asyncio.run(work())
    (created,) = told
    (deleted,) = ledger.tick()
    assert (created["state"], deleted["state"]) == ("created", "deleted")
    assert created["task"] == deleted["task"] == "greet"
    assert created["trial_name"] == deleted["trial_name"] == created["sandbox"]
    assert created["backend"] == "local"
    assert abs(created["time"] - time.time()) < 60
    assert 0.3 < deleted["seconds"] < 60
    assert ledger.close() == []


def test_a_trial_that_never_ends_is_an_orphan_and_ends_the_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "daytona")
    for number in range(7):
        make_trial(tmp_path, f"trial-{number}")
    end(tmp_path / "trial-0")
    told = ledger.close()
    assert states(told[7:]) == [("trial-0", "deleted"), *((f"trial-{n}", "orphan") for n in order(told))]
    assert all(event["seconds"] >= 0 for event in told if event["state"] == "orphan")
    with pytest.raises(RecipeError, match="may be left") as failed:
        refuse_orphans(told, "one")
    assert failed.value.exit_code == 1
    assert failed.value.facts["found"].startswith("6 without: ")
    assert failed.value.facts["found"].endswith(" and 1 more")
    assert failed.value.facts["run"] == "recipe sandboxes clean --run one --delete"


def order(told: list[dict[str, Any]]) -> list[int]:
    return [int(event["trial_name"][-1]) for event in told[:7] if event["trial_name"] != "trial-0"]


def test_a_run_without_orphans_goes_on(tmp_path: Path) -> None:
    end(make_trial(tmp_path, "one"))
    refuse_orphans(Ledger(tmp_path, "docker").close(), "one")


def test_seconds_are_those_of_the_sandbox_not_of_the_queue(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "gke")
    end(make_trial(tmp_path, "ran"))
    end(make_trial(tmp_path, "never-started"), environment_setup=None)
    end(make_trial(tmp_path, "odd"), finished_at=None)
    ledger.tick()
    seconds = {event["trial_name"]: event["seconds"] for event in ledger.tick()}
    assert seconds["ran"] == 42.5
    assert seconds["never-started"] == 0
    assert 0 <= seconds["odd"] < 60


def test_half_written_files_are_waited_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "modal")
    folder = make_trial(tmp_path, "one")
    whole = (folder / "config.json").read_text()
    (folder / "config.json").write_text(whole[:9])
    assert ledger.tick() == []
    (folder / "config.json").write_text(whole)
    assert states(ledger.tick()) == [("one", "created")]
    (folder / "result.json").write_text('{"environment_setup": ')
    assert ledger.tick() == []
    # Nobody is left who would write the rest.
    assert states(ledger.close()) == [("one", "deleted")]


def test_what_is_no_trial_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "job.log").touch()
    (tmp_path / "empty").mkdir()
    assert Ledger(tmp_path, "daytona").close() == []
    assert Ledger(tmp_path / "none", "daytona").close() == []


def test_a_second_launcher_tells_nothing_twice(tmp_path: Path) -> None:
    first = Ledger(tmp_path, "daytona")
    for name in ("ended", "open"):
        make_trial(tmp_path, name)
    told = first.tick()
    end(tmp_path / "ended")
    told += first.tick()
    second = Ledger(tmp_path, "daytona")
    for event in [{"kind": "phase", "phase": "train"}, *told]:
        assert list(second.take(event)) == []
    assert second.tick() == []
    end(tmp_path / "open")
    assert states(second.tick()) == [("open", "deleted")]


@pytest.mark.parametrize(
    "config",
    [
        b'{"task": "hello"}',
        b'{"task": ["a"]}',
        b"[1]",
        b"5",
        b'{"task": {"path": 5}}',
        b"[" * 100000,
        b"\xff{}",
    ],
)
def test_a_broken_configuration_tells_no_sandbox_and_ends_nothing(tmp_path: Path, config: bytes) -> None:
    (make_trial(tmp_path, "bad") / "config.json").write_bytes(config)
    make_trial(tmp_path, "good")
    ledger = Ledger(tmp_path, "docker")
    assert states(ledger.tick()) == [("good", "created")]
    assert states(ledger.close()) == [("good", "orphan")]


@pytest.mark.parametrize(
    "result",
    [
        b"[]",
        b"5",
        b"[" * 100000,
        b'{"environment_setup": "x", "finished_at": 1}',
        b'{"environment_setup": {"started_at": 5}, "finished_at": "2026-01-01T01:00:00"}',
    ],
)
def test_a_broken_result_is_still_the_end_of_its_sandbox(tmp_path: Path, result: bytes) -> None:
    ledger = Ledger(tmp_path, "docker")
    folder = make_trial(tmp_path, "one")
    ledger.tick()
    (folder / "result.json").write_bytes(result)
    assert states(ledger.tick()) == [("one", "deleted")]
    assert ledger.close() == []


def test_trials_that_are_out_of_reach_do_not_hide_how_a_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    ledger = Ledger(tmp_path, "docker")
    make_trial(tmp_path, "one")
    ledger.tick()
    monkeypatch.setattr(os, "scandir", refuse)
    assert states(ledger.close()) == [("one", "orphan")]


def test_nothing_happens_in_the_future(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "daytona")
    folder, ahead = make_trial(tmp_path, "one"), time.time() + 7200
    os.utime(folder / "config.json", (ahead, ahead))
    told = ledger.tick()
    end(folder, finished_at=None)
    os.utime(folder / "result.json", (ahead, ahead))
    told += ledger.tick()
    assert states(told) == [("one", "created"), ("one", "deleted")]
    assert all(event["time"] <= time.time() for event in told)
    assert told[1]["seconds"] < 60


def test_a_damaged_event_of_an_earlier_launcher_is_passed_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "daytona")
    for event in (
        {"kind": "sandbox"},
        {"kind": "sandbox", "trial_name": "x", "task": "t", "state": "created", "time": "now"},
        {"kind": "sandbox", "trial_name": "x", "state": "created"},
        {},
    ):
        assert list(ledger.take(event)) == []
    assert ledger.close() == []
