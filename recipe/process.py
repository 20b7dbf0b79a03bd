"""Start, watch and end the process groups that we started; nothing is ever ended by name.

Each group leads its own session, and the kernel sends it SIGTERM when the thread that started it dies
(`setpriv --pdeathsig`), so that a launcher that is killed outright leaves nothing running: start processes
from the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.errors import BadInputError, RecipeError

LOOPBACK = "127.0.0.1"


@dataclass
class ProcessGroup:
    """A program that we started, its log, and its group (the pgid is the leader's pid)."""

    name: str
    leader: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str]) -> ProcessGroup:
        """Starts `argv` in a new session, output appended to `log`.

        Raises BadInputError without setpriv, RecipeError when the system can't start it.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            try:
                leader = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", "--", *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=dict(env),
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise BadInputError(
                    f"{name} could not be started",
                    expected="setpriv, of util-linux",
                    found="none on PATH",
                    run="apt-get install util-linux",
                ) from error
            except OSError as error:
                raise RecipeError(f"{name} could not be started", found=error) from error
        return cls(name, leader, log)

    @property
    def alive(self) -> bool:
        return self.leader.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        """The last `lines` lines of the log."""
        with contextlib.suppress(OSError):
            text = self.log.read_bytes()[-65536:].decode(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def wait_ready(
        self, ready: Callable[[], bool], *, seconds: float, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Polls `ready` until true, and calls `watch`, which may raise, at each poll.

        Raises RecipeError with the log's tail on death or after `seconds`; BadInputError when the program, by its
        exit code, refused to start.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            watch()
            if not self.alive:
                if self.leader.returncode == BadInputError.exit_code:
                    raise BadInputError(f"{self.name} refused to start", found=self.log_tail())
                raise self.ended_early()
            if time.monotonic() > deadline:
                raise self._failed(f"{self.name} was not ready after {seconds:g} s")
            time.sleep(0.05)

    def wait_end(self, *, seconds: float, watch: Callable[[], None] = lambda: None) -> int:
        """The exit code; `watch` as above. Raises RecipeError when the program still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while (code := self.leader.poll()) is None:
            watch()
            if time.monotonic() > deadline:
                raise self._failed(f"{self.name} had not ended after {seconds:g} s")
            time.sleep(0.05)
        return code

    def ended_early(self) -> RecipeError:
        """What the end of a program that should still run is reported as."""
        return self._failed(f"{self.name} ended unexpectedly (exit code {self.leader.returncode})")

    def _failed(self, problem: str) -> RecipeError:
        return RecipeError(problem, found=f"the end of its log:\n{self.log_tail()}", where=self.log)

    def stop(self, *, grace: float = 10.0) -> None:
        """SIGTERM to the group, SIGKILL after `grace` seconds; returns when the whole group is gone."""
        deadline = time.monotonic() + grace
        left = self._signal(signal.SIGTERM)
        self.resume()
        # The leader may have died before: the others have their grace as well.
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = self.alive or self._signal(0)
        self._signal(signal.SIGKILL)
        self.leader.wait()

    def resume(self) -> None:
        """Lets a group go on that somebody has stopped: else it would take no request, nor SIGTERM."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        """Whether there was still a process in the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.leader.pid, number)
            return True
        return False


def free_port(host: str = LOOPBACK) -> int:
    """A TCP port of `host` that nothing listens on now."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """`count` different TCP ports of `host` that nothing listens on now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether `port` of `host` can be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((host, port))
            return True
    return False
