"""What must hold after every job, however it ended: nothing left, earlier checkpoints whole, the manifest says how."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from recipe.engines.local import checkpoint
from recipe.errors import RecipeError
from recipe.harbor.scratch import default_root, sweep
from recipe.process import port_is_free
from rehearsal.job import PLANT, Job

# A job's weights are larger; nothing else is.
SEARCHED_BYTES = 5_000_000
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
    yield from _secrets(job.root)
    yield from _trials(job, ended_well=job.code == code == 0)
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


def _secrets(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_size < SEARCHED_BYTES and PLANT.encode() in path.read_bytes():
            yield f"secret found: {path.relative_to(root)}"


def _trials(job: Job, *, ended_well: bool) -> Iterator[str]:
    """Each trial ends once at most, and in a run that ended well, once."""
    trials = [event for event in job.events if event["kind"] == "trial"]
    started = [event["trial"] for event in trials if event["state"] == "started"]
    done = Counter(event["trial"] for event in trials if event["state"] == "done")
    yield from (f"trial doubled: {trial}" for trial, times in done.items() if times > 1)
    if ended_well:
        yield from (f"trial lost: {trial}" for trial in started if not done[trial])


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
