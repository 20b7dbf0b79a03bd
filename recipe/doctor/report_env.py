"""One text for a bug report: this project, its machine, its settings, the last run. Made to be shared.

No secret and no name of a user, of a host or of a home folder is in it; look it over all the same: a path below
another folder than the home, or the words of EXTRA_ARGS, may tell what you would not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import pwd
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from recipe import given
from recipe.errors import BadInputError
from recipe.programs import ask
from recipe.resolve import resolve
from recipe.run.folder import existing_part
from recipe.run.manifest import MAIN_PACKAGES, commit, pinned
from recipe.settings import NAMES, SECRETS, Settings
from recipe.settings_tables import resolved
from recipe.watch.history import latest_run, manifest_of, recorded
from recipe.watch.live import host_memory

TOOL_SECONDS = 30.0
# Of settings that can't be resolved.
DEFAULTS = {
    "tasks_dir": (".", "default"),
    "head_ip": ("localhost", "default"),
    "engine": ("miles", "default"),
}
SUMMARY = ("started", "ended", "exit_code", "error", "commit", "python", "platform")
# Settings that name a person or a machine.
NAMING = ("head_ip", "wandb_entity", "gke_project_id")


def text(chosen: Settings | BadInputError) -> str:
    """The whole text, in Markdown: what is given now, and the last run with its settings.

    Where settings could not be resolved it says why, and goes by the defaults.
    """
    settings = chosen if isinstance(chosen, Settings) else resolve(DEFAULTS)
    lines = resolved(chosen).splitlines() if isinstance(chosen, Settings) else _unresolved(chosen)
    installed = {found.name: found.version for found in importlib.metadata.distributions()}
    manifest = _last_manifest(settings.runs_root)
    sections: dict[str, Iterable[str]] = {
        "Project": [f"commit: {commit() or 'no checkout'}"]
        + [f"{name}: {installed.get(name, 'not installed')}" for name in MAIN_PACKAGES],
        "Machine": _machine(settings),
        "Settings given here": (line for line in lines if not line.endswith(" default")),
        "Pins": (f"{name}: {pin}" for name, pin in pinned(settings).items()),
        "Last run": _last_run(manifest),
    }
    whole = "\n".join(f"## {title}\n```\n" + "\n".join(of) + "\n```" for title, of in sections.items())
    return _shareable(whole, settings.public(), recorded(manifest or {}))


def _unresolved(error: BadInputError) -> Iterator[str]:
    """Without what was given: it may be a secret in the wrong place."""
    yield re.sub(r"^(['\"]).*\1", "a word", error.problem, flags=re.DOTALL)
    yield from (f"{name}: {error.facts[name]}" for name in ("expected", "where") if name in error.facts)
    yield "pins and the last run are those of the default settings"


def _machine(settings: Settings) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield f"system: {platform.freedesktop_os_release()['PRETTY_NAME']}"
    yield f"kernel: {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    yield f"cgroup: {'v2' if Path('/sys/fs/cgroup/cgroup.controllers').exists() else 'v1 or none'}"
    yield f"Python: {sys.version}"
    memory = host_memory()
    yield from (f"{name}: {memory[name] / 1e9:.1f} GB" for name in ("MemTotal", "MemAvailable", "SwapTotal"))
    try:
        disk = shutil.disk_usage(existing_part(settings.runs_root))
        yield f"disk of RUNS_ROOT: {disk.free / 1e9:.1f} GB free of {disk.total / 1e9:.1f}"
    except OSError as error:
        yield f"disk of RUNS_ROOT: {error}"
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = ask(command, folder=Path("/"), seconds=TOOL_SECONDS)
    yield f"GPUs: {(done.stdout + done.stderr).strip() or 'none'}"


def _last_manifest(runs_root: Path) -> dict[str, Any] | None:
    """Empty when it can't be read; None: there is no run."""
    try:
        return manifest_of(latest_run(runs_root))
    except BadInputError:
        return None


def _last_run(manifest: dict[str, Any] | None) -> Iterator[str]:
    if not manifest:
        yield "none" if manifest is None else "no manifest that can be read"
        return
    yield from (f"{name}: {manifest.get(name)}" for name in SUMMARY)
    for name, of in manifest.get("settings", {}).items():
        yield f"{f'{name.upper()}={of["value"]}':<48} {of['source']}"


def _shareable(whole: str, *settings: dict[str, Any]) -> str:
    """Without what names a secret, a person or a machine, wherever it stands: in a value, a path or an error."""
    secrets: set[str] = set()
    files = {".env", str(settings[0]["env_file"])}
    reads = [partial(given.env_file, file, NAMES, required=False) for file in files]
    for read in (partial(given.environment, NAMES), *reads):
        with contextlib.suppress(BadInputError):  # which is told; what one lacks, another may have
            secrets |= {value for name, (value, _) in read().items() if name in SECRETS}
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin with another
        whole = whole.replace(secret, "(secret)") if secret else whole
    whole = re.sub(r"(--\S*(?:key|token|secret|password)[= ])\S+", r"\1(secret)", whole, flags=re.IGNORECASE)
    whole = re.sub(r"//[^/\s@]+@", "//(hidden)@", whole)
    whole = re.sub(r"(://[^\s?#]*[?#])[^\s'\"]+", r"\1(hidden)", whole)
    user, host = pwd.getpwuid(os.getuid()), socket.gethostname()
    hidden = {str(Path.home()): "~", user.pw_dir: "~", user.pw_name: "<user>"}
    hidden |= {host: "<host>", host.partition(".")[0]: "<host>"}
    hidden |= {str(of.get(name) or ""): "<hidden>" for of in settings for name in NAMING}
    for name, word in sorted(hidden.items(), key=lambda pair: -len(pair[0])):
        if name and name not in ("/", "localhost", "root"):  # nobody's
            whole = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", word, whole)
    return whole
