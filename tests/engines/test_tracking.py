"""Weights & Biases and TensorBoard get a rollout under Miles' names; offline means offline; the key is nowhere."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe.job import tracking_environment
from recipe.process import LOOPBACK, free_port
from recipe.resolve import load
from recipe.settings import Settings

KEY = "planted" + "0123456789abcdef" * 3
EVENT = {
    "rollout": 2,
    "metrics": {
        "reward_mean": 0.5,
        "kl": 0.25,
        "groups_dropped": {"flushed": 3},
        "valid_step": True,
        "audit/exact": 4,
    },
    "seconds": {"generate": 8.0},
    "trials": {"agent/turns_mean": 3.0},
}
NAMED = {
    "rollout/raw_reward": 0.5,
    "train/kl_loss": 0.25,
    "rollout/dynamic_filter/drop_flushed": 3.0,
    "recipe/valid_step": 1.0,
    "audit/exact": 4.0,
    "perf/rollout_time": 8.0,
    "agent/turns_mean": 3.0,
}
# In a process of its own, as the driver: wandb keeps a service and much state.
LOG = """
import json, sys
from pathlib import Path
from recipe.engines.local import tracking
from recipe.settings import Settings
tracking.START_SECONDS = 5.0
folder, settings, event = Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])), json.loads(sys.argv[3])
tracked = tracking.Tracking(settings, folder)
tracked.log(event)
tracked.close(failed=False)
"""


def settings_of(folder: Path, **given: str) -> Settings:
    return load(
        "smoke",
        [f"RUNS_ROOT={folder}", "RUN_NAME=run", *(f"{name}={value}" for name, value in given.items())],
    )


def track(folder: Path, settings: Settings, **env: str) -> subprocess.CompletedProcess[str]:
    """As the driver does: settings without secrets, and the job's environment."""
    argv = [sys.executable, "-c", LOG, str(folder), json.dumps(settings.public()), json.dumps(EVENT)]
    own = (
        {"PATH": os.environ["PATH"]}
        | tracking_environment(settings, folder)
        | {"HOME": str(folder / "home"), "TMPDIR": str(folder)}
        | env
    )
    return subprocess.run(
        argv,
        env=own,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """What an offline run's file holds, as wandb itself reads it."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    store, rows = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append(
                {
                    ".".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
            )
    return rows


@pytest.fixture
def listener() -> Any:
    """What every proxy variable leads to; that nobody came there is seen at its queue."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.setblocking(False)
        yield listening


def test_offline_the_files_have_the_rollout_and_nobody_is_called(tmp_path, listener):
    url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    reached = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL"), url)
    done = track(tmp_path, settings_of(tmp_path, WANDB_MODE="offline"), **reached)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (row,) = wandb_rows(tmp_path)
    assert {name: value for name, value in row.items() if name in NAMED} == NAMED
    assert (row["rollout/step"], row["train/step"]) == (2, 2)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_online_without_a_network_the_start_fails_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    settings = settings_of(tmp_path)
    netrc = Path(tracking_environment(settings, tmp_path)["NETRC"])
    netrc.parent.mkdir()
    netrc.write_text(f"machine {LOOPBACK}\n  login user\n  password {KEY}\n")
    done = track(tmp_path, settings, WANDB_BASE_URL=f"http://{LOOPBACK}:{free_port()}")
    assert done.returncode == 1
    assert "Weights & Biases did not take the run" in done.stderr
    assert "WANDB_MODE=offline" in done.stderr
    netrc.unlink()
    left = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in done.stdout + done.stderr + left


def test_tensorboards_files_have_the_rollout(tmp_path):
    done = track(tmp_path, settings_of(tmp_path, TENSORBOARD="1"))
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "tensorboard").iterdir()
    written = file.read_bytes()
    assert [name for name in NAMED if name.encode() not in written] == []


def test_without_being_asked_for_neither_is_imported(tmp_path):
    code = LOG + "\nassert not {'wandb', 'tensorboardX'} & sys.modules.keys()\n"
    public = json.dumps(settings_of(tmp_path).public())
    argv = [sys.executable, "-c", code, str(tmp_path), public, json.dumps(EVENT)]
    subprocess.run(argv, cwd=Path(__file__).parents[2], check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
