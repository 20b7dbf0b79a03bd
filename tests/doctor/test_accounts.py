"""A key that a service does not take is found before a run, and no key is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from doctor.node_facts import settings_of
from pydantic import SecretStr

from recipe.doctor import checks
from recipe.doctor.accounts import hub_token, sandbox_account, wandb_key
from recipe.doctor.results import UnaskedError
from recipe.pins import load_pins

KEY = "dtn_0123456789abcdef"
ROOM = {"totalCpuQuota": 200, "currentCpuUsage": 20, "totalMemoryQuota": 400, "currentMemoryUsage": 0}
ROOM |= {"totalDiskQuota": 2000, "currentDiskUsage": 0, "maxCpuPerSandbox": 4, "maxMemoryPerSandbox": 8}
ROOM |= {"maxDiskPerSandbox": None}


class Service(BaseHTTPRequestHandler):
    """Daytona, for whoever has KEY, and the part of Hugging Face that knows tokens."""

    regions: ClassVar[list[dict[str, Any]]] = [ROOM]

    def do_GET(self) -> None:
        answers = {
            "/api/sandbox": [],
            "/api/api-keys/current": {"organizationId": "o"},
            "/api/organizations/o/usage": {"regionUsage": self.regions},
            "/api/whoami-v2": {"name": "somebody", "type": "user"},
        }
        allowed = self.headers["Authorization"] == f"Bearer {KEY}"
        found = answers.get(self.path.partition("?")[0])
        self.send_response(401 if not allowed else 404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service(monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def daytona(service) -> str:
    return f"{service}/api"


def test_a_key_that_daytona_takes_is_fine(daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    assert list(sandbox_account(settings_of(f"DAYTONA_API_URL={daytona}"))) == []


@pytest.mark.parametrize("key", ["dtn_another"])
def test_a_key_that_daytona_refuses_is_found_and_not_shown(daytona, monkeypatch, key):
    monkeypatch.setenv("DAYTONA_API_KEY", key)
    (finding,) = sandbox_account(settings_of(f"DAYTONA_API_URL={daytona}"))
    assert "Daytona does not answer" in str(finding)
    assert f"{daytona}/sandbox (DAYTONA_API_KEY environment)" in str(finding)
    assert key not in str(finding)


def test_an_answer_that_is_a_refusal_is_told(daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_another")
    (finding,) = sandbox_account(settings_of(f"DAYTONA_API_URL={daytona}"))
    assert finding.facts["found"] == "401 Unauthorized"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/api", "http://[/"])
def test_a_daytona_that_can_not_be_reached_is_found(monkeypatch, url):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    (finding,) = sandbox_account(settings_of(f"DAYTONA_API_URL={url}"))
    assert finding.facts["found"]


def verdict(name, *words):
    (result,) = checks.look(settings_of(*words), [name])
    return result.verdict, result.found


def test_what_can_not_be_asked_is_skipped_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("HARBOR_HOME", str(tmp_path))
    assert verdict("sandbox account", "SANDBOX_BACKEND=e2b") == ("skip", "only Harbor's own client can ask")
    assert verdict("sandbox account") == ("skip", "there is no DAYTONA_API_KEY")
    for backend in ("docker", "local"):
        with pytest.raises(UnaskedError, match=f"the backend {backend} has no account"):
            list(sandbox_account(SimpleNamespace(sandbox_backend=backend)))
    assert verdict("W&B key") == ("skip", "there is no WANDB_API_KEY")
    told, reason = verdict("sandbox account", "SANDBOX_BACKEND=modal")
    assert (told, reason.endswith("make harbor")) == ("skip", True)
    assert verdict("HF token")[0] == "skip"


@pytest.mark.parametrize("taken", [True, False])
def test_modal_is_asked_by_its_client_in_the_pinned_harbors_environment(tmp_path, monkeypatch, taken):
    home = tmp_path / load_pins().recipes["camel"].sources["harbor"].rev
    python = home / "environment/bin/python"
    python.parent.mkdir(parents=True)
    (home / "installed.json").touch()
    refusal = "" if taken else "echo 'AuthError: Token missing' >&2; exit 1"
    python.write_text(f'#!/bin/sh\necho "$MODAL_TOKEN_ID $3" > {tmp_path}/asked\n{refusal}\n')
    python.chmod(0o755)
    for name, value in {"HARBOR_HOME": tmp_path, "MODAL_TOKEN_ID": "ak", "MODAL_TOKEN_SECRET": "as"}.items():
        monkeypatch.setenv(name, str(value))
    result = verdict("sandbox account", "SANDBOX_BACKEND=modal")
    assert (tmp_path / "asked").read_text() == "ak check\n"
    assert result[0] == ("ok" if taken else "FAIL")
    assert taken or "AuthError: Token missing" in result[1]


@pytest.mark.parametrize(("token", "expected"), [(KEY, "ok"), ("hf_another", "FAIL")])
def test_a_token_that_hugging_face_takes_is_fine_and_another_is_found_and_not_shown(
    service, monkeypatch, token, expected
):
    monkeypatch.setenv("HF_ENDPOINT", service)
    monkeypatch.setenv("HF_TOKEN", token)
    found = verdict("HF token")
    assert found[0] == expected
    assert token not in found[1]


def test_a_hugging_face_that_can_not_be_reached_refuses_no_start(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_TOKEN", KEY)
    told, reason = verdict("HF token")
    assert (told, reason.startswith("Hugging Face does not answer: ")) == ("skip", True)


def test_a_token_that_no_header_can_hold_is_found_and_not_shown(service, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", service)
    for token in ("hf_SECRET ", "hf_SECRET\n", "hf_SECRETé"):
        settings = SimpleNamespace(hf_token=SecretStr(token), source=lambda _name: "test")
        (finding,) = hub_token(settings)
        assert finding.facts["found"]
        assert "SECRET" not in str(finding)


@pytest.fixture
def tasks(tmp_path) -> Path:
    """Two tasks: one says what it needs, one does not."""
    for name, toml in {"large": "cpus = 2\nmemory_mb = 4096\nstorage_mb = 10240\n", "plain": ""}.items():
        (tmp_path / name / "tests").mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("Do it.\n")
        (tmp_path / name / "task.toml").write_text(f"[environment]\n{toml}")
    return tmp_path


def quota(tasks, daytona, *words):
    return verdict("sandbox quota", f"TASKS_DIR={tasks}", f"DAYTONA_API_URL={daytona}", *words)


def test_sandboxes_that_fit_are_fine_and_too_many_or_too_large_ones_are_found(tasks, daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    assert quota(tasks, daytona, "AGENT_MAX_CONCURRENT=120")[0] == "ok"
    (result,) = checks.look(
        settings_of(f"TASKS_DIR={tasks}", f"DAYTONA_API_URL={daytona}", "AGENT_MAX_CONCURRENT=160"),
        ["sandbox quota"],
    )
    assert result.verdict == "FAIL"
    assert result.expected.startswith("160 sandboxes ask for 240 CPUs, 400 GiB of memory, 1040 GiB of disk")
    assert "at most 180 CPUs, 400 GiB of memory, 2000 GiB of disk left" in result.found
    assert result.run.startswith("AGENT_MAX_CONCURRENT=120, or ")
    assert quota(tasks, daytona, "AGENT_MAX_CONCURRENT=1", "SANDBOX_CPUS=8")[0] == "FAIL"
    assert quota(tasks, daytona, "AGENT_MAX_CONCURRENT=160", "SANDBOX_CPUS=1")[0] == "ok"


def test_one_region_with_room_is_enough(tasks, daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    full = dict.fromkeys(ROOM, 0)
    monkeypatch.setattr(Service, "regions", [full, ROOM])
    assert quota(tasks, daytona, "AGENT_MAX_CONCURRENT=8")[0] == "ok"
    monkeypatch.setattr(Service, "regions", [full])
    assert quota(tasks, daytona, "AGENT_MAX_CONCURRENT=8")[0] == "FAIL"


@pytest.mark.parametrize("words", [["SANDBOX_BACKEND=gke"], ["SANDBOX_BACKEND=modal"], []])
def test_where_the_limits_are_not_told_the_sum_is_shown(tasks, daytona, words):
    told, reason = quota(tasks, daytona, "AGENT_MAX_CONCURRENT=10", *words)
    assert told == "skip"
    assert "does not tell its limits here: 10 sandboxes ask for 1" in reason


def test_tasks_that_can_not_be_read_are_said_by_another_check(tmp_path, daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    assert quota(tmp_path / "none", daytona) == ("skip", "the tasks can't be read")


@pytest.mark.parametrize(
    ("key", "fits"),
    [
        ("0" * 40, True),
        ("local-" + "a" * 40, True),
        ("a" * 86, True),
        ("0" * 39, False),
        ('"' + "0" * 40, False),
    ],
)
def test_the_form_of_a_key_of_weights_and_biases_is_checked_and_the_key_not_shown(monkeypatch, key, fits):
    monkeypatch.setenv("WANDB_API_KEY", key)
    findings = list(wandb_key(settings_of()))
    assert (findings == []) == fits
    assert not any(key in str(finding) for finding in findings)
