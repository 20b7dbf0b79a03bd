"""The bootstrap: which uv and which Python it takes, and what it says when there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The module with its own folder of tools, an empty PATH and a home without pyenv."""
    spec = importlib.util.spec_from_file_location("bootstrap", PROJECT / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path / "environment")
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    return module


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def python_of_version(path: Path, version: tuple[int, int]) -> Path:
    """A program that answers the bootstrap's question as a Python of that version would."""
    program(path, "")
    path.write_text(
        f"#!{sys.executable}\nimport sys\nexec(sys.argv[2].replace('sys.version_info[:2]', '{version}'))\n"
    )
    return path


def test_a_shim_that_does_not_run_is_passed_over_for_an_inactive_pyenv_version(bootstrap, tmp_path):
    program(tmp_path / "bin" / "python3.12", 'echo "pyenv: version not active" >&2; exit 127')
    python_of_version(tmp_path / "bin" / "python3", (3, 11))
    versions = tmp_path / "home" / ".pyenv" / "versions"
    for patch in ("3.12.2", "3.12.10", "3.12-dev"):
        python_of_version(versions / patch / "bin" / "python", (3, 12))
    assert bootstrap.find_python() == str(versions / "3.12.10" / "bin" / "python")


def test_a_python_on_path_is_taken_first(bootstrap, tmp_path, monkeypatch):
    on_path = python_of_version(tmp_path / "bin" / "python3", (3, 12))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    python_of_version(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python", (3, 12))
    assert bootstrap.find_python() == str(on_path)


def test_without_any_python_uv_may_bring_its_own_and_its_failure_says_what_to_do(bootstrap, tmp_path):
    program(tmp_path / "bin" / "uv", 'test "$1" = --version || { echo no network; exit 2; }')
    assert bootstrap.find_python() is None
    with pytest.raises(
        bootstrap.BootstrapError, match=r"--python 3\.12 failed[^$]*no network[^$]*pyenv install"
    ):
        bootstrap.sync([])


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            "Resolved 9\nerror: Failed to fetch: x\n  cause: no dns\n  cause: z\n",
            "Failed to fetch: x: no dns: z",
        ),
        ("WARNING: y\nERROR: Could not find uv\nERROR: No matching uv\n", "Could not find uv"),
        ("one\ntwo\n", "one\n           two"),
        ("", "see above"),
    ],
)
def test_a_failure_is_one_error_with_its_cause_and_what_to_run(bootstrap, tmp_path, said, found):
    bad = program(tmp_path / "bad", f"printf '{said}'; exit 2")
    with pytest.raises(bootstrap.BootstrapError) as failed:
        bootstrap.run([str(bad), "sync"])
    told = str(failed.value)
    assert told.startswith(f"{bad} sync failed (exit code 2)\n  found    {found}\n  run      the same again")


def test_uv_on_path_is_taken_and_a_broken_one_is_not(bootstrap, tmp_path, monkeypatch):
    uv = program(tmp_path / "bin" / "uv", "exit 0")
    assert bootstrap.find_uv() == str(uv)
    program(uv, "exit 1")
    monkeypatch.setattr(bootstrap, "install_uv", lambda requirement, *places: tmp_path / requirement)
    version = json.loads((PROJECT / "pins" / "tools.json").read_text())["uv"]["version"]
    assert bootstrap.find_uv() == str(tmp_path / f"uv=={version}" / "bin" / "uv")


def test_our_own_uv_is_not_installed_twice(bootstrap, tmp_path, monkeypatch):
    version = json.loads((PROJECT / "pins" / "tools.json").read_text())["uv"]["version"]
    own = program(tmp_path / "tools" / f"uv-{version}-target" / "bin" / "uv", "exit 0")
    assert bootstrap.find_uv() == str(own)


def test_without_ensurepip_pip_installs_into_a_private_folder(bootstrap, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    bare = program(
        tmp_path / "bare-python", f'case "$*" in *"import venv"*) exit 1;; esac; echo "$@" >> {calls}'
    )
    monkeypatch.setattr(bootstrap.sys, "executable", str(bare))
    folder = tmp_path / "folder"
    assert bootstrap.install_uv("uv==1", tmp_path / "venv", folder) == folder
    assert f"pip install --quiet --disable-pip-version-check uv==1 --target {folder}" in calls.read_text()


def test_a_python_that_can_install_nothing_is_told_what_to_install(bootstrap, tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "executable", str(program(tmp_path / "bare-python", "exit 1")))
    with pytest.raises(bootstrap.BootstrapError, match="apt-get install python3-venv"):
        bootstrap.install_uv("uv==1", tmp_path / "venv", tmp_path / "folder")


def test_an_environment_that_is_up_to_date_is_left_alone(bootstrap, tmp_path):
    calls = tmp_path / "calls"
    program(tmp_path / "bin" / "uv", f'echo "$@" >> {calls}')
    program(tmp_path / "environment" / "bin" / "python", "exit 0")
    bootstrap.sync(["--extra=local"])
    assert calls.read_text().splitlines() == ["--version", "sync --locked --inexact --extra=local --check"]


def test_an_environment_that_is_not_is_synced_byte_compiled_with_the_python_that_was_found(
    bootstrap, tmp_path
):
    calls = tmp_path / "calls"
    program(tmp_path / "bin" / "uv", f'echo "$@" >> {calls}; case "$*" in *--check) exit 1;; esac')
    program(tmp_path / "environment" / "bin" / "python", "exit 0")
    python = python_of_version(tmp_path / "bin" / "python3", (3, 12))
    bootstrap.sync(["--group=dev"])
    last = calls.read_text().splitlines()[-1]
    assert last == f"sync --locked --inexact --group=dev --compile-bytecode --python {python}"


def test_the_command_runs_in_the_environment_with_its_arguments(tmp_path):
    show = "import sys, os; print(sys.prefix, os.environ['VIRTUAL_ENV'], sys.argv[1:])"
    # The suite's own environment may hold more than these options ask for: nothing of it is removed.
    done = subprocess.run(
        [sys.executable, PROJECT / "tools" / "bootstrap.py", "--", "python", "-c", show, "a b", "--c"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ,
    )
    environment = PROJECT / ".venv"
    assert done.stdout.strip() == f"{environment} {environment} ['a b', '--c']", done.stderr
