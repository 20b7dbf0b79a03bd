"""Whatever the job on one machine listens on is loopback's: agent server, session server and each part of Ray."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from recipe.errors import BadInputError
from recipe.events import EventReader
from recipe.keeper import descendants
from recipe.process import free_port
from recipe.resolve import load
from recipe.rules import check

ROOT = Path(__file__).parents[2]
LISTEN = "0A"  # the kernel's number of the state
# It takes half a minute alone on two cores, and one more where the warm start is built first.
JOB_SECONDS = 400
Address = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The inodes of the sockets that these processes hold."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def listening(table: str, inodes: set[str]) -> set[Address]:
    """What sockets of these inodes listen on, of the rows of /proc/net/tcp or tcp6."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {address_of(row[1]) for row in rows if row[3] == LISTEN and row[9] in inodes}


def address_of(text: str) -> Address:
    """As the kernel writes it: words of 32 bits, each in the machine's order of bytes; and the port."""
    address, port = text.split(":")
    words = bytes.fromhex(address)
    packed = b"".join(words[start : start + 4][::-1] for start in range(0, len(words), 4))
    found = ipaddress.ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found, int(port, 16)


def listeners(pids: Iterable[int]) -> set[Address]:
    inodes = sockets_of(pids)
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    return {found for table in tables for found in listening(table, inodes)}


def wide(found: Iterable[Address]) -> list[Address]:
    return [one for one in found if not one[0].is_loopback]


def test_a_listener_is_found_and_a_wide_one_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        other_only = sockets_of([os.getpid()]) - {str(os.fstat(ours.fileno()).st_ino)}
        found = listeners([os.getpid()])
        assert {ours.getsockname()[1], other.getsockname()[1]} <= {port for _, port in found}
        assert wide(found) == []
        table = Path("/proc/net/tcp").read_text()
        assert ours.getsockname()[1] not in {port for _, port in listening(table, other_only)}
    row = "  0: {}:1F90 {}:0000 {} 00000000:00000000 00:00000000 00000000 0 0 77 1"
    for address, seen in (
        ("00000000", "0.0.0.0"),
        ("0100000A", "10.0.0.1"),
        ("0" * 32, "::"),
        ("0000000000000000FFFF000000000000", "0.0.0.0"),
        ("0100007F", None),
        ("00000000000000000000000001000000", None),
        ("0000000000000000FFFF00000100007F", None),
    ):
        table = f"titles\n{row.format(address, '0' * len(address), LISTEN)}\n"
        told = [(str(one), port) for one, port in wide(listening(table, {"77"}))]
        assert told == ([(seen, 8080)] if seen else []), address
        assert not listening(table, {"78"})
        assert not listening(table.replace(f" {LISTEN} ", " 01 "), {"77"})


def test_the_running_job_listens_on_loopback_alone(tmp_path):
    agent_port, session_port = free_port(), free_port()
    words = ["NUM_ROLLOUT=1", "N_SAMPLES_PER_PROMPT=2", f"RUNS_ROOT={tmp_path}", "RUN_NAME=run"]
    words += [f"CACHE_DIR={ROOT / '.cache'}", f"AGENT_SERVER_PORT={agent_port}"]
    words += [f"SESSION_SERVER_PORT={session_port}"]
    argv = [sys.executable, "-m", "recipe", "smoke", *words]
    with (tmp_path / "output").open("wb") as sink:
        job = subprocess.Popen(argv, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
    try:
        wait_for_a_rollout(job, tmp_path / "run" / "events.jsonl")
        found = listeners(descendants())
        answers = {asked_for_jobs(port) for _, port in found}
    finally:
        job.send_signal(signal.SIGINT)
        code = job.wait(JOB_SECONDS)
    assert wide(found) == []
    ports = {port for _, port in found}
    assert {agent_port, session_port} <= ports
    assert len(ports) > 5  # and Ray's
    # Its Jobs API, which runs programs, is one of them, and asks for the token; its metrics answer any address.
    assert {(401, False), (403, False)} & answers
    assert not any(tells for _, tells in answers)
    assert code == 130, (tmp_path / "output").read_text()[-4000:]


def asked_for_jobs(port: int) -> tuple[int | None, bool]:
    """How a listener answers who has no token, and whether it tells of jobs."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/jobs/", timeout=10, trust_env=False)
    except httpx.HTTPError:  # it speaks something else than HTTP
        return None, False
    return answer.status_code, answer.is_success and "json" in answer.headers.get("content-type", "")


def wait_for_a_rollout(job: subprocess.Popen[bytes], events: Path) -> None:
    reader, deadline = EventReader(events), time.monotonic() + JOB_SECONDS
    while not any(event.get("phase") == "generate" for event in reader.new()):
        assert job.poll() is None, (events.parents[1] / "output").read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.8", "some-machine", "127.example.com"])
def test_a_wider_agent_server_is_refused_before_anything_starts(host):
    with pytest.raises(BadInputError, match="AGENT_SERVER_HOST"):
        check(load("smoke", [f"AGENT_SERVER_HOST={host}"]))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_an_agent_server_on_loopback_is_not_refused(host):
    check(load("smoke", [f"AGENT_SERVER_HOST={host}"]))
