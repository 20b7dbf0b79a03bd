"""The text for a bug report tells what is needed, and nothing that names a secret, a person or a machine."""

from __future__ import annotations

import json
import os
import pwd
import socket
from pathlib import Path

import pytest

from recipe.doctor import report_env
from recipe.errors import BadInputError
from recipe.resolve import load_sources

SECRETS = {
    "WANDB_API_KEY": "planted-wandb-1f3",
    "DAYTONA_API_KEY": "planted-daytona-2e4",
    "MODAL_TOKEN_SECRET": "planted-modal-3d5",
}


@pytest.fixture
def machine(empty_folder, monkeypatch):
    """A named host, a home folder below the working directory, secrets wherever a user may have them."""
    home = empty_folder / "home" / "somebody"
    home.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host-7.example.org")
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: pwd.struct_passwd(("somebody", "x", uid, uid, "", str(home), ""))
    )
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["WANDB_API_KEY"])
    monkeypatch.setenv("HF_TOKEN", "planted-hf-4c6")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", SECRETS["MODAL_TOKEN_SECRET"])
    (empty_folder / ".env").write_text(f"DAYTONA_API_KEY={SECRETS['DAYTONA_API_KEY']}\nMODAL_TOKEN_ID=\n")
    run = home / "runs" / "last"
    run.mkdir(parents=True)
    facts = {
        "started": "2026-01-02",
        "exit_code": 1,
        "error": f"ssh somebody@secret-host-7: {SECRETS['WANDB_API_KEY']} refused, see {home}/log",
        "settings": {
            "engine": {"value": "local", "source": "preset of make smoke"},
            "lr": {"value": 3e-5, "source": "argument"},
            "wandb_entity": {"value": "last-team", "source": ".env"},
        },
    }
    (run / "run_manifest.json").write_text(json.dumps(facts))
    return home


def test_what_is_planted_is_not_in_the_text(machine):
    words = [
        f"RUNS_ROOT={machine}/runs",
        "HEAD_IP=head-of-somebody.example.org",
        "WANDB_ENTITY=our-team",
        "EXTRA_ARGS=--some-api-key planted-extra-5b7 --hub https://me:planted-url-6a8@hub.example.org/x",
    ]
    shared = report_env.text(load_sources(words))
    for planted in (
        "planted-",
        "secret-host",
        "somebody",
        str(machine),
        "our-team",
        "last-team",
        "head-of",
    ):
        assert planted not in shared, planted
    assert "<user>@<host>: (secret) refused, see ~/log" in shared
    assert "RUNS_ROOT=~/runs" in shared


def test_the_text_tells_project_machine_settings_pins_and_the_last_run(machine):
    shared = report_env.text(load_sources([f"RUNS_ROOT={machine}/runs", "LR=2e-5"]))
    for part in (
        "commit: ",
        "ray: ",
        "kernel: ",
        "cgroup: ",
        "Python: 3.12",
        "MemTotal",
        "disk of RUNS_ROOT",
        "GPUs: ",
    ):
        assert part in shared, part
    assert any(line.split() == ["LR=2e-05", "argument"] for line in shared.splitlines())
    assert "Inkling-Small@" in shared
    assert "exit_code: 1" in shared
    given, _, last = shared.partition("## Last run")
    assert ["LR=3e-05", "argument"] in [line.split() for line in last.splitlines()]
    assert ["WANDB_ENTITY=<hidden>", ".env"] in [line.split() for line in last.splitlines()]
    assert "ENGINE=local" in last
    assert "NUM_ROLLOUT=" not in given  # a default


def test_the_gpus_are_those_of_nvidia_smi(machine, monkeypatch):
    program = machine / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")
    assert "GPUs: NVIDIA H200, 143771 MiB, 570.1" in report_env.text(load_sources())


@pytest.mark.parametrize("content", ["{", "\xff", "null", "[]", "{}", "5", '{"settings": 5}', "[" * 100_000])
def test_a_manifest_that_was_cut_is_no_reason_to_fail(machine, content):
    (machine / "runs" / "last" / "run_manifest.json").write_bytes(content.encode("latin-1"))
    assert "no manifest that can be read" in report_env.text(load_sources([f"RUNS_ROOT={machine}/runs"]))


def test_without_runs_there_is_no_last_run(machine):
    assert "## Last run\n```\nnone\n```" in report_env.text(load_sources([f"RUNS_ROOT={machine}/none"]))


def test_a_manifest_that_is_gone_is_no_reason_to_fail(machine):
    manifest = machine / "runs" / "last" / "run_manifest.json"
    manifest.unlink()
    manifest.symlink_to("gone")
    assert "## Last run\n```\nno" in report_env.text(load_sources([f"RUNS_ROOT={machine}/runs"]))


@pytest.mark.parametrize("word", ["LR=planted-9", "planted-9", "NO_SUCH=planted-9", "LR="])
def test_settings_that_cannot_be_resolved_are_told_without_their_value(machine, monkeypatch, word):
    monkeypatch.setenv("NUM_ROLLOUT", "planted-5")
    manifest = machine / "runs" / "last" / "run_manifest.json"
    monkeypatch.chdir(machine)
    (machine / ".env").write_text(f"DAYTONA_API_KEY={SECRETS['DAYTONA_API_KEY']}\n")
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"error": " ".join(SECRETS.values())}))
    with pytest.raises(BadInputError) as refused:
        load_sources([word])
    shared = report_env.text(refused.value)
    assert "planted" not in shared
    for part in ("kernel: ", "Inkling-Small@", "exit_code: 1", "error: (secret) (secret) (secret)"):
        assert part in shared, part
    assert any(problem in shared for problem in ("has a bad value", "is not a setting"))


def test_an_env_file_that_cannot_be_read_leaves_no_key_of_the_environment_in_the_text(machine):
    Path(".env").write_text("NO_SUCH=1\n")
    with pytest.raises(BadInputError) as refused:
        load_sources()
    Path("runs").symlink_to(machine / "runs")
    shared = report_env.text(refused.value)
    assert "planted" not in shared
    assert "(secret) refused" in shared


def test_the_query_of_an_address_is_hidden(machine):
    shared = report_env.text(load_sources(["EXTRA_ARGS=--hub https://hub.example.org/x?sig=planted#planted"]))
    assert "https://hub.example.org/x?(hidden)" in shared
    assert "planted" not in shared
