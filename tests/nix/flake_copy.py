"""A copy of the flake that a test may change, and the command `nix` on it, set up by nix/offline.sh."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
# All that the flake reads.
PARTS = ("flake.nix", "flake.lock", "nix", "pins", "container", "Makefile")
STAND_IN = ("--override-input", "nixpkgs", "path:./nix/stub-nixpkgs")


@dataclass(frozen=True)
class FlakeCopy:
    folder: Path
    store: Path

    def change(self, file: str, old: str, new: str) -> None:
        """Replaces the first `old` of a file."""
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new, 1))

    def nix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs nix in the copy."""
        script = f'source {PROJECT}/nix/offline.sh "$0" && exec nix "$@"'
        command = ["bash", "-c", script, str(self.store), *arguments]
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.store / "cache"))
        # Bounds a Nix that waits for a network; the slowest command takes a second.
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def read(self, output: str, *options: str) -> Any:
        """An output's value."""
        done = self.nix("eval", "--json", f"path:.#{output}", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refusal(self, output: str, *options: str) -> str:
        """What Nix says when an output can't be evaluated."""
        done = self.nix("eval", "--json", f"path:.#{output}", *options)
        assert done.returncode != 0
        return done.stderr

    def build(self, output: str) -> Path:
        """Where an output lies, built with the stand-in."""
        done = self.nix("build", "--no-link", "--json", f"path:.#{output}", *STAND_IN)
        assert done.returncode == 0, done.stderr
        return Path(json.loads(done.stdout)[0]["outputs"]["out"])
