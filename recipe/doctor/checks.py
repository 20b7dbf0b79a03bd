"""What must hold before a run on this machine: each check looks at one thing and changes nothing."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from recipe.errors import BadInputError
from recipe.process import LOOPBACK, free_port, port_is_free
from recipe.run.folder import existing_part
from recipe.settings import Settings
from recipe.tasks.prompts import Row, build_rows, check_tasks_exist, read_prompt_data

GIB = 2**30
# A checkpoint is 52 MB, trials and samples of ten rollouts about 100 MB.
RUN_FOLDER_BYTES = 1 * GIB
# Ray's logs, what its object store spills (256 MB at most), the sandboxes' files.
TEMPORARY_BYTES = 1 * GIB
# All processes of a run together stay below it.
MEMORY_BYTES = 6 * GIB
# A socket's path has at most 107 bytes, and Ray adds 77 to the folder of temporary files.
TEMPORARY_PATH_BYTES = 30

TRACKER = "latest_checkpointed_iteration.txt"

Check = Callable[[Settings], Iterator[BadInputError]]


def prompt_rows(settings: Settings) -> list[Row]:
    """The rows of PROMPT_DATA; without it, one for each task of TASKS_DIR. Raises BadInputError."""
    if settings.builds_prompt_data:
        return build_rows(settings.tasks_dir, settings.agent)
    # A pipe would be waited for, and could be read once only.
    if settings.prompt_data.exists() and not settings.prompt_data.is_file():
        raise BadInputError("PROMPT_DATA is no regular file", expected="JSONL", found=settings.prompt_data)
    return read_prompt_data(settings.prompt_data)


def run_folder_is_new(settings: Settings) -> Iterator[BadInputError]:
    """A run never writes into a folder that is there already."""
    path = settings.runs_root / settings.run_name
    if path.exists():
        yield BadInputError(
            "the run folder is in use",
            expected="a new RUN_NAME",
            found=path,
            run="the same command without RUN_NAME, which takes a name made of the time",
        )


def runs_root_is_a_folder(settings: Settings) -> Iterator[BadInputError]:
    """RUNS_ROOT is a folder or can become one."""
    existing = existing_part(settings.runs_root)
    if not existing.is_dir():
        yield BadInputError(
            "RUNS_ROOT can't be a folder", found=f"{existing} is a file", where=settings.runs_root
        )


def prompts_have_tasks(settings: Settings) -> Iterator[BadInputError]:
    """Every prompt row is well-formed and names a task directory; the agent is the run's."""
    if not settings.tasks_dir.is_dir():
        yield BadInputError("the folder of TASKS_DIR is missing", found=settings.tasks_dir)
        return
    try:
        rows = prompt_rows(settings)
        check_tasks_exist(rows, settings.tasks_dir)
    except BadInputError as error:
        yield error
        return
    others = [row.label for row in rows if row.metadata["agent_name"] != settings.agent]
    if others:
        yield BadInputError(
            f"{len(others)} prompts are for another agent",
            expected=f"metadata.agent_name: {settings.agent}",
            found=", ".join(others[:5]),
            where=settings.prompt_data,
        )


def weights_to_start_from(settings: Settings) -> Iterator[BadInputError]:
    """LOAD_DIR, when set, is a folder of checkpoints: Megatron's tracker file says which is the latest."""
    if settings.load_dir is not None and not (settings.load_dir / TRACKER).is_file():
        yield BadInputError(
            "LOAD_DIR holds no checkpoints",
            expected=f"a run's checkpoints/ with {TRACKER}",
            found=settings.load_dir,
            run="LOAD_DIR=<RUNS_ROOT>/<run>/checkpoints",
        )


def disk_space(settings: Settings) -> Iterator[BadInputError]:
    """The run folder and the folder of temporary files have room for a run."""
    needed = {settings.runs_root: RUN_FOLDER_BYTES, Path(tempfile.gettempdir()): TEMPORARY_BYTES}
    for path, wanted in needed.items():
        existing = existing_part(path)
        free = shutil.disk_usage(existing).free
        if free < wanted:
            yield BadInputError(
                "the disk is nearly full", expected=_gib(wanted), found=f"{_gib(free)} free", where=existing
            )


def temporary_folder(_settings: Settings) -> Iterator[BadInputError]:
    """The path of the folder of temporary files leaves room for the names of Ray's sockets."""
    path = tempfile.gettempdir()
    if len(path.encode()) > TEMPORARY_PATH_BYTES:
        yield BadInputError(
            "the path of the folder of temporary files is too long for Ray's sockets",
            expected=f"at most {TEMPORARY_PATH_BYTES} bytes",
            found=path,
            run="the same command with TMPDIR=/tmp before it",
        )


def memory(_settings: Settings) -> Iterator[BadInputError]:
    """Enough memory is free or can be made free."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    available = int(found[1]) * 1024 if found else MEMORY_BYTES
    if available < MEMORY_BYTES:
        yield BadInputError(
            "too little memory", expected=_gib(MEMORY_BYTES), found=f"{_gib(available)} available"
        )


def ports(settings: Settings) -> Iterator[BadInputError]:
    """The agent server's address can be bound, and so can the ports that were asked for by number."""
    host = settings.agent_server_host
    try:
        free_port(host)
    except (OSError, ValueError) as error:  # ValueError: no host can have this name
        yield BadInputError(
            "AGENT_SERVER_HOST can't be bound",
            expected="an IPv4 address of this machine, or a name of one",
            found=f"{host!r}: {error}",
            where=settings.source("agent_server_host"),
        )
        return
    for name, address in (("agent_server_port", host), ("session_server_port", LOOPBACK)):
        port = getattr(settings, name)
        if port and not port_is_free(port, address):
            yield BadInputError(
                f"{name.upper()} is in use",
                expected="a free port, or 0 for any",
                found=port,
                where=settings.source(name),
                run=f"ss -ltnp 'sport = :{port}'",
            )


CHECKS: tuple[Check, ...] = (
    run_folder_is_new,
    runs_root_is_a_folder,
    prompts_have_tasks,
    weights_to_start_from,
    disk_space,
    temporary_folder,
    memory,
    ports,
)


def check(settings: Settings) -> None:
    """Runs every check. Raises BadInputError with all that was found."""
    findings = [finding for one in CHECKS for finding in one(settings)]
    if len(findings) == 1:
        raise findings[0]
    if findings:
        raise BadInputError("\n".join(str(finding) for finding in findings))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
