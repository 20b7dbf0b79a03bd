"""What must hold before a run, as far as it needs no cluster: each check looks at one thing and changes nothing."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from recipe.doctor import accounts, head_node, quotas
from recipe.doctor.lineage import lineage
from recipe.doctor.results import Check, Result, UnaskedError, guarded, require, skipped
from recipe.errors import BadInputError
from recipe.harbor import backends
from recipe.process import LOOPBACK, free_port, port_is_free
from recipe.run.folder import existing_part
from recipe.settings import Settings
from recipe.tasks.prompts import Row, agent_timeout_sec, build_rows, check_tasks_exist, read_prompt_data
from recipe.watch.alarms import stopping

GIB = 2**30
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - only tried
# A checkpoint is 52 MB, trials and samples of ten rollouts about 100 MB.
RUN_FOLDER_BYTES = 1 * GIB
# Ray's logs, what its object store spills (256 MB at most), the sandboxes' files.
TEMPORARY_BYTES = 1 * GIB
# All processes of a run together stay below it.
MEMORY_BYTES = 6 * GIB
# A socket's path has at most 107 bytes, and Ray adds 77 to the folder of temporary files.
TEMPORARY_PATH_BYTES = 30


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


def stop_on_names_alarms(settings: Settings) -> Iterator[BadInputError]:
    """STOP_ON names alarms."""
    try:
        stopping(settings.stop_on)
    except BadInputError as error:
        yield error


def engine_takes_it(settings: Settings) -> Iterator[BadInputError]:
    """The engine takes the job: its sources know every flag, variable and plugin; the tiny model its tasks."""
    from recipe.run.engine import check_engine

    def rows() -> list[Row]:
        with contextlib.suppress(BadInputError):  # said by the check of the prompts
            return prompt_rows(settings)
        return []

    try:
        check_engine(settings, rows)
    except BadInputError as error:
        yield error


def sandbox_settings(settings: Settings) -> Iterator[BadInputError]:
    """The settings of SANDBOX_BACKEND go together."""
    yield from backends.given(settings)


def sandbox_backend(settings: Settings) -> Iterator[BadInputError]:
    """SANDBOX_BACKEND can be used from here, with the credentials that were given."""
    yield from backends.here(settings)


def sandbox_quota(settings: Settings) -> Iterator[BadInputError]:
    """AGENT_MAX_CONCURRENT sandboxes fit what the backend's account may have, together and each."""
    asked, rooms = _demand(settings), quotas.room(settings)
    if not rooms:
        told = asked or "the tasks can't be read"
        raise UnaskedError(f"{settings.sandbox_backend} does not tell its limits here: {told}")
    if asked:
        yield from quotas.shortages(asked, rooms)


def _demand(settings: Settings) -> quotas.Demand | None:
    try:
        tasks = {settings.tasks_dir / row.instance_id for row in prompt_rows(settings)}
        return quotas.demand(settings, tasks)
    except BadInputError:  # said by the check of the prompts
        return None


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
    yield from _ports_in_use(settings, "agent_server_port", host)


def session_server_ports(settings: Settings) -> Iterator[BadInputError]:
    """The ports of the session servers can be bound."""
    on_cluster = settings.engine == "miles"
    host, count = (EVERY_INTERFACE, settings.session_servers) if on_cluster else (LOOPBACK, 1)
    yield from _ports_in_use(settings, "session_server_port", host, count)


def _ports_in_use(settings: Settings, name: str, host: str, count: int = 1) -> Iterator[BadInputError]:
    first = getattr(settings, name)
    taken = [port for port in range(first, first + count) if port and not port_is_free(port, host)]
    if taken:
        yield BadInputError(
            f"{name.upper()} is in use",
            expected=f"free: {first} to {first + count - 1}"
            if count > 1
            else "a free port, or another number",
            found=", ".join(map(str, taken)),
            where=settings.source(name),
            run=f"ss -ltnp 'sport = :{taken[0]}'",
        )


def look(
    settings: Settings, only: Collection[str] = (), skip: Collection[str] = (), *, here: bool = True
) -> list[Result]:
    """A result for each chosen check; without `here`, those of a cluster's head node are skipped."""
    of_engine = [check for check in CHECKS if check.engine in ("", settings.engine)]
    return [
        guarded(check.name, partial(_result, check, settings, skip, here=here))
        for check in of_engine
        if not only or check.name in only
    ]


def _result(check: Check, settings: Settings, skip: Collection[str], *, here: bool) -> Result:
    reason = "as asked" if check.name in skip else check.unasked(settings)
    if not reason and check.place == "here" and not here:
        reason = "it is about the head node"
    return skipped(check.name, reason) if reason else check.look(settings)


def _engine_unasked(settings: Settings) -> str:
    there = settings.engine == "local" or (settings.miles_dir / "train.py").is_file()
    return "" if there else f"there is no Miles to read in {settings.miles_dir}"


def _backend_unasked(settings: Settings) -> str:
    if settings.sandbox_backend == "local":
        return "bubblewrap is tried with the tasks, at the start"
    return backends.note(settings) or ""


CHECKS = (
    Check("run folder", run_folder_is_new, "two runs write into one folder", "input"),
    Check("runs root", runs_root_is_a_folder, "nothing can be written", "input"),
    Check("tasks", prompts_have_tasks, "prompts without a task are skipped in silence", "input"),
    Check("deadlines", deadlines, "trials are cut off ungraded, and their groups dropped", "input"),
    Check("alarms", stop_on_names_alarms, "a run goes on that an alarm was to stop", "input"),
    Check("W&B key", accounts.wandb_key, "the job ends when it logs in", "account", "miles",
          accounts.wandb_key_unasked),
    Check("sandbox account", accounts.sandbox_account, "no sandbox starts: every group drops", "account",
          unasked=accounts.sandbox_account_unasked),
    Check("sandbox quota", sandbox_quota, "sandboxes are refused in the middle of a rollout", "account"),
    Check("HF token", accounts.hub_token, "nothing can be downloaded or uploaded", "account", "miles"),
    Check("sandbox settings", sandbox_settings, "no sandbox starts: every group drops", "input"),
    Check("sandbox backend", sandbox_backend, "no sandbox starts: every group drops", unasked=_backend_unasked),
    Check("weights", weights_to_start_from, "training goes on from other weights than meant"),
    Check("disk", disk_space, "the disk is full in the middle of a save", engine="local"),
    Check("temporary folder", temporary_folder, "Ray's sockets can't be made", engine="local"),
    Check("free memory", memory, "the kernel ends a process of the run", engine="local"),
    Check("model", head_node.model, "SGLang or Megatron finds no weights", engine="miles"),
    Check("checkouts", head_node.checkouts, "train.py is not there", engine="miles"),
    Check("engine", engine_takes_it, "a flag is refused after the GPUs were taken, or ignored",
          unasked=_engine_unasked),
    Check("agent server's port", agent_server_port, "the agent server can't listen"),
    Check("session servers' ports", session_server_ports, "a session server can't listen"),
)  # fmt: skip


def check(settings: Settings, skip: Collection[str] = ()) -> list[str]:
    """Runs every check but those of `skip`, which it returns. Raises BadInputError with all that was found."""
    return require(look(settings, skip=skip))


def check_input(settings: Settings) -> None:
    """The checks of what was given, which hold on any machine. Raises BadInputError with all that was found."""
    require(check.look(settings) for check in CHECKS if check.place == "input")


def here(settings: Settings) -> list[BadInputError]:
    """What on this machine would refuse a start."""
    of_engine = [one for one in CHECKS if one.place == "here" and one.engine in ("", settings.engine)]
    return [finding for one in of_engine for finding in one.findings(settings)]


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
