"""The agent's two tools: each command runs in the trial's sandbox, and the answer depends on nothing else.

A policy's mistake (a bad argument, a failing or slow command) becomes text for the policy. A sandbox that
cannot run a command at all is our failure: it ends the trial with an error.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult

from recipe.harbor.camel_library import FunctionTool
from recipe.harbor.trial_record import TrialRecord

DEFAULT_SECONDS = 60
MAX_SECONDS = 600  # a longer wait eats a trial that has tens of turns to go
KILL_SECONDS = 5  # a command that ignores SIGTERM is killed after this
BACKSTOP_SECONDS = 15  # after the command's own limit: for a daemon that outlives it and holds its output
MAX_OUTPUT = 4000  # characters, about 1,000 tokens: thirty such answers fit a sample of 32,768 tokens
MAX_COMMAND = 120_000  # bytes, quoted: Linux refuses an argument of 131,072
TIMED_OUT = 124  # what timeout(1) exits with


class SandboxLostError(BaseException):
    """The sandbox could not run a command. Not an Exception: ChatAgent tells the model about those."""


class SchemaTool(FunctionTool):
    """A tool whose schema is ours; FunctionTool would validate it anew at every turn."""

    @staticmethod
    def validate_openai_tool_schema(openai_tool_schema: dict[str, Any]) -> None:
        """Checked by the tests."""


class ShellTools:
    """The tools over one environment; `record` sums their time."""

    def __init__(self, environment: BaseEnvironment, record: TrialRecord) -> None:
        self._environment = environment
        self._record = record

    def tools(self) -> list[FunctionTool]:
        text = {"type": "string"}
        seconds = {"type": "integer", "description": f"seconds, default {DEFAULT_SECONDS}"}
        return [
            _tool(
                self.shell_exec,
                "Run a bash command; returns output and exit code.",
                ["command"],
                command=text,
                timeout=seconds,
            ),
            _tool(
                self.shell_write_content_to_file,
                "Write text to a file.",
                ["content", "file_path"],
                content=text,
                file_path=text,
            ),
        ]

    async def shell_exec(self, command: str, timeout: int = DEFAULT_SECONDS) -> str:  # noqa: ASYNC109
        """The output (stdout and stderr as they came), then `[exit N]` or `[timed out after N s]`."""
        seconds = _seconds(timeout)
        quoted = shlex.quote(_text(command, "command"))
        return await self._run(f"timeout -k {KILL_SECONDS} {seconds} bash -c {quoted} 2>&1", seconds)

    async def shell_write_content_to_file(self, content: str, file_path: str) -> str:
        """Writes `content` as it is, making missing folders; answers like shell_exec."""
        folder = shlex.quote(str(PurePosixPath(_text(file_path, "file_path")).parent))
        target = shlex.quote(file_path)
        write = f"mkdir -p -- {folder} && printf %s {shlex.quote(_text(content, 'content'))} > {target}"
        return await self._run(write, DEFAULT_SECONDS)

    async def _run(self, command: str, seconds: int) -> str:
        if len(command.encode()) > MAX_COMMAND:  # lone surrogates raise UnicodeEncodeError, a ValueError too
            raise ValueError(f"the command is longer than {MAX_COMMAND} bytes")
        with self._record.timed("env_execution_time_sum"):
            result = await self._exec(command, seconds + BACKSTOP_SECONDS)
        output = shortened((result.stdout or "") + (result.stderr or ""))
        timed_out = result.return_code == TIMED_OUT
        status = f"[timed out after {seconds} s]" if timed_out else f"[exit {result.return_code}]"
        return f"{output}\n{status}" if output else status

    async def _exec(self, command: str, seconds: int) -> ExecResult:
        try:
            return await self._environment.exec(command, timeout_sec=seconds)
        except Exception as error:
            # Harbor's backends report their time limit as TimeoutError, as RuntimeError or as exit code 124.
            if isinstance(error, TimeoutError) or str(error).startswith("Command timed out"):
                return ExecResult(return_code=TIMED_OUT)
            raise SandboxLostError(f"{type(error).__name__}: {error}") from error


def shortened(output: str) -> str:
    """`output` without trailing newlines; of more than MAX_OUTPUT characters, the middle is left out."""
    output = output.rstrip("\n")
    if len(output) <= MAX_OUTPUT:
        return output
    half = MAX_OUTPUT // 2
    return f"{output[:half]}\n[{len(output) - 2 * half} characters left out]\n{output[-half:]}"


def _tool(function: Any, description: str, required: list[str], **properties: dict[str, str]) -> SchemaTool:
    parameters = {"type": "object", "properties": properties, "required": required}
    declared = {"name": function.__name__, "description": description, "parameters": parameters}
    return SchemaTool(function, {"type": "function", "function": declared})


def _text(value: object, name: str) -> str:
    """`value` when a shell can take it as an argument; raises ValueError, which the model reads."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{name} must be text")
    return value


def _seconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("timeout must be a whole number of seconds")  # noqa: TRY004 (what the model reads)
    return max(1, min(value, MAX_SECONDS))
