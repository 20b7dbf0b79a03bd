"""No command tells a secret, wherever it was given: planted ones are looked for in all that is printed or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal.job import PLANTED

PROJECT = Path(__file__).parents[2]
CLUSTER = ["HEAD_IP=127.0.0.1", f"TASKS_DIR={PROJECT}/recipe/tasks/smoke"]
GKE = ["GKE_PROJECT_ID=my-project", "GKE_REGION=us-central1", "GKE_CLUSTER_NAME=sandboxes"]
COMMANDS = [
    ["--help"],
    ["settings"],
    ["smoke", "--dry-run"],
    ["smoke", "--dry-run", "--json"],
    ["smoke", "NUM_ROLLOUT=none"],
    ["train-camel", "--dry-run", *CLUSTER],
    ["train-camel", "--dry-run", "SANDBOX_BACKEND=modal", *CLUSTER],
    ["train-terminus2", "--dry-run", "--json", "SANDBOX_BACKEND=daytona", *CLUSTER],
    ["train-camel", "WANDB_API_KEY=", "LR=1", *CLUSTER],
    ["doctor", "--no-cluster", "SANDBOX_BACKEND=daytona", "DAYTONA_API_URL=http://127.0.0.1:9", *CLUSTER],
    ["doctor", "--no-cluster", "--json", "SANDBOX_BACKEND=modal", *CLUSTER],
    ["plan", *CLUSTER],
    ["report-env", *CLUSTER],
    ["contract", "MILES_DIR=missing"],
    ["prepare", "--dry-run"],
    ["pins-check", "--online", "off"],
    ["export", "missing", "out"],
    ["attach", "missing"],
    ["status", "missing"],
    ["sandboxes", "list", "--all", "--backend", "local"],
    ["gke", "create", "--dry-run", *GKE],
    ["container", "start", "--recipe", "camel", "--model-root", "/m", "--data-dir", "/d"],
]


@pytest.mark.parametrize("way", ["environment", "file"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_tells_a_secret(recipe, command, way, tmp_path, monkeypatch, caplog):
    lines = "".join(f"{name}={value}\n" for name, value in PLANTED.items())
    (tmp_path / ".env").write_text(lines if way == "file" else "")
    for name, value in (PLANTED if way == "environment" else {}).items():
        monkeypatch.setenv(name, value)
    # For the programs that a command starts.
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    _, told = recipe(*command)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".env"]
    assert "PLANTED" not in told + caplog.text
    assert not any(b"PLANTED" in content for content in written)
    assert "Traceback" not in told
    assert told
