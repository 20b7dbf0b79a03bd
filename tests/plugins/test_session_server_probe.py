"""Two session servers are started as Miles' manager starts them, timed, and ended whatever they do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from recipe.plugins import head

# Stands in for the module of Miles: imports slowly, then listens where it is told to.
SERVER = """
import socket, time
end = time.process_time() + 0.3
while time.process_time() < end:
    pass

def run_session_server(args, url):
    assert (args.hf_checkpoint, args.tito_model, args.use_session_server) == ("/model", "inkling", True)
    {how}
"""
LISTEN = """listener = socket.create_server((args.session_server_ip, args.session_server_port))
    time.sleep(60)"""


@pytest.fixture
def probe(tmp_path):
    """`probe(how)`: what is told of servers that do this."""

    def probe(how: str = LISTEN) -> dict:
        module = tmp_path / "miles" / "rollout" / "session" / "server.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(SERVER.format(how=how))
        return head.session_servers(str(tmp_path), "/nowhere", "/model")

    return probe


def test_the_time_of_two_and_the_cpu_time_of_each_are_told(probe):
    told = probe()
    assert told["seconds"] >= told["cpu_seconds"] / told["cores"]
    assert 0.3 <= told["cpu_seconds"] < 5


def test_a_server_that_ends_is_an_error_with_its_last_words(probe):
    assert probe("raise SystemExit('no tokenizer')")["error"].endswith("no tokenizer")


def test_servers_that_never_listen_are_given_up_and_ended(probe, monkeypatch):
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        head.subprocess, "Popen", lambda *a, **k: started.append(start(*a, **k)) or started[-1]
    )
    monkeypatch.setattr(head, "SESSION_SECONDS", 1.5)
    assert probe("time.sleep(60)")["error"].startswith("not both listened within 1.5 s")
    assert [process.returncode for process in started] == [-9, -9]


def test_without_miles_the_question_is_skipped(tmp_path):
    assert "skipped" in head.session_servers(str(tmp_path), "/nowhere", str(Path("/model")))
