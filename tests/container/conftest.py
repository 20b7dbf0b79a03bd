"""Git repositories in place of the upstreams and of the checkouts in the image."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest

IDENTITY = {"name": "someone", "email": "someone@localhost"}


class Repository:
    """A git repository with one package, which each commit writes anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        # As GitHub does: any commit can be asked for, not only the tips of branches.
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, *arguments: str) -> str:
        identity = [word for key, value in IDENTITY.items() for word in ("-c", f"user.{key}={value}")]
        command = ["git", "-C", str(self.folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        """Commits `text` as the package's only file; gives the commit."""
        package = self.folder / "python" / "sglang"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="session")
def ray_start():
    """The command line of `ray start`. To import it is slow, and Ray's own deprecations are none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.scripts.scripts import start
    return start


@pytest.fixture
def upstream(tmp_path):
    return Repository(tmp_path / "upstream")


@pytest.fixture
def checkout(tmp_path):
    one = Repository(tmp_path / "image")
    one.commit("what the image came with")
    return one
