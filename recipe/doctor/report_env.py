"""One text for a bug report: this project, its machine, its settings, the last run. Made to be shared.

No secret and no name of a user, of a host or of a home folder is in it; look it over all the same: a path below
another folder than the home, or the words of EXTRA_ARGS, may tell what you would not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from recipe import given
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.resolve import resolve
from recipe.run.folder import existing_part
from recipe.run.manifest import MAIN_PACKAGES, commit, pinned
from recipe.settings import NAMES, SECRETS, Settings
from recipe.settings_tables import resolved

TOOL_SECONDS = 30.0
CHOICES = ("engine", "agent", "sandbox_backend")
# Of settings that can't be resolved.
DEFAULTS = {
    "tasks_dir": (".", "default"),
    "head_ip": ("localhost", "default"),
    "engine": ("miles", "default"),
}
SUMMARY = ("started", "ended", "exit_code", "error", "commit", "python", "platform")


def text(chosen: Settings | BadInputError) -> str:
    """The whole text, in Markdown; by the defaults where the settings could not be resolved, and why not."""
    if isinstance(chosen, Settings):
        settings, listed = chosen, resolved(chosen).splitlines()
    else:
        settings, listed = resolve(DEFAULTS), list(_unresolved(chosen))
    installed = {found.name: found.version for found in importlib.metadata.distributions()}
    sections = {
        "Project": [f"commit: {commit() or 'no checkout'}"]
        + [f"{name}: {installed.get(name, 'not installed')}" for name in MAIN_PACKAGES],
        "Machine": list(_machine(settings)),
        "Settings": listed,
        "Pins": [f"{name}: {pin}" for name, pin in pinned(settings).items()],
        "Last run": list(_last_run(settings.runs_root)),
    }
    whole = "\n".join(f"## {title}\n```\n" + "\n".join(lines) + "\n```" for title, lines in sections.items())
    return _shareable(whole, settings)


def _unresolved(error: BadInputError) -> Iterator[str]:
    """Without what was given: it may be a secret in the wrong place."""
    yield re.sub(r"^(['\"]).*\1", "a word", error.problem, flags=re.DOTALL)
    yield from (f"{name}: {error.facts[name]}" for name in ("expected", "where") if name in error.facts)
    yield "pins and the last run are those of the defaults"


def _machine(settings: Settings) -> Iterator[str]:
    release = Path("/etc/os-release")
    yield from (
        [line for line in release.read_text().splitlines() if "PRETTY" in line] if release.exists() else []
    )
    yield f"kernel: {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    yield f"cgroup: {'v2' if Path('/sys/fs/cgroup/cgroup.controllers').exists() else 'v1 or none'}"
    yield f"Python: {sys.version}"
    lines = Path("/proc/meminfo").read_text().splitlines()
    yield from (line for line in lines if line.startswith(("MemTotal", "MemAvailable", "SwapTotal")))
    try:
        disk = shutil.disk_usage(existing_part(settings.runs_root))
        yield f"disk of RUNS_ROOT: {disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.1f}"
    except OSError as error:
        yield f"disk of RUNS_ROOT: {error}"
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
        yield f"GPUs: {(done.stdout + done.stderr).strip() or 'none'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"GPUs: {error}"


def _last_run(runs_root: Path) -> Iterator[str]:
    manifests = sorted(runs_root.glob("*/run_manifest.json"), key=lambda path: path.lstat().st_mtime)
    if not manifests:
        yield "none"
        return
    try:
        facts = json.loads(read_text(manifests[-1]))
        lines = [f"{name}: {facts.get(name)}" for name in SUMMARY]
        yield from lines + [f"{name}: {facts['settings'][name]['value']}" for name in CHOICES]
    except (BadInputError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        yield f"no manifest that can be read: {type(error).__name__}: {error}"


def _shareable(whole: str, settings: Settings) -> str:
    """Without what names a secret, a person or a machine, wherever it stands: in a value, a path or an error."""
    values = [getattr(settings, name) for name in SECRETS]
    secrets = {value.get_secret_value() for value in values if isinstance(value, SecretStr)}
    with contextlib.suppress(BadInputError):  # which is told; these are for settings that can't be resolved
        secrets |= {value for name, (value, _) in given.environment(NAMES).items() if name in SECRETS}
        found = given.env_file(".env", NAMES, required=False)
        secrets |= {value for name, (value, _) in found.items() if name in SECRETS}
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin with another
        whole = whole.replace(secret, "(secret)") if secret else whole
    whole = re.sub(r"(--\S*(?:key|token|secret|password)[= ])\S+", r"\1(secret)", whole, flags=re.IGNORECASE)
    whole = re.sub(r"//[^/\s@]+@", "//(hidden)@", whole)
    whole = re.sub(r"(://[^\s?#]*[?#])[^\s'\"]+", r"\1(hidden)", whole)
    user, host = pwd.getpwuid(os.getuid()), socket.gethostname()
    hidden: dict[str | None, str] = {str(Path.home()): "~", user.pw_dir: "~", user.pw_name: "<user>"}
    hidden |= {host: "<host>", host.partition(".")[0]: "<host>"}
    hidden |= dict.fromkeys((settings.head_ip, settings.wandb_entity, settings.gke_project_id), "<hidden>")
    for name, word in sorted(hidden.items(), key=lambda pair: -len(pair[0] or "")):
        if name and name not in ("/", "localhost", "root"):  # nobody's
            whole = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, whole)
    return whole
