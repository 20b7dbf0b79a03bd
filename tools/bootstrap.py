#!/usr/bin/env python3
"""Brings the project's environment up to date and runs a command in it; for any Python from 3.8 on.

    python3 tools/bootstrap.py [--extra NAME]... [--group NAME]... -- COMMAND ARGUMENT...

uv comes from PATH or, when it is missing, from the package index into .tools/; Python 3.12 from PATH, from
pyenv (an inactive version too), or from uv's own download. The system's Python is never changed.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools"
ENVIRONMENT = ROOT / ".venv"
PYTHON_VERSION = "3.12"
# Most often there is no network, or an index that is not the one here.
REACH_INDEX = (
    "run      the same again once the index is reached (UV_DEFAULT_INDEX or PIP_INDEX_URL name another)"
)


class BootstrapError(Exception):
    """Something the user has to mend; the text says what to run."""


def run(argv, run_next=REACH_INDEX, **options):
    """Runs a program, quietly where nobody watches. Raises BootstrapError, then with its error, when it fails."""
    hidden = {} if sys.stderr.isatty() else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(argv, text=True, **hidden, **options)
    if done.returncode:
        found = reason(done.stdout or "see above")
        raise BootstrapError(
            f"{' '.join(argv)} failed (exit code {done.returncode})\n  found    {found}\n  {run_next}"
        )


def reason(output):
    """What the first error in uv's or pip's output says, its causes on the same line; the end where there is none."""
    said = re.split(r"^error: ", output, flags=re.MULTILINE | re.IGNORECASE)[:2][-1]
    said = re.sub(r"\n *cause: ", ": ", said)
    return "\n           ".join(line for line in said.splitlines()[-20:] if line.strip())


def works(argv, **options):
    """Whether a program runs to a good end: a pyenv shim exists also where its version is not active."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(argv, **quiet, **options).returncode == 0
    except OSError:
        return False


def find_uv():
    """The uv on PATH, else our own, which is installed when it is not there yet."""
    on_path = shutil.which("uv")
    if on_path and works([on_path, "--version"]):
        return on_path
    wanted = json.loads((ROOT / "pins" / "tools.json").read_text())["uv"]["version"]
    in_venv, in_folder = TOOLS / f"uv-{wanted}", TOOLS / f"uv-{wanted}-target"
    for own in (in_venv, in_folder):
        if works([str(own / "bin" / "uv"), "--version"]):
            return str(own / "bin" / "uv")
    say(f"installing uv {wanted} into {TOOLS}")
    return str(install_uv(f"uv=={wanted}", in_venv, in_folder) / "bin" / "uv")


def install_uv(requirement, in_venv, in_folder):
    """Installs uv into a private virtual environment or, without the module venv, into a private folder."""
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    # Debian's python3 has no ensurepip unless python3-venv is installed.
    if works([sys.executable, "-c", "import venv, ensurepip"]):
        run([sys.executable, "-m", "venv", "--clear", str(in_venv)])
        run([str(in_venv / "bin" / "python"), *pip])
        return in_venv
    if works([sys.executable, "-m", "pip", "--version"]):
        run([sys.executable, *pip, "--target", str(in_folder)])
        return in_folder
    raise BootstrapError(
        f"uv is missing, and {sys.executable} can't install it\n"
        "  expected a uv on PATH, or a python3 with the modules venv and ensurepip, or with pip\n"
        "  run      apt-get install python3-venv"
    )


def find_python():
    """A Python 3.12 of this machine, or None: on PATH, else the newest of pyenv's versions, active or not."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = {
        path.name[len(PYTHON_VERSION) + 1 :]: path for path in pyenv.glob(f"versions/{PYTHON_VERSION}.*")
    }
    newest_first = sorted((patch for patch in found if patch.isdigit()), key=int, reverse=True)
    candidates = [shutil.which(f"python{PYTHON_VERSION}"), shutil.which("python3")]
    candidates += [str(found[patch] / "bin" / "python") for patch in newest_first]
    check = f"import sys, venv; sys.exit('{PYTHON_VERSION}' != '%d.%d' % sys.version_info[:2])"
    return next((python for python in candidates if python and works([python, "-c", check])), None)


def sync(wanted):
    """Installs from uv.lock what `wanted` (options of uv sync) asks for; removes nothing that is there."""
    command = [find_uv(), "sync", "--locked", "--inexact", *wanted]
    options = {"cwd": str(ROOT), "env": uv_environment()}
    # Byte-compiling looks at every installed file again: a check first takes a tenth of the time. Without an
    # environment the check would look for a Python in the network.
    if works([str(ENVIRONMENT / "bin" / "python"), "-c", ""]) and works([*command, "--check"], **options):
        return
    say(f"installing from uv.lock into {ENVIRONMENT} (6 GB with PyTorch; two minutes from a near mirror)")
    python = find_python()
    get_python = (
        f"expected Python {PYTHON_VERSION} on PATH or in pyenv, or a network from which uv can get it\n"
        f"  run      pyenv install {PYTHON_VERSION}, or apt-get install python{PYTHON_VERSION} where it has one"
    )
    command += ["--compile-bytecode", "--python", python or PYTHON_VERSION]
    run(command, REACH_INDEX if python else get_python, **options)


def uv_environment():
    """The caller's, with our virtual environment instead of one that may be active in it."""
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    if "PIP_CERT" in kept:  # a package index behind a certificate of its own: pip's setting, for uv too
        kept.setdefault("SSL_CERT_FILE", kept["PIP_CERT"])
    return dict(kept, UV_PROJECT_ENVIRONMENT=str(ENVIRONMENT))


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--extra", action="append", default=[], help="optional dependencies of pyproject.toml"
    )
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    wanted = [f"--extra={name}" for name in asked.extra] + [f"--group={name}" for name in asked.group]
    TOOLS.mkdir(exist_ok=True)
    try:
        # Two makes at once install one after the other.
        with (TOOLS / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sync(wanted)
    except BootstrapError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        say("interrupted: nothing was started")
        sys.exit(130)
    path = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)])
    os.environ.update(PATH=path, VIRTUAL_ENV=str(ENVIRONMENT))
    os.execvp(asked.command[0], asked.command)  # noqa: S606


if __name__ == "__main__":
    main()
