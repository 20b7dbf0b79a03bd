"""Copies of the flake to change, and Nix in a store of the test session; where Nix is missing, tests are skipped."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from flake_copy import PARTS, PROJECT, FlakeCopy


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    if shutil.which("nix") is None:
        pytest.skip("nix is not on PATH (Debian: apt-get install nix-bin)")
    folder = tmp_path_factory.mktemp("nix")
    yield folder
    # What is in a store is read-only, which hinders a user who is not root.
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def flake(store, tmp_path):
    folder = tmp_path / "flake"
    folder.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (PROJECT / part).is_dir() else shutil.copy
        copy(PROJECT / part, folder / part)
    return FlakeCopy(folder, store)
