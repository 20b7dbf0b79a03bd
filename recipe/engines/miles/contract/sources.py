"""The sources of a job, where they lie, and the parser that they build together."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from recipe.drift.lines import Line, drift, skip
from recipe.drift.programs import ask
from recipe.engines.miles.contract.registered import Registered, Registry, parser_of
from recipe.engines.miles.contract.source import (
    Function,
    Program,
    Scope,
    Source,
    UnreadableError,
    settled,
)
from recipe.given import child_environment
from recipe.pins import PROJECT_ROOT
from recipe.settings import Checkouts

ROUTER_SECONDS = 60  # a cold start from network storage
FIND_ROUTER = """
import importlib.util
spec = importlib.util.find_spec("sglang_router")
print(*(spec.submodule_search_locations or () if spec else ()), sep="\\n")
"""


@dataclass(frozen=True)
class Root:
    """Where a source builds its parser: the function of a module; `prefix` is what its flags start with."""

    source: str
    module: str
    function: str
    prefix: str = "--"


# In this order: Miles adds to Megatron's parser, SGLang's and the router's flags among its own.
ROOTS = (
    Root("megatron", "megatron.training.arguments", "add_megatron_arguments"),
    Root("miles", "miles.utils.arguments", "add_miles_arguments"),
)
# Taken from themselves where there is no Miles that adds them.
WITHOUT_MILES = (
    ROOTS[0],
    Root("sglang", "sglang.srt.server_args", "add_cli_args", "--sglang-"),
    Root("router", "sglang_router.router_args", "add_cli_args", "--router-"),
)
OWNERS = {"--router-": "router", "--sglang-": "sglang"}  # any other flag is Miles' own, or Megatron's
PACKAGES = {"miles": ("miles", "miles_plugins"), "megatron": ("megatron",), "sglang": ("sglang",)}


@dataclass(frozen=True)
class Sources:
    """The sources at hand by name: miles, megatron, sglang, router."""

    by_name: Mapping[str, Source]

    @cached_property
    def program(self) -> Program:
        """What they and this project can import."""
        return Program([*self.by_name.values(), Source("", PROJECT_ROOT)])

    def lacking(self, flag: str) -> list[str]:
        """The sources not at hand that may register the flag."""
        owner = next((name for start, name in OWNERS.items() if flag.startswith(start)), "megatron")
        return [name for name in ("miles", owner) if name not in self.by_name]

    @property
    def searched(self) -> list[tuple[Source, Path]]:
        """The folders in which variables are read, our plugins' first."""
        parts = [(source, part) for name, source in self.by_name.items() for part in PACKAGES.get(name, ())]
        own = (Source("", PROJECT_ROOT), "recipe/plugins")
        return [(source, source.folder / part) for source, part in (own, *parts)]


def sources_of(chosen: Checkouts) -> Sources:
    """Those of the settings whose folders are there, and the router that the training Python would import."""
    folders = {
        "miles": chosen.miles_dir,
        "megatron": chosen.megatron_path,
        "sglang": chosen.sglang_dir / "python",
        "router": _router(),
    }
    present = {name: one for name, one in folders.items() if one is not None and os.access(one, os.R_OK)}
    return Sources({name: Source(f"{folder}/", folder) for name, folder in present.items()})


def _router() -> Path | None:
    """The folder that has sglang_router, for the Python of PATH that is not our own; None without one."""
    own = os.path.dirname(sys.executable)  # noqa: PTH120 - a link must not be followed
    folders = child_environment().get("PATH", "").split(os.pathsep)
    python = shutil.which("python3", path=os.pathsep.join(one for one in folders if one != own))
    if python is None:
        return None
    done = ask([python, "-c", FIND_ROUTER], folder=Path("/"), seconds=ROUTER_SECONDS)
    places = done.stdout.split("\n")[0] if done.returncode == 0 else ""
    return Path(places).parent if places else None


def registry(sources: Sources, known: Registry) -> Iterator[Line]:
    """Fills `known`; a line for each parser that is not where it was. Raises UnparsableError."""
    for root in ROOTS if "miles" in sources.by_name else WITHOUT_MILES:
        if root.source not in sources.by_name:
            continue
        found = parser_of(sources.program, root.module, root.function)
        if found is None:
            yield drift(
                f"the parser of {root.source}",
                expected=f"{root.function} in {root.module}",
                found="nothing of that name",
                where=sources.by_name[root.source].folder,
                run="make pins-check",
            )
            continue
        part = Registry(root.prefix)
        part.follow(found, {})
        known.flags = part.flags | known.flags
        for lost, where in part.lost:
            yield skip(f"the flags of {where}", f"{lost} can't be read")


def own_flags(sources: Sources, generate: str) -> dict[str, Registered]:
    """The flags that the generate function of Miles of this dotted path adds: `generate.add_arguments = ...`."""
    module = sources.program.module(generate.rpartition(".")[0]) if generate else None
    part = Registry()
    if module is None:
        return {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr="add_arguments")], value=ast.Name(id=name)):
                try:
                    adding = settled(Scope(module).raw(name))
                except UnreadableError:
                    continue
                if isinstance(adding, Function):
                    part.follow(adding, {})
    return part.flags
