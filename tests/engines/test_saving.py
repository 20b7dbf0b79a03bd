"""When the local engine saves: at its interval, at the end, and when the launcher asks for it."""

from __future__ import annotations

from types import SimpleNamespace

from recipe.engines.local.driver import Driver
from recipe.job import save_and_stop


def saves(folder, rollout: int) -> bool:
    settings = SimpleNamespace(num_rollout=5, save_interval=2)
    return Driver._saves(SimpleNamespace(_settings=settings, _run_dir=folder), rollout)


def test_the_interval_the_last_rollout_and_the_launcher_decide(tmp_path):
    assert [saves(tmp_path, rollout) for rollout in range(5)] == [False, True, False, True, True]
    save_and_stop(tmp_path).parent.mkdir()
    save_and_stop(tmp_path).touch()
    assert saves(tmp_path, 0)
