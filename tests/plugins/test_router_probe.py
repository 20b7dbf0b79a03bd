"""A router that drops what a rollout needs is told from one that passes it on, by what arrives behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from recipe.plugins import head

# Takes the options of the router, and posts on what `kept` keeps of a request.
ROUTER = """
import argparse, json, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

parser = argparse.ArgumentParser()
for name in ("host", "port", "prometheus-port", "log-level", "worker-urls"):
    parser.add_argument("--" + name)
options = parser.parse_args()

def kept(request):
    {kept}

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(kept(request)).encode()
        urllib.request.urlopen(urllib.request.Request(options.worker_urls + self.path, body))
        self.send_response(200)
        self.end_headers()

{run}
"""
SERVE = "HTTPServer((options.host, int(options.port)), Handler).serve_forever()"


@pytest.fixture
def probe(tmp_path, monkeypatch) -> Callable[..., dict]:
    """`probe(kept)`: the answer about such a router."""
    package = tmp_path / "router_of_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def probe(kept: str = "return request", run: str = SERVE) -> dict:
        (package / "launch.py").write_text(ROUTER.format(kept=kept, run=run))
        return head.router("router_of_this_test.launch")

    return probe


def test_a_router_that_passes_everything_on_is_fine(probe):
    assert probe() == {"dropped": []}


def test_what_a_router_drops_or_changes_is_named(probe):
    kept = "request['input_ids'] = [1]; return {k: v for k, v in request.items() if k != 'return_routed_experts'}"
    assert probe(kept) == {"dropped": ["input_ids", "return_routed_experts"]}


def test_a_router_that_ends_is_an_error_with_its_last_words(probe):
    assert probe(run="raise SystemExit('no such option')")["error"].endswith("no such option")


def test_a_router_that_never_listens_is_given_up(probe, monkeypatch):
    monkeypatch.setattr(head, "ROUTER_SECONDS", 0.5)
    assert probe(run="import time; time.sleep(60)")["error"].startswith("no request arrived within 0.5 s")


def test_without_a_router_the_question_is_skipped():
    assert head.router("no_such_router.launch") == {"skipped": "this Python has no no_such_router"}
