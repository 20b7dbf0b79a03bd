"""What answers in the dashboard's place is named; a Ray that wants a token is told it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from recipe.errors import BadInputError
from recipe.process import LOOPBACK, free_port
from recipe.resolve import load
from recipe.run import dashboard
from recipe.settings import Settings


def settings(port: int, head: str = LOOPBACK) -> Settings:
    return load("train-camel", [f"HEAD_IP={head}", f"RAY_DASHBOARD_PORT={port}", "TASKS_DIR=t"])


@contextmanager
def answering(status: int, body: bytes, token: str = "") -> Iterator[int]:
    """A server's port; to `token` it answers as Ray does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = token and self.headers.get("Authorization") == f"Bearer {token}"
            said = b'{"ray_version": "2.60.0"}' if known else body
            self.send_response((200 if known else status) if self.path == "/api/version" else 404)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_ray_is_found_whatever_proxy_the_user_has(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:{free_port()}")
    with answering(200, b'{"ray_version": "2.60.0"}') as port:
        ray = dashboard.find_ray(settings(port))
    assert (ray.url, ray.patience) == (f"http://{LOOPBACK}:{port}", dashboard.PATIENCE_SECONDS)


@pytest.mark.parametrize("status", [401, 403])
def test_a_ray_that_wants_a_token_is_told_it_or_refuses_the_start(monkeypatch, status):
    with answering(status, b"Unauthorized", token="secret-token") as port:
        with pytest.raises(BadInputError, match="asks for a token") as refused:
            dashboard.find_ray(settings(port))
        assert "RAY_AUTH_TOKEN" in str(refused.value)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret-token")
        ray = dashboard.find_ray(settings(port))
    assert ray.headers == {"Authorization": "Bearer secret-token"}
    assert "secret" not in repr(ray)


@pytest.mark.parametrize(
    ("status", "body"), [(404, b""), (500, b""), (200, b"<html>"), (200, b"{}"), (200, b"[1]"), (200, b"3")]
)
def test_another_server_is_told_with_the_port_that_is_often_meant(status, body):
    with (
        answering(status, body) as port,
        pytest.raises(BadInputError, match="is not Ray's dashboard") as raised,
    ):
        dashboard.find_ray(settings(port))
    assert "6379" in raised.value.facts["expected"]
    assert raised.value.facts["where"] == f"{LOOPBACK}:{port} (HEAD_IP argument)"


def test_a_port_at_which_nobody_listens_is_told_with_what_starts_ray():
    port = free_port()
    with pytest.raises(BadInputError, match="there is no Ray") as raised:
        dashboard.find_ray(settings(port))
    assert f"--dashboard-port {port}" in raised.value.facts["run"]


def test_a_dashboard_on_loopback_alone_is_told():
    with (
        answering(200, b'{"ray_version": "2.60.0"}') as port,
        pytest.raises(BadInputError, match="listens on loopback only"),
    ):
        dashboard.find_ray(settings(port, head="127.0.0.2"))


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(dashboard, "ANSWER_SECONDS", 0.2)
    with socket.create_server((LOOPBACK, 0)) as silent, pytest.raises(BadInputError, match="does not answer"):
        dashboard.find_ray(settings(silent.getsockname()[1]))
