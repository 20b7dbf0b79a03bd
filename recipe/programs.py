"""Asks git and other programs; the answer is a process's outcome, never an exception."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from recipe.given import child_environment

# A commit of SGLang without its trees is a few kB; a slow server may still need a while to look for it.
SECONDS = 120
TIMED_OUT = 124  # as timeout(1) has it
TOO_MUCH = 125
NOT_STARTED = 127  # as a shell has it
# The JSON of some thousand pods; more is a fault of the program, and would be held in memory several times.
MOST_BYTES = 64 * 2**20
LOOK_SECONDS = 0.2  # between two looks at the size: a disk takes some 100 MB in that time


def ask(
    command: Sequence[str], *, folder: Path, seconds: float = SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `command` in `folder`, without input. A call of more than `seconds` ends with TIMED_OUT, one that writes
    more than MOST_BYTES with TOO_MUCH, and each with all that it started, but for a daemon in a session of its own.
    """
    with contextlib.ExitStack() as held:
        try:
            # Files, since a pipe has no end while such a daemon holds it. Names of files are bytes.
            output, errors = (
                held.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape"))
                for _ in range(2)
            )
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=child_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return subprocess.CompletedProcess(command, NOT_STARTED, "", f"{command[0]}: {error.strerror}")
        try:
            code, why = _ended(process, [output, errors], seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if why:
            return subprocess.CompletedProcess(command, code, "", f"{command[0]} {why}")
        output.seek(0), errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(MOST_BYTES), errors.read(MOST_BYTES))


def _ended(process: subprocess.Popen[bytes], files: list[IO[str]], seconds: float) -> tuple[int, str]:
    """Its code, and why it has to be ended where it has not ended by itself."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(LOOK_SECONDS, max(left, 0)))
        if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in files):
            return TOO_MUCH, f"wrote more than {MOST_BYTES >> 20} MiB"
        if process.returncode is not None:
            return process.returncode, ""
        if left <= 0:
            return TIMED_OUT, f"did not answer in {seconds:g} s"


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs git in `folder`, without asking for a password."""
    return ask(["git", "-C", str(folder), *arguments], folder=Path("/"), GIT_TERMINAL_PROMPT="0", LC_ALL="C")


def git_line(folder: Path, *arguments: str) -> str:
    """The same call for a shell."""
    return shlex.join(["git", "-C", str(folder), *arguments])


def last_line(text: str) -> str:
    """The last line that tells an error, else the last that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error:", "fatal:"))]
    return (errors or lines or ["(no message)"])[-1]
