"""Asks git and other programs; the answer is a process's outcome, never an exception."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from recipe.given import child_environment

# A commit of SGLang without its trees is a few kB; a slow server may still need a while to look for it.
SECONDS = 120
TIMED_OUT = 124  # as timeout(1) has it
NOT_STARTED = 127  # as a shell has it


def ask(
    command: Sequence[str], *, folder: Path, seconds: float = SECONDS, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `command` in `folder`, without input. A call of more than `seconds` ends with TIMED_OUT, and with it
    all that it started.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=child_environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",  # names of files are bytes
            start_new_session=True,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, NOT_STARTED, "", f"{command[0]}: {error.strerror}")
    with process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"{command[0]} did not answer in {seconds:g} s"
            return subprocess.CompletedProcess(command, TIMED_OUT, "", late)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


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
