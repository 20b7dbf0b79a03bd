"""Asks git; the answer is a process's outcome, never an exception."""

from __future__ import annotations

import subprocess
from pathlib import Path

from recipe.settings import child_environment

# A commit of SGLang without its trees is a few kB; a slow server may still need a while to look for it.
SECONDS = 120
TIMED_OUT = 124  # as timeout(1) has it
# Set while git runs a hook: they would point each call at the hook's repository.
HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs git in `folder`, without asking for a password. A call of more than SECONDS exits with TIMED_OUT."""
    env = child_environment(GIT_TERMINAL_PROMPT="0", LC_ALL="C")
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in env.items() if name not in HOOK_VARIABLES},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, TIMED_OUT, "", f"git did not answer in {SECONDS} s")
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", "git is not installed")


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "(no message)")
