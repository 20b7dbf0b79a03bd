"""Whether anybody reads an environment variable that the job sets, and where: told from source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract.source import Source, UnparsableError, parse
from recipe.engines.miles.environment import RUN_MARK

# Functions of recipe/plugins/environment.py; any other function that reads has "env" in its name.
OWN_READERS = ("required", "optional")
WRITERS = ("set", "put", "del", "unset")


class Elsewhere(NamedTuple):
    """Who reads the variables that match, though no source of it is here."""

    names: str
    reader: str
    why: str


ELSEWHERE = (
    Elsewhere("NCCL_.*", "NCCL", "a compiled library in the image"),
    Elsewhere("GLOO_SOCKET_IFNAME", "PyTorch's Gloo", "a compiled library in the image"),
    Elsewhere("CUDA_.*", "the CUDA driver", "a compiled library in the image"),
    Elsewhere("RAY_.*", "Ray", "its compiled core, and its package in the image"),
    Elsewhere("TORCHINDUCTOR_CACHE_DIR", "PyTorch", "its package in the image"),
    Elsewhere("PYTHON(PATH|UNBUFFERED)", "Python", "the interpreter itself"),
    Elsewhere("MASTER_ADDR", "PyTorch", "its package in the image"),
    Elsewhere("(no|http|https)_proxy", "every HTTP client", "packages in the image"),
    Elsewhere("NETRC|WANDB_.*", "Weights & Biases and its HTTP client", "packages in the image"),
    Elsewhere("SPT_NOENV", "setproctitle", "a compiled library in the image"),
    Elsewhere(RUN_MARK, "this launcher", "it looks for it among the processes of a node"),
)
# Set by the reference's runs, and read in no public version of Miles, Megatron or SGLang that we found.
DOUBTFUL = ("SGLANG_SERVER_ENGINE_ROLLOUT_RETURN_LOGPROB",)


def lines(
    names: Iterable[str], folders: list[tuple[Source, Path]], missing: Sequence[str] = ()
) -> Iterator[Line]:
    """One line a variable, and one for each file that is no Python. `folders` are searched in order; a variable
    that nobody reads there is not judged when sources are `missing`.
    """
    names = list(names)
    found: dict[str, str] = {}
    for source, folder in folders:
        for path in _files(folder, [name for name in names if name not in found]):
            try:
                for name, line in _reads(path, names):
                    found.setdefault(name, source.where(path, line))
            except UnparsableError as error:
                yield Line("DRIFT", "a source file", {**error.facts, "run": "make pins-check"})
    for name in names:
        yield _line(name, found.get(name), missing)


def _line(name: str, where: str | None, missing: Sequence[str]) -> Line:
    label = f"variable {name}"
    if where is not None:
        return Line("ok", label, {"expected": "a reader", "found": "read", "where": where})
    for one in ELSEWHERE:
        if re.fullmatch(one.names, name):
            return Line(
                "ok", label, {"expected": "a reader", "found": f"read by {one.reader}", "where": one.why}
            )
    if name in DOUBTFUL:
        return skip(label, "the reference sets it, but no source here reads it")
    if missing:
        return skip(label, f"there is no {' and no '.join(missing)} that may read it")
    return drift(
        label,
        expected="a reader",
        found="nobody reads it",
        where="recipe/engines/miles/environment.py",
        run="make pins-check, or leave it out",
    )


def _files(folder: Path, names: list[str]) -> Iterator[Path]:
    """The files below `folder` that have one of the names in their text; tests are no readers."""
    if not names:
        return
    pattern = re.compile(rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb")\b")
    for path in sorted(folder.rglob("*.py")):
        if not {"test", "tests"} & set(path.relative_to(folder).parts) and pattern.search(path.read_bytes()):
            yield path


def _reads(path: Path, names: list[str]) -> Iterator[tuple[str, int]]:
    """Each reading of one of the variables with its line; a setting of it is none."""
    tree = parse(path)
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        read = _read(node)
        if isinstance(read, ast.Name):
            read = constants.get(read.id)
        name = read.value if isinstance(read, ast.Constant) else read
        if name in names and isinstance(name, str):
            yield name, getattr(node, "lineno", 1)


def _read(node: ast.AST) -> ast.expr | str | None:
    """The expression of the name that a node reads from the environment, or the name itself."""
    match node:
        case ast.Call(func=function, args=[first, *_]) if _reader(ast.unparse(function)):
            return first
        case ast.Subscript(value=owner, slice=key, ctx=ast.Load()) if _environ(owner):
            return key
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[owner]) if _environ(owner):
            return left
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="envs"), attr=name), attr="get"):
            return name
    return None


def _environ(owner: ast.expr) -> bool:
    return ast.unparse(owner).split(".")[-1] == "environ"


def _reader(function: str) -> bool:
    """Whether a function of this name reads what its first argument names."""
    *owner, name = function.split(".")
    if owner and owner[-1] == "environ":
        return name == "get"
    return name in OWN_READERS or ("env" in name.lower() and not name.lower().startswith(WRITERS))
