"""Answers as the agent server of the pinned Harbor does, without trials.

It behaves as `standin.json` in the tasks folder says, and writes what it was started with and what it was asked,
a JSON object a line, to `standin.jsonl` in the trials folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for option in ("tasks-dir", "trials-dir", "host"):
    parser.add_argument(f"--{option}", required=True)
where = parser.add_mutually_exclusive_group(required=True)
for option in ("environment", "environment-config"):
    where.add_argument(f"--{option}")
for option in ("port", "max-concurrent"):
    parser.add_argument(f"--{option}", required=True, type=int)
parser.add_argument("--agent-timeout-multiplier", required=True, type=float)
parser.add_argument("--no-access-log", action="store_true")
asked = parser.parse_args()
file = Path(asked.tasks_dir) / "standin.json"
behaviour = json.loads(file.read_text()) if file.is_file() else {}


def record(**facts):
    with (Path(asked.trials_dir) / "standin.jsonl").open("a") as lines:
        lines.write(json.dumps(facts) + "\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {"ok": True})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        record(path=self.path, body=body)
        if self.path == "/run":
            reply = {
                "reward": 1.0,
                "exit_status": "Submitted",
                "eval_report": {},
                "agent_metrics": {"turns": 1},
            }
            self.answer(200, reply)
            return
        if behaviour.get("flush") == "hang":
            time.sleep(600)
        self.answer(500 if behaviour.get("flush") == "fail" else 200, {})

    def answer(self, status, data):
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


record(argv=sys.argv, environment=dict(os.environ))
print("the stand-in starts", flush=True)
if "fail" in behaviour:
    sys.exit("the sandbox backend has no room")
if "hang" in behaviour:
    time.sleep(600)
if "ignore_sigterm" in behaviour:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in behaviour:
    subprocess.Popen(behaviour["child"])
ThreadingHTTPServer((asked.host, asked.port), Handler).serve_forever()
