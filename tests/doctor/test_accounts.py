"""A key that a service does not take is found before a run, and no key is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from doctor.node_facts import settings_of

from recipe.doctor.accounts import sandbox_account, wandb_key

KEY = "dtn_0123456789abcdef"


class Daytona(BaseHTTPRequestHandler):
    """Lists no sandboxes to whoever has KEY."""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {KEY}" and self.path == "/api/sandbox"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def daytona(monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Daytona) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api"
        server.shutdown()


def test_a_key_that_daytona_takes_is_fine(daytona, monkeypatch):
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    assert list(sandbox_account(settings_of(f"DAYTONA_API_URL={daytona}"))) == []


@pytest.mark.parametrize("key", ["dtn_another", "gänsefüßchen"])
def test_a_key_that_daytona_refuses_is_found_and_not_shown(daytona, monkeypatch, key):
    monkeypatch.setenv("DAYTONA_API_KEY", key)
    (finding,) = sandbox_account(settings_of(f"DAYTONA_API_URL={daytona}"))
    assert "Daytona does not list its sandboxes" in str(finding)
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


@pytest.mark.parametrize("words", [["SANDBOX_BACKEND=modal"], []])
def test_without_a_key_nobody_is_asked(words):
    assert list(sandbox_account(settings_of(*words))) == []


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


def test_a_run_without_weights_and_biases_needs_no_key():
    assert list(wandb_key(settings_of())) == []
