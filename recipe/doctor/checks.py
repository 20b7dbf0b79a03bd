"""What must hold before a run: each check looks at one thing and changes nothing.

Those of INPUT are about what the user gave and hold on any machine; those of HERE are about the machine on which
the launcher is started.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recipe.doctor import head_node
from recipe.doctor.lineage import lineage
from recipe.errors import BadInputError
from recipe.process import LOOPBACK, free_port, port_is_free
from recipe.run.folder import existing_part
from recipe.settings import Settings
from recipe.tasks.prompts import Row, agent_timeout_sec, build_rows, check_tasks_exist, read_prompt_data

GIB = 2**30
# A checkpoint is 52 MB, trials and samples of ten rollouts about 100 MB.
RUN_FOLDER_BYTES = 1 * GIB
# Ray's logs, what its object store spills (256 MB at most), the sandboxes' files.
TEMPORARY_BYTES = 1 * GIB
# All processes of a run together stay below it.
MEMORY_BYTES = 6 * GIB
# A socket's path has at most 107 bytes, and Ray adds 77 to the folder of temporary files.
TEMPORARY_PATH_BYTES = 30


Check = Callable[[Settings], Iterator[BadInputError]]


def prompt_rows(settings: Settings) -> list[Row]:
    """The rows of PROMPT_DATA; without it, one for each task of TASKS_DIR. Raises BadInputError."""
    if settings.builds_prompt_data:
        return build_rows(settings.tasks_dir, settings.agent, settings.sandbox_backend)
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
    """Every prompt row is well-formed and names a task directory."""
    if not settings.tasks_dir.is_dir():
        yield BadInputError("the folder of TASKS_DIR is missing", found=settings.tasks_dir)
        return
    try:
        check_tasks_exist(prompt_rows(settings), settings.tasks_dir, settings.sandbox_backend)
    except BadInputError as error:
        yield error


def deadlines(settings: Settings) -> Iterator[BadInputError]:
    """A task's agent must be stopped by its own time-out, which is graded, before its whole trial is given up."""
    try:
        tasks = sorted({row.instance_id for row in prompt_rows(settings)})
        timeouts = {name: agent_timeout_sec(settings.tasks_dir / name) for name in tasks}
    except BadInputError:  # said by the check of the prompts
        return
    scaled = {name: sec * settings.harbor_agent_timeout_multiplier for name, sec in timeouts.items() if sec}
    late = {name: sec for name, sec in scaled.items() if sec >= settings.harbor_agent_call_timeout_sec}
    if late:
        longest = max(late, key=late.__getitem__)
        yield BadInputError(
            f"the agents of {len(late)} tasks may work longer than their trials",
            expected="agent timeout_sec x HARBOR_AGENT_TIMEOUT_MULTIPLIER < HARBOR_AGENT_CALL_TIMEOUT_SEC",
            found=f"{late[longest]:g} s for {longest}, and {settings.harbor_agent_call_timeout_sec:g} s",
            where=settings.tasks_dir / longest / "task.toml",
            # A trial also queues, builds its sandbox and runs the verifier.
            run=f"HARBOR_AGENT_CALL_TIMEOUT_SEC={1.25 * late[longest]:.0f}, or a smaller multiplier",
        )


def weights_to_start_from(settings: Settings) -> Iterator[BadInputError]:
    """LOAD_DIR, when set, holds a complete checkpoint of this engine and model."""
    try:
        lineage(settings)
    except BadInputError as error:
        yield error


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


def agent_server_port(settings: Settings) -> Iterator[BadInputError]:
    """The agent server's address can be bound, and its port, when it was asked for by number."""
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
    yield from _port_in_use(settings, "agent_server_port", host)


def session_server_port(settings: Settings) -> Iterator[BadInputError]:
    """So can the session server's."""
    yield from _port_in_use(settings, "session_server_port", LOOPBACK)


def _port_in_use(settings: Settings, name: str, host: str) -> Iterator[BadInputError]:
    port = getattr(settings, name)
    if port and not port_is_free(port, host):
        yield BadInputError(
            f"{name.upper()} is in use",
            expected="a free port, or another number",
            found=port,
            where=settings.source(name),
            run=f"ss -ltnp 'sport = :{port}'",
        )


INPUT: tuple[Check, ...] = (run_folder_is_new, runs_root_is_a_folder, prompts_have_tasks, deadlines)
HERE: dict[str, tuple[Check, ...]] = {
    "local": (
        weights_to_start_from,
        disk_space,
        temporary_folder,
        memory,
        agent_server_port,
        session_server_port,
    ),
    "miles": (*head_node.CHECKS, weights_to_start_from, agent_server_port),
}


def check(settings: Settings) -> None:
    """Runs every check. Raises BadInputError with all that was found."""
    _raise([*_findings(INPUT, settings), *here(settings)])


def check_input(settings: Settings) -> None:
    """The checks of INPUT. Raises BadInputError with all that was found."""
    _raise(_findings(INPUT, settings))


def here(settings: Settings) -> list[BadInputError]:
    """What on this machine would refuse a start."""
    return _findings(HERE[settings.engine], settings)


def _findings(checks: Sequence[Check], settings: Settings) -> list[BadInputError]:
    return [finding for one in checks for finding in one(settings)]


def _raise(findings: list[BadInputError]) -> None:
    if len(findings) == 1:
        raise findings[0]
    if findings:
        raise BadInputError("\n".join(str(finding) for finding in findings))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
