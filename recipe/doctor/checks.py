"""What must hold before a run, as far as it needs no cluster: each check looks at one thing and changes nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from recipe.doctor import accounts
from recipe.doctor.lineage import TRACKER, lineage
from recipe.doctor.results import Result, UnaskedError, failed, guarded, require
from recipe.errors import BadInputError, RecipeError
from recipe.harbor import backends
from recipe.process import LOOPBACK, free_port, port_is_free
from recipe.resolve import NOT_NEEDED
from recipe.run.folder import existing_part
from recipe.settings import Settings
from recipe.tasks.prompts import Row, agent_timeout_sec, build_rows, check_tasks_exist, read_prompt_data
from recipe.watch.alarms import stopping
from recipe.watch.live import host_memory

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


class Prompts:
    """The prompt rows of a start, read once for all that look at them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def rows(self) -> list[Row]:
        """Those of PROMPT_DATA; without it, one for each task of TASKS_DIR. Raises BadInputError."""
        settings = self._settings
        if settings.builds_prompt_data:
            return build_rows(settings.tasks_dir, settings.agent, settings.sandbox_backend)
        # A pipe would be waited for, and could be read once only.
        if settings.prompt_data.exists() and not settings.prompt_data.is_file():
            raise BadInputError(
                "PROMPT_DATA is no regular file", expected="JSONL", found=settings.prompt_data
            )
        return read_prompt_data(settings.prompt_data)

    @cached_property
    def usable(self) -> list[Row]:
        """The same, all of whose tasks can be used. Raises BadInputError."""
        settings = self._settings
        if settings.source("tasks_dir") == NOT_NEEDED:
            meaning = Settings.model_fields["tasks_dir"].description
            raise BadInputError("TASKS_DIR is not set", expected=meaning)
        if not settings.tasks_dir.is_dir():
            raise BadInputError("the folder of TASKS_DIR is missing", found=settings.tasks_dir)
        if not settings.builds_prompt_data:
            check_tasks_exist(self.rows, settings.tasks_dir, settings.sandbox_backend)
        return self.rows

    def known(self) -> list[Row]:
        """The same for the checks of something else. Raises UnaskedError where the check of the tasks fails."""
        try:
            return self.usable
        except BadInputError:
            raise UnaskedError("the tasks can't be read") from None


@dataclass(frozen=True)
class Check:
    """One thing that must hold. `findings` yields what is wrong, or raises it; UnaskedError where nobody can tell.

    It may be any function that refuses; only what a generator yields is looked at.
    `place`: `input` is about what was given, `account` asks a service, `here` is about the launcher's machine.
    """

    name: str
    expected: str
    findings: Callable[[Settings, Prompts], object]
    symptom: str
    place: Literal["input", "account", "here"] = "here"
    engine: str = ""  # the only one that it is about


def run_folder_is_new(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    path = settings.runs_root / settings.run_name
    if path.exists():
        yield BadInputError(
            "the run folder is in use",
            expected="a new RUN_NAME",
            found=path,
            run="the same command without RUN_NAME, which takes a name made of the time",
        )


def runs_root_is_a_folder(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    root = settings.runs_root
    # A link to nothing is in the way as well.
    there = next(part for part in (root, *root.parents) if os.path.lexists(part))
    if not there.is_dir():
        kind = "a link that leads nowhere" if there.is_symlink() and not there.exists() else "a file"
        yield BadInputError("RUNS_ROOT can't be a folder", found=f"{there} is {kind}", where=root)


def deadlines(settings: Settings, prompts: Prompts) -> Iterator[BadInputError]:
    timeouts = {
        row.instance_id: agent_timeout_sec(settings.tasks_dir / row.instance_id) for row in prompts.known()
    }
    scaled = {name: sec * settings.harbor_agent_timeout_multiplier for name, sec in timeouts.items() if sec}
    late = {name: sec for name, sec in scaled.items() if sec >= settings.harbor_agent_call_timeout_sec}
    if late:
        longest = min(late, key=lambda name: (-late[name], name))
        yield BadInputError(
            f"the agents of {len(late)} tasks may work longer than their trials",
            expected="agent timeout_sec x HARBOR_AGENT_TIMEOUT_MULTIPLIER < HARBOR_AGENT_CALL_TIMEOUT_SEC",
            found=f"{late[longest]:g} s for {longest}, and {settings.harbor_agent_call_timeout_sec:g} s",
            where=settings.tasks_dir / longest / "task.toml",
            # A trial also queues, builds its sandbox and runs the verifier.
            run=f"HARBOR_AGENT_CALL_TIMEOUT_SEC={1.25 * late[longest]:.0f}, or a smaller multiplier",
        )


def sandbox_backend(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    if settings.sandbox_backend == "local":
        raise UnaskedError("bubblewrap is tried with the tasks, at the start")
    if unchecked := backends.note(settings):
        raise UnaskedError(unchecked)
    return backends.here(settings)


def disk_space(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    needed = {settings.runs_root: RUN_FOLDER_BYTES, Path(tempfile.gettempdir()): TEMPORARY_BYTES}
    for path, wanted in needed.items():
        existing = existing_part(path)
        free = shutil.disk_usage(existing).free
        if free < wanted:
            yield BadInputError(
                "the disk is nearly full", expected=_gib(wanted), found=f"{_gib(free)} free", where=existing
            )


def temporary_folder(_settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    path = tempfile.gettempdir()
    if len(path.encode()) > TEMPORARY_PATH_BYTES:
        yield BadInputError(
            "the path of the folder of temporary files is too long for Ray's sockets",
            expected=f"at most {TEMPORARY_PATH_BYTES} bytes",
            found=path,
            run="the same command with TMPDIR=/tmp before it",
        )


def memory(_settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    available = host_memory()["MemAvailable"]
    if available < MEMORY_BYTES:
        yield BadInputError(
            "too little memory", expected=_gib(MEMORY_BYTES), found=f"{_gib(available)} available"
        )


def model(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    parts = {"model_dir": "config.json", "torch_dist_dir": TRACKER}
    if settings.load_dir == settings.torch_dist_dir:  # what is loaded is looked at more closely
        del parts["torch_dist_dir"]
    yield from _absent(settings, parts, "holds no model", "make prepare")


def checkouts(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
    parts = {
        "miles_dir": "train.py",
        "sglang_dir": "python/sglang/__init__.py",
        "megatron_path": "megatron/core/__init__.py",
    }
    image = "start in the recipe's image: recipe container start"
    yield from _absent(settings, parts, "is no such checkout", image)


def _absent(settings: Settings, parts: Mapping[str, str], problem: str, run: str) -> Iterator[BadInputError]:
    """The folders, by their settings, that lack the file by which they are known."""
    for name, part in parts.items():
        folder = getattr(settings, name)
        if not (folder / part).is_file():
            where = f"{folder} ({settings.source(name)})"
            yield BadInputError(
                f"{name.upper()} {problem}", expected=part, found="no such file", where=where, run=run
            )


def engine_takes_it(settings: Settings, prompts: Prompts) -> None:
    from recipe.run.engine import check_engine

    if settings.engine == "miles" and not (settings.miles_dir / "train.py").is_file():
        raise UnaskedError(f"there is no Miles to read in {settings.miles_dir}")
    check_engine(settings, prompts.known)


def agent_server_port(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
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


def session_server_ports(settings: Settings, _prompts: Prompts) -> Iterator[BadInputError]:
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


CHECKS = (
    Check("run folder", "A run never writes into a folder that is there already", run_folder_is_new,
          "two runs write into one folder", "input"),
    Check("runs root", "RUNS_ROOT is a folder or can become one", runs_root_is_a_folder,
          "nothing can be written", "input"),
    Check("tasks", "Every prompt row is well-formed and names a task directory", lambda _, prompts: prompts.usable,
          "prompts without a task are skipped in silence", "input"),
    Check("deadlines", "A task's agent must be stopped by its own time-out, which is graded, before its whole trial "
          "is given up", deadlines, "trials are cut off ungraded, and their groups dropped", "input"),
    Check("alarms", "STOP_ON names alarms", lambda s, _: stopping(s.stop_on),
          "a run goes on that an alarm was to stop", "input"),
    Check("W&B key", "WANDB_API_KEY, when given, has the form of a key", accounts.wandb_key,
          "the job ends when it logs in", "account", "miles"),
    Check("sandbox account", "The backend's service takes the credentials", accounts.sandbox_account,
          "no sandbox starts: every group drops", "account"),
    Check("sandbox quota", "AGENT_MAX_CONCURRENT sandboxes fit what the backend's account may have, together and each",
          lambda s, prompts: accounts.shortages(s, {s.tasks_dir / row.instance_id for row in prompts.known()}),
          "sandboxes are refused in the middle of a rollout", "account"),
    Check("HF token", "Hugging Face knows whose token HF_TOKEN is", accounts.hub_token,
          "nothing can be downloaded or uploaded", "account", "miles"),
    Check("sandbox settings", "The settings of SANDBOX_BACKEND go together", lambda s, _: backends.given(s),
          "no sandbox starts: every group drops", "input"),
    Check("sandbox backend", "SANDBOX_BACKEND can be used from here, with the credentials that were given",
          sandbox_backend, "no sandbox starts: every group drops"),
    Check("weights", "LOAD_DIR, when set, holds a complete checkpoint of this engine and model",
          lambda s, _: lineage(s), "training goes on from other weights than meant"),
    Check("disk", "The run folder and the folder of temporary files have room for a run", disk_space,
          "the disk is full in the middle of a save", engine="local"),
    Check("temporary folder", "The path of the folder of temporary files leaves room for the names of Ray's sockets",
          temporary_folder, "Ray's sockets can't be made", engine="local"),
    Check("free memory", "Enough memory is free or can be made free", memory,
          "the kernel ends a process of the run", engine="local"),
    Check("model", "The Hugging Face checkpoint and its conversion are there", model,
          "SGLang or Megatron finds no weights", engine="miles"),
    Check("checkouts", "The sources that the job runs from are there", checkouts, "train.py is not there",
          engine="miles"),
    Check("engine", "The engine takes the job: its sources know every flag, variable and plugin; the tiny model its "
          "tasks", engine_takes_it, "a flag is refused after the GPUs were taken, or ignored"),
    Check("agent server's port", "The agent server's address can be bound, and its port, when it was asked for by "
          "number", agent_server_port, "the agent server can't listen"),
    Check("session servers' ports", "The ports of the session servers can be bound", session_server_ports,
          "a session server can't listen"),
)  # fmt: skip


def look(
    settings: Settings, only: Collection[str] = (), skip: Collection[str] = (), *, here: bool = True,
    prompts: Prompts | None = None,
) -> list[Result]:  # fmt: skip
    """A result for each chosen check; without `here`, those of a cluster's head node are skipped."""
    prompts, results = prompts or Prompts(settings), []
    for check in CHECKS:
        if check.engine not in ("", settings.engine) or (only and check.name not in only):
            continue
        if check.name in skip:
            results.append(Result(check.name, "skip", "as asked"))
        elif check.place == "here" and not here:
            results.append(Result(check.name, "skip", "it is about the head node"))
        else:
            results.append(guarded(check.name, partial(_result, check, settings, prompts), check.expected))
    return results


def _result(check: Check, settings: Settings, prompts: Prompts) -> Result:
    found = check.findings(settings, prompts)
    if isinstance(found, Iterator) and (errors := list(found)):
        return failed(check.name, errors, check.expected)
    return Result(check.name, "ok", "so it is", check.expected)


def check(settings: Settings, skip: Collection[str] = ()) -> list[Row]:
    """Runs every check but those of `skip`; the prompt rows. Raises BadInputError with all that was found."""
    prompts = Prompts(settings)
    require(look(settings, skip=skip, prompts=prompts))
    return prompts.rows


def check_input(settings: Settings) -> None:
    """The checks of what was given, which hold on any machine, but those of SKIP_CHECKS.

    Raises BadInputError with all that was found.
    """
    require(_look_at("input", settings))


def here(settings: Settings) -> list[RecipeError]:
    """What on this machine would refuse a start, with the checks of SKIP_CHECKS left out as there."""
    return [error for result in _look_at("here", settings) for error in result.errors]


def _look_at(place: str, settings: Settings) -> list[Result]:
    return look(settings, [one.name for one in CHECKS if one.place == place], settings.skipped_checks)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
