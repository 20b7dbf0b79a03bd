"""The part of a task's Dockerfile that the local sandbox can follow; anything else is refused by its line.

So the same task directory also runs where images are built. FROM is ignored (a sandbox shows this machine's
/usr); WORKDIR, COPY from the context (with --chmod), ENV and RUN do what they do in Docker, except that RUN
has no network and nothing changes the system's folders.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from string import Template

from recipe.errors import RecipeError
from recipe.harbor.sandbox import ENVIRONMENT, WRITABLE
from recipe.untrusted import open_file

READ_ONLY = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix",
    "/proc",
    "/sbin",
    "/sys",
    "/usr",
)
ESCAPE = re.compile(r"#\s*escape\s*=", re.IGNORECASE)  # the one comment that changes what lines mean
HEREDOC = re.compile(r"<<-?[\"']?[A-Za-z_]")


class DockerfileError(RecipeError):
    """The local sandbox can't follow a line of a Dockerfile."""


@dataclass(frozen=True)
class Copy:
    """Files for `folder`: name there -> the file or folder on the host; `mode` replaces their own."""

    line: int
    folder: str
    members: dict[str, Path]
    mode: int | None


@dataclass(frozen=True)
class Run:
    """A shell command line, the folder that it runs in, and its variables."""

    line: int
    command: str
    folder: str
    environment: dict[str, str]


@dataclass
class Build:
    """What a Dockerfile asks for. `folders`: absolute paths that must exist and be writable."""

    path: Path
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def read_dockerfile(path: Path) -> Build:
    """Raises DockerfileError, which names the line."""
    build = Build(path)
    try:
        with open_file(path) as file:
            content = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DockerfileError("a Dockerfile can't be read", found=error, where=path) from None
    if path.with_name(".dockerignore").exists():
        raise DockerfileError("the local sandbox does not read .dockerignore", where=path.parent)
    for index, (number, text) in enumerate(_instructions(content)):
        word, rest = (*text.split(None, 1), "")[:2]
        try:
            _follow(build, word.upper(), rest, number, first=index == 0)
        except (ValueError, TypeError) as error:
            raise DockerfileError(
                f"the local sandbox can't follow this Dockerfile: {error}",
                found=text,
                where=f"{path}, line {number}",
            ) from error
    return build


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of each instruction: continued lines joined, comments and empty lines dropped."""
    start, joined = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or (stripped.startswith("#") and not ESCAPE.match(stripped)):
            continue
        start = start if joined else number
        if stripped.endswith("\\"):
            joined += stripped[:-1] + " "
        else:
            yield start, joined + stripped
            joined = ""
    if joined.strip():
        yield start, joined.strip()


def _follow(build: Build, word: str, rest: str, line: int, *, first: bool) -> None:
    if (word == "FROM") != first:
        raise ValueError("exactly one FROM, before everything else, is supported")
    if HEREDOC.search(rest):
        raise ValueError("here-documents are not supported")
    if word != "FROM":
        follow = FOLLOW.get(word)
        if follow is None:
            raise ValueError(f"{word} is not among FROM, {', '.join(FOLLOW)}")
        follow(build, rest, line)


def _workdir(build: Build, rest: str, _line: int) -> None:
    build.workdir = _absolute(build, _expanded(build, rest))
    _need(build, build.workdir)


def _env(build: Build, rest: str, _line: int) -> None:
    pairs = shlex.split(rest)
    if pairs and "=" not in pairs[0]:  # the old form: one name, and a value to the end of the line
        name, _, value = rest.partition(" ")
        pairs = [f"{name}={value.strip()}"]
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not NAME=VALUE")
        build.environment[name] = _expanded(build, value)


def _run(build: Build, rest: str, line: int) -> None:
    if rest.startswith("--"):
        raise ValueError("flags of RUN are not supported")
    command = shlex.join(json.loads(rest)) if rest.startswith("[") else rest
    build.steps.append(Run(line, command, build.workdir, dict(build.environment)))


def _copy(build: Build, rest: str, line: int) -> None:
    mode = None
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        if not (octal := re.fullmatch(r"--chmod=([0-7]{3,4})", flag)):
            raise ValueError(f"{flag} is not --chmod=<octal>")
        mode = int(octal[1], 8)
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    if len(words) < 2:
        raise ValueError("COPY needs a source and a destination")
    *patterns, target = (_expanded(build, word) for word in words)
    sources = [source for pattern in patterns for source in _sources(build.path.parent, pattern)]
    destination = _absolute(build, target)
    whole = target.endswith(("/", "/.")) or target == "." or len(sources) > 1 or sources[0].is_dir()
    if whole or destination in (*WRITABLE, *build.folders):
        folder, members = destination, _members(sources)
    else:
        folder, members = (
            str(PurePosixPath(destination).parent),
            {PurePosixPath(destination).name: sources[0]},
        )
    _need(build, folder)
    build.steps.append(Copy(line, folder, members, mode))


FOLLOW: dict[str, Callable[[Build, str, int], None]] = {
    "WORKDIR": _workdir,
    "COPY": _copy,
    "ENV": _env,
    "RUN": _run,
}


def _sources(context: Path, pattern: str) -> list[Path]:
    parts = [part for part in PurePosixPath(pattern).parts if part != "/"]
    if ".." in parts:
        raise ValueError(f"{pattern} leaves the build context")
    found = sorted(context.glob("/".join(parts))) if parts else [context]
    if not found:
        raise ValueError(f"{pattern} is not in {context}")
    return found


def _members(sources: list[Path]) -> dict[str, Path]:
    """A folder stands for its content, as in Docker."""
    return {
        member.name: member
        for source in sources
        for member in (source.iterdir() if source.is_dir() else [source])
    }


def _absolute(build: Build, path: str) -> str:
    joined = PurePosixPath(build.workdir) / path
    if ".." in joined.parts:
        raise ValueError(f"{path} contains '..'")
    return str(joined)


def _need(build: Build, folder: str) -> None:
    path = PurePosixPath(folder)
    if folder == "/" or any(path.is_relative_to(system) for system in READ_ONLY):
        raise ValueError(f"{folder} is read-only in the sandbox")
    build.folders.append(folder)


def _expanded(build: Build, text: str) -> str:
    """`text` with $NAME and ${NAME} of earlier ENV lines replaced."""
    try:
        return Template(text).substitute(ENVIRONMENT | build.environment)
    except KeyError as unknown:
        raise ValueError(f"no earlier ENV sets {unknown}") from unknown
