"""What must hold after every job, however it ended: nothing left, earlier checkpoints whole, the manifest says how."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from recipe.engines.local import checkpoint
from recipe.errors import RecipeError
from recipe.harbor.scratch import default_root, sweep
from recipe.process import port_is_free
from rehearsal.job import Job

SIGKILLED = -9


def wrong(job: Job, code: int, says: str) -> Iterator[str]:
    """What is not as it must be; `says`: a regular expression that the output must hold."""
    if job.code != code:
        yield f"exit code {job.code}, expected {code}; it said: {tail(job)}"
    if not re.search(says, job.output, re.DOTALL):
        yield f"the output does not say {says!r}; it ends: {tail(job)}"
    # The job's own log may hold some, and its end is shown where nothing better is known.
    if "Traceback (most recent call last)" in job.output.partition("the end of its log:")[0]:
        yield "the output holds a traceback"
    yield from (f"left running: {process}" for process in job.left())
    yield from _temporary(job.temporary, job.notes.get("full"), killed=code == SIGKILLED)
    if job.folder.exists():
        yield from _manifest(job, code)
        yield from _ports(job.folder)
        yield from _checkpoints(job.folder / "checkpoints", killed=code == SIGKILLED)


def tail(job: Job) -> str:
    """The end of what a job said, on one line."""
    return " ".join(job.output.split())[-300:]


def _temporary(folder: Path, ours: Path | None, *, killed: bool) -> Iterator[str]:
    """Nothing is left there; after SIGKILL, nothing but the sandboxes that the next start sweeps."""
    scratch = folder / default_root().name
    if killed and scratch.exists():
        sweep(scratch)
    found = [path for path in (*folder.glob("*"), *scratch.glob("*")) if path not in (scratch, ours)]
    yield from (f"left in the folder of temporary files: {path.relative_to(folder)}" for path in found)


def _manifest(job: Job, code: int) -> Iterator[str]:
    path = job.folder / "run_manifest.json"
    full = job.notes.get("full")
    if "removed" in job.notes or (full and job.folder.is_relative_to(full.parent)):
        return  # nothing could be written there
    facts = json.loads(path.read_text())
    expected = None if code == SIGKILLED else code
    if facts["exit_code"] != expected:
        yield f"the manifest says exit code {facts['exit_code']}, expected {expected}"
    if code not in (0, SIGKILLED) and not facts["error"]:
        yield "the manifest does not say how it ended"


def _ports(folder: Path) -> Iterator[str]:
    record = folder / "launcher" / "job.json"
    if record.exists():
        url = json.loads(record.read_text())["agent_server_url"]
        if not port_is_free(int(url.rpartition(":")[2])):
            yield f"{url} is still in use"


def _checkpoints(folder: Path, *, killed: bool) -> Iterator[str]:
    """The latest one is whole; of one that was cut nothing is left, but after SIGKILL."""
    if (folder / checkpoint.TRACKER).exists():
        try:
            checkpoint.require_complete(checkpoint.latest(folder))
        except RecipeError as error:
            yield str(error)
    partial = [path.name for path in folder.glob("*.partial-*")]
    if partial and not killed:
        yield f"half-written checkpoints are left: {', '.join(partial)}"
