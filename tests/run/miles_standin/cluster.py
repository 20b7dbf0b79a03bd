"""A Ray head that is not ours: the cluster that a launcher finds; and a connection to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from recipe import keeper
from recipe.process import LOOPBACK, ProcessGroup, free_ports
from recipe.run.ray_cluster import PORT_OPTIONS, STOP_SECONDS

GPUS = 64


@contextmanager
def ray_head(log: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Its folder and its ports, by the options of `ray start`, once the Jobs API answers; nothing is left."""
    folder = Path(tempfile.gettempdir()) / f"ray-{secrets.token_hex(4)}"
    ports = dict(zip(PORT_OPTIONS, free_ports(len(PORT_OPTIONS)), strict=True))
    tools = log.parent / "tools"
    tools.mkdir()
    # Whatever is on this machine's GPUs is no leftover of the tests.
    (tools / "nvidia-smi").write_text("#!/bin/sh\n")
    (tools / "nvidia-smi").chmod(0o755)
    argv = [
        sys.executable,
        "-S",
        keeper.__file__,
        str(folder),
        str(Path(sys.executable).with_name("ray")),
        "start",
    ]
    argv += ["--head", "--block", *(f"--{name}={port}" for name, port in ports.items())]
    argv += [f"--dashboard-host={LOOPBACK}", f"--node-ip-address={LOOPBACK}", f"--temp-dir={folder}"]
    argv += [f"--num-gpus={GPUS}", "--num-cpus=8", "--object-store-memory=80000000", "--disable-usage-stats"]
    argv += ["--min-worker-port=0", "--max-worker-port=0", "--no-monitor"]
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    env = {
        "PATH": path,
        "TMPDIR": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Else Ray starts a worker for each processor before anybody asks for one.
        "RAY_prestart_worker_first_driver": "0",
        "HOME": str(log.parent),
    }
    process = ProcessGroup.start("Ray", argv, log=log, env=env)
    try:
        process.wait_ready(lambda: _answers(ports["dashboard-port"]), seconds=120)
        yield folder, ports
    finally:
        process.stop(grace=STOP_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://{LOOPBACK}:{port}/api/jobs/", trust_env=False).is_success
    return False


class Wire:
    """A port that leads to another one, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = self._listener.getsockname()[1]
        self.whole = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection, and every new one at once."""
        self.whole = False
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self.whole = True

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for end in (self._listener, *self._open):
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if not self.whole:
                    near.close()
                    continue
                far = socket.create_connection((LOOPBACK, self._target))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)
