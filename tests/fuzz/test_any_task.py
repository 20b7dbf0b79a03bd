"""Whatever lies in a folder of tasks: it can be used, or an error names what can't."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing import ANY, TEXT, cut, ended, nearly, no_hang, text_of, tried
from hypothesis import example, given
from hypothesis import strategies as st

from recipe.harbor.dockerfile import Build, DockerfileError, read_dockerfile
from recipe.tasks.folders import BACKENDS

TASK = {
    "version": "1.0",
    "metadata": {"difficulty": "easy", "tags": ["a"], "keep_processes": True},
    "agent": {"timeout_sec": 60.0},
    "verifier": {"timeout_sec": 60.0, "env": {"A": "1"}},
    "environment": {
        "cpus": 1,
        "memory_mb": 512,
        "storage_mb": 1024,
        "gpus": 0,
        "network_mode": "no-network",
        "allow_internet": False,
        "docker_image": "debian:12",
    },
}
DOCKERFILE = b"""\
FROM debian:12
WORKDIR /app
ENV A=1 B="x y"
COPY --chmod=0755 data/ /app/data
RUN echo $A > \\
  /app/a
"""
FILES = {
    "task.toml": b'[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": b"Do it.\n",
    "environment/Dockerfile": DOCKERFILE,
    "environment/data/a.txt": b"a",
    "tests/test.sh": b"#!/bin/sh\n",
    "solution/solve.sh": b"#!/bin/sh\n",
}
RECORD = {"repository": "a/b", "revision": "0" * 40, "tasks": 1, "files": 6, "sha256": "0" * 64}
HUGE = b"[environment]\nmemory_mb = 1" + b"0" * 400
Place = Callable[[Path], object]  # puts something at a path


def toml_of(value: Any) -> str:
    """As TOML writes it in one line."""
    match value:
        case dict():
            pairs = (f"{json.dumps(key)} = {toml_of(of)}" for key, of in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(map(toml_of, value)) + "]"
        case float() if not math.isfinite(value):
            return str(value)
        case None:
            return "1979-05-27"
    return json.dumps(value)


def settings_of(value: Any) -> bytes:
    if not isinstance(value, dict):
        return toml_of(value).encode()
    return "\n".join(f"{json.dumps(key)} = {toml_of(of)}" for key, of in value.items()).encode()


def file(content: bytes) -> Place:
    return lambda path: path.write_bytes(content)


def link(target: str) -> Place:
    return lambda path: path.symlink_to(target)


PATHS = ["/app", "/", "..", ".", "data", "data/*", "**", "***", "[", "*.txt", "$A", "${A", "$$", "~", "\\"]
VALUES = ["A=1", "A", "=", '"', "#", "[]", "[[]]", "{}", "--chmod=0755", "--chmod=9", "--from=x", "<<E"]
ODD_WORDS = ["'x y'", '["a", "b"]', "[1, 2]", "# escape=`", "a" * 300, "[" * 3000]
WORDS = st.sampled_from([*PATHS, *VALUES, *ODD_WORDS]) | TEXT
LINES = st.tuples(
    st.sampled_from(["FROM", "WORKDIR", "ENV", "COPY", "RUN", "run", "ADD", "USER", "#", ""]) | TEXT,
    st.lists(WORDS, max_size=4),
).map(lambda line: " ".join([line[0], *line[1]]).encode(errors="surrogatepass"))
DOCKERFILES = cut(
    st.lists(LINES, max_size=5).flatmap(
        lambda lines: st.sampled_from([DOCKERFILE, b"FROM x\n", b""]).map(
            lambda start: start + b"\n".join(lines)
        )
    )
)
SETTINGS = cut(st.one_of(nearly(TASK), nearly(TASK), ANY).map(settings_of))
ODD = st.one_of(
    st.just(Path.mkdir),
    st.just(os.mkfifo),
    st.sampled_from(["nowhere", ".", "..", "/", "/etc/passwd", "instruction.md", "a" * 300]).map(link),
    st.binary(max_size=20).map(file),
)
PLACES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FILES, ODD),
        "task.toml": SETTINGS.map(file) | ODD,
        "environment/Dockerfile": DOCKERFILES.map(file) | ODD,
        "environment/docker-compose.yaml": ODD,
        "environment/.dockerignore": ODD,
        ".harborignore": ODD,
        "odd": ODD,
    },
)
NAMES = st.sampled_from(["task", "task", "task", "a b", "-x", "a..b", "\u00fc", "a\n", "x" * 200])


def fill(task: Path, places: dict[str, Place], left_out: set[str]) -> None:
    """A task that is right but for these `places`."""
    for path, put in ({path: file(content) for path, content in FILES.items()} | places).items():
        if path not in left_out:
            # What is to be a folder may be something else by now.
            with contextlib.suppress(OSError):
                (task / path).parent.mkdir(parents=True, exist_ok=True)
                put(task / path)


@given(
    name=NAMES,
    places=PLACES,
    left_out=st.sets(st.sampled_from(sorted(FILES)), max_size=2),
    record=st.none() | cut(st.one_of(nearly(RECORD), ANY).map(text_of)),
    backend=st.sampled_from([[], *(["--backend", name] for name in BACKENDS)]),
)
@example(name="task", places={}, left_out=set(), record=b"{}", backend=[])
@example(name="task", places={"task.toml": file(HUGE)}, left_out=set(), record=None, backend=[])
@example(name="task", places={}, left_out=set(), record=b"[" * 3000, backend=[])
@tried(40)
def test_any_folder_can_be_used_or_says_why_not(name, places, left_out, record, backend):
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder, "tasks")
        fill(tasks / name, places, left_out)
        if record is not None:
            (tasks / "fetched.json").write_bytes(record)
        output = ["--output", f"{folder}/prompts.jsonl"]
        for command, *options in (["check", *backend], ["build", *output, *backend], ["stats"]):
            code, _, told = ended("dataset", command, str(tasks), *options)
            assert code == 0 or (code == 2 and told.startswith("error: ") and folder in told), told


@given(DOCKERFILES)
@example(b"\xff")
@tried(200)
def test_any_dockerfile_is_followed_or_refused_by_its_line(content):
    with tempfile.TemporaryDirectory() as folder, no_hang():
        task = Path(folder)
        fill(task, {"environment/Dockerfile": file(content)}, set())
        path = task / "environment" / "Dockerfile"
        try:
            assert isinstance(read_dockerfile(path), Build)
        except DockerfileError as error:
            if not error.facts["where"].startswith(str(path)):
                raise
