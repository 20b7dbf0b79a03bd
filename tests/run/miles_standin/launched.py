"""A launcher that runs, its run folder, and what of it is left anywhere."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The command line, but with other bounds: how long a lost connection is tried anew, and when that is told. And with
# plugins that look for servers of these tests alone: others on this machine may have some that run. Of the doctor's
# checks those alone that a machine without GPUs, accounts and weights can pass.
LAUNCHER = """
import sys
from recipe import cli, plugins
from recipe.doctor.node_checks import NODE_CHECKS
from recipe.run import dashboard, follow

KEPT = ("versions", "leftovers", "commits", "features", "Megatron", "clock", "shared RUNS_ROOT")
left_out = ["W&B key", "sandbox account", "sandbox quota", "HF token"]
left_out += [one.name for one in NODE_CHECKS if one.name not in KEPT]
plugins.__file__ = sys.argv.pop(1)
dashboard.PATIENCE_SECONDS, follow.LOST_SECONDS = float(sys.argv.pop(1)), float(sys.argv.pop(1))
if "attach" not in sys.argv:
    sys.argv.append(f"SKIP_CHECKS={','.join(left_out)}")
cli.main()
"""


@dataclass
class Launched:
    """A launcher, which writes to the file `log`, and its run folder."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    @classmethod
    def start(cls, folder: Path, log: Path, arguments: list[str], env: dict[str, str]) -> Launched:
        """`arguments`: those of LAUNCHER, then the command's."""
        argv = [sys.executable, "-c", LAUNCHER, *arguments]
        with log.open("w") as sink:
            process = subprocess.Popen(
                argv, stdout=sink, stderr=subprocess.STDOUT, cwd=folder.parent, env=env
            )
        return cls(process, folder, log)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Until the output has a line with `text`."""
        wait_until(lambda: text in self.output or self.process.poll() is not None)
        assert text in self.output, f"{text!r} never came:\n{self.output}"

    def end(self) -> tuple[int, str]:
        """Exit code and the output."""
        return self.process.wait(timeout=240), self.output

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "run_manifest.json").read_text())

    @property
    def record(self) -> dict[str, Any]:
        """What the launcher leaves to find the job by."""
        return json.loads((self.folder / "launcher/job.json").read_text())

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the stand-in's agent server wrote."""
        return [json.loads(line) for line in (self.folder / "trials/standin.jsonl").read_text().splitlines()]

    def of_the_run(self) -> Iterator[tuple[int, str, str]]:
        """Pid, command line and environment of each process that names the run's folder, or the run as Miles' do."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line, environment = ((entry / name).read_bytes().decode() for name in ("cmdline", "environ"))
                if (
                    f"{self.folder}" in line + environment
                    or f"INKLING_GRPO_RUN={self.folder.name}\0" in environment
                ):
                    yield int(entry.name), line.replace("\0", " "), environment


def wait_until(holds: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
