"""A Ray that is stopped in its first moments leaves nothing, and gets none of the user's secrets."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from recipe.run.ray_cluster import RayCluster


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.5])
def test_a_ray_that_is_stopped_early_leaves_no_folder(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ray = RayCluster.start(tmp_path / "log")
    time.sleep(seconds)
    ray.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_ray_writes_into_its_own_folder_and_knows_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy")
    ray = RayCluster.start(tmp_path / "log")
    try:
        while b"RAY_AUTH_MODE" not in (found := Path(f"/proc/{ray.process.leader.pid}/environ").read_bytes()):
            assert ray.process.alive
    finally:
        ray.stop()
    assert f"TMPDIR={ray.folder}\0".encode() in found
    assert b"HTTPS_PROXY" not in found
