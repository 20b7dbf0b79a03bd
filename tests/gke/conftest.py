"""A machine whose gcloud, kubectl and docker are stand-ins, with a home and a .env of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recipe.gke import calls
from recipe.gke.commands import app

PLACE = {"GKE_PROJECT_ID": "proj-1", "GKE_REGION": "us-central1", "GKE_CLUSTER_NAME": "boxes"}


class Machine:
    """Where the commands run: what the stand-ins know, and what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.bin = folder, folder / "home", folder / "bin"
        self.bin.mkdir()
        for name in ("gcloud", "kubectl", "docker", "gke-gcloud-auth-plugin"):
            program = self.bin / name
            shutil.copy(Path(__file__).with_name("google_stand_in.py"), program)
            text = program.read_text().replace("/usr/bin/env python3", f"{sys.executable} -IS", 1)
            program.write_text(text)
            program.chmod(0o755)
        self.reset()

    def reset(self) -> None:
        """Nothing was called, nothing is there."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        (self.bin / "calls.jsonl").write_text("")
        (self.bin / "answers.json").write_text("[]")
        self.there()
        self.answer("get-default-service-account", output="build@proj-1.example\n")
        self.answer("projects describe", output="123\n")

    def answer(
        self, pattern: str, *, times: int = -1, code: int = 0, output: str = "", errors: str = ""
    ) -> None:
        """Calls that match are answered so, `times` times (negative: always); the newest answer comes first."""
        file = self.bin / "answers.json"
        file.write_text(json.dumps([[pattern, times, code, output, errors], *json.loads(file.read_text())]))

    def there(self, **found: object) -> None:
        (self.bin / "there.json").write_text(json.dumps(found))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.bin / "calls.jsonl").read_text().splitlines()]

    def called(self, text: str) -> list[list[str]]:
        return [call for call in self.calls if text in " ".join(call)]

    def recipe(self, *words: str) -> Result:
        """`recipe gke WORDS` in this process."""
        return CliRunner().invoke(app, words)

    def paste(self, text: str) -> None:
        """What a shell does with a dry run's lines."""
        subprocess.run(["sh"], input=text, text=True, check=False, capture_output=True, cwd=self.folder)


def a_machine(folder: Path, patch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(folder)
    patch.chdir(folder)
    patch.setenv("HOME", str(machine.home))
    patch.setenv("PATH", f"{machine.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name, value in PLACE.items():
        patch.setenv(name, value)
    patch.setattr(calls, "GRANT_PAUSES", (0.0, 0.0, 0.0))
    return machine


@pytest.fixture
def machine(tmp_path, monkeypatch: pytest.MonkeyPatch):
    return a_machine(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory):
    """The same for all tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        yield a_machine(tmp_path_factory.mktemp("machine"), patch)
