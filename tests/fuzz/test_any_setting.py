"""Whatever is given as a setting, and wherever: a command ends well or with an error of ours, and writes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from fuzzing import TEXT, cut, ended, tried
from hypothesis import example, given
from hypothesis import strategies as st

from recipe.given import NOT_AT_THE_PINS
from recipe.settings import NAMES, Settings

SMOKE_TASKS = str(Path(__file__).parents[2] / "recipe" / "tasks" / "smoke")
CLUSTER = ["HEAD_IP=10.0.0.1", f"TASKS_DIR={SMOKE_TASKS}", "SANDBOX_BACKEND=docker"]
# None of them starts or writes anything.
COMMANDS = (
    ["smoke", "--dry-run"],
    ["smoke", "--dry-run", "--json"],
    ["smoke", "--dry-run", "AGENT=terminus-2"],
    ["learn", "--dry-run"],
    ["smoke", "--dry-run", "ENGINE=miles", *CLUSTER],
    ["train-camel", "--dry-run", *CLUSTER],
    ["train-terminus2", "--dry-run", "--json", *CLUSTER],
    ["plan"],
    ["plan", "--json"],
    ["prepare", "--dry-run"],
    ["contract"],
)
# What the system hands to a program: no text with a NUL, and bytes that are no UTF-8 as half pairs of surrogates.
WORDS = (TEXT.map(lambda text: text.encode(errors="replace")) | st.binary(max_size=8)).map(
    lambda raw: os.fsdecode(raw.replace(b"\0", b""))
)
NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "8",
    "40",
    "100000",
    "0.5",
    "1_0",
    "0x10",
    "\u0661",
    "9" * 30,
    "9" * 400,
    "9" * 5000,
]
FLOATS = ["1e5", "1e-300", "1e400", "nan", "inf", "-inf"]
CHOICES = ["true", "no", "none", "local", "docker", "miles", "camel", "terminus-2", "gke", "modal", "kl,kl"]
PATHS = [
    ".",
    "/",
    "tasks",
    "nowhere",
    "file",
    "pipe",
    "loop",
    "/proc",
    "~no-such-user",
    "\u00fc/\u202e",
]
ADDRESSES = ["10.0.0.1", "0.0.0.0", "::1", "localhost", "http://a:1", "http://u:p@a:99999"]
ODD = ["a" * 300, "[" * 3000, "'", '"', "$X", "${", "[/b]", '{"a": [1, {"b": NaN}]}', "--lr", "--lr 1"]
OF_KIND = {
    "Path": PATHS,
    "int": NUMBERS,
    "float": FLOATS,
    "bool": CHOICES,
    "Literal": CHOICES,
    "str": ADDRESSES,
}
VALUES = st.sampled_from([*NUMBERS, *FLOATS, *CHOICES, *PATHS, *ADDRESSES, *ODD]) | WORDS


def values_of(name: str) -> st.SearchStrategy[str]:
    """Mostly such as a setting of this type might have, so that some get past its own check."""
    kind = str(Settings.model_fields[name.lower()].annotation)
    fitting = [value for word, values in OF_KIND.items() if word in kind for value in values]
    return st.sampled_from(fitting or ODD) | VALUES


GIVEN = st.lists(
    st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), values_of(name))), max_size=3
).map(dict)
ODD_WORDS = st.sampled_from(
    ["LRR=1", "lr=1", "=", "", "PATH=1", "--help", "--help=1", "-x", *NOT_AT_THE_PINS]
)
ARGUMENTS = GIVEN.map(lambda given: [f"{name}={value}" for name, value in given.items()])
LINES = ARGUMENTS.map("\n".join) | ODD_WORDS | TEXT
FILES = cut(st.lists(LINES, max_size=2).map(lambda lines: "\n".join(lines).encode(errors="surrogatepass")))
CLUSTER_FILES = cut(
    st.sampled_from(
        [
            b"head: {ip: 10.0.0.1}\nworkers: [{ip: 10.0.0.2}]\ngpus_per_node: 8\n",
            b"[" * 3000,
            b"&a [*a]",
            b"head: !!python/name:os.system x",
        ]
    )
    | FILES
)


def held(folder: Path) -> dict[Path, bytes | None]:
    """What is in it, with the content of each file: reading a pipe would not end."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def check(words: list[str], environment: Mapping[str, str] = {}, files: Mapping[str, bytes] = {}) -> None:
    """Runs `recipe` in a folder with these files, in which it is to write nothing."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        (folder / "tasks" / "t").mkdir(parents=True)
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "pipe")
        for file, content in files.items():
            (folder / file).write_bytes(content)
        before = held(folder)
        patch.chdir(folder)
        for variable, value in environment.items():
            patch.setenv(variable, value)
        code, _, told = ended(*words)
        assert not held(folder).items() ^ before.items()
    assert code in (0, 2), told
    assert told.startswith(("error: ", "Usage: ", "╭─ Error")) if code else not told, told


@given(st.sampled_from(COMMANDS), ARGUMENTS, ODD_WORDS | WORDS | st.none())
@tried(40)
def test_any_argument_is_taken_or_refused(command, arguments, odd):
    check([*command, *arguments, *([] if odd is None else [odd])])


@given(st.sampled_from(COMMANDS), GIVEN, st.none() | VALUES)
@example(["plan"], {"CLUSTER_CONFIG": "pipe"}, None)
@example(["plan"], {"ENV_FILE": "pipe"}, None)
@example(["plan"], {"RUNS_ROOT": "~no-such-user"}, None)
@example(["plan"], {"AGENT_MAX_CONCURRENT": "9" * 400}, None)
@tried(40)
def test_any_variable_is_taken_or_refused(command, environment, of_make):
    check(list(command), environment | ({"MAKE_VARIABLES": of_make} if of_make else {}))


@given(st.sampled_from(COMMANDS), FILES, st.none() | CLUSTER_FILES)
@tried(40)
def test_any_file_of_settings_is_taken_or_refused(command, lines, cluster):
    words = [] if cluster is None else ["CLUSTER_CONFIG=cluster.yaml"]
    check([*command, *words], files={".env": lines, "cluster.yaml": cluster or b"", "file": lines})
