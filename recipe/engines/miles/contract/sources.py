"""The sources of a job, and what a name in one of their files stands for: told from text, nothing is imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from recipe.drift.checkouts import imported
from recipe.errors import RecipeError
from recipe.pins import PROJECT_ROOT
from recipe.settings import Checkouts

OWNERS = {
    "miles_plugins": "miles",
    "sglang_router": "router",
}  # any other package is of the source of its name
TOOLS = {"test", "tests", "test_utils", "debug_utils"}  # folders that hold no part of a job
UNREAD = object()  # the value of an expression that only running the program would tell


class Source(NamedTuple):
    """A folder that packages are imported from; `label` starts what is told of a place in it."""

    label: str
    folder: Path


@dataclass(frozen=True, eq=False)
class File:
    """A parsed file of a source; `path` is the one below the source's folder."""

    sources: Sources
    source: Source
    path: Path
    tree: ast.Module

    def where(self, node: ast.AST) -> str:
        """The place of an expression or statement."""
        return f"{self.source.label}{self.path}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """What defines each name: a function, a class, a value, an import. The outermost and first counts."""
        bound: dict[str, ast.AST] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    bound.setdefault(name, node)
                case ast.ImportFrom(names=aliases):
                    for alias in aliases:
                        bound.setdefault(alias.asname or alias.name, node)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    bound.setdefault(name, value)
        return bound

    def find(self, name: str) -> tuple[File | None, ast.AST | None]:
        """Where the name is defined and by what, imports followed. Raises RecipeError for a file that is no Python."""
        node = self.names.get(name)
        if not isinstance(node, ast.ImportFrom):
            return self, node
        package = self.path.parts[: -node.level] if node.level else ()
        home = self.sources.file(".".join(filter(None, [*package, node.module])))
        original = next(one.name for one in node.names if name in (one.asname, one.name))
        return home.find(original) if home else (None, None)

    def classes(self, name: str) -> Iterator[tuple[File, ast.ClassDef]]:
        """A class, then those it derives from. Raises LookupError at one that no source has."""
        home, node = self.find(name)
        if home is None or not isinstance(node, ast.ClassDef):
            raise LookupError(name)
        yield home, node
        for base in node.bases:
            yield from home.classes(ast.unparse(base))

    def literal(self, node: ast.expr | None, absent: Any = UNREAD) -> Any:
        """The value of a literal, or of this file's name for one; else UNREAD. `absent` where there is no node."""
        value = self.names.get(node.id) if isinstance(node, ast.Name) else node
        try:
            return absent if node is None else ast.literal_eval(value) if value else UNREAD
        except ValueError:
            return UNREAD


@dataclass(frozen=True, eq=False)
class Sources:
    """The sources at hand by name: miles, megatron, sglang, router; our own plugins are always there."""

    by_name: Mapping[str, Source]
    _files: dict[Path, File] = field(default_factory=dict)

    def of(self, package: str) -> Source | None:
        """The source that has the package."""
        return {**self.by_name, "recipe": Source("", PROJECT_ROOT)}.get(OWNERS.get(package, package))

    def file(self, module: str) -> File | None:
        """The file of a module, or None where no source has it. Raises RecipeError for one that is no Python."""
        parts = module.split(".")
        source = self.of(parts[0])
        for path in (Path(*parts[:-1], f"{parts[-1]}.py"), Path(*parts, "__init__.py")) if source else ():
            if source and (source.folder / path).is_file():
                return self.at(source, path)
        return None

    def at(self, source: Source, path: Path) -> File:
        """A file, parsed once. Raises RecipeError, with the line, for one that is no Python."""
        whole = source.folder / path
        try:
            if whole not in self._files:
                self._files[whole] = File(self, source, path, ast.parse(whole.read_bytes()))
        except (SyntaxError, ValueError) as error:
            where = f"{whole}:{getattr(error, 'lineno', None) or 1}"
            raise RecipeError("a source file can't be read", found=error, where=where) from None
        return self._files[whole]

    def texts(self, package: str, below: str = "") -> Iterator[tuple[Source, Path, str]]:
        """The files of a package, in order, without tests and tools."""
        source = self.of(package)
        for path in sorted((source.folder / package / below).rglob("*.py")) if source else ():
            if source and not TOOLS & {*(part := path.relative_to(source.folder)).parts}:
                yield source, part, path.read_text(errors="replace")

    def lacking(self, flag: str) -> list[str]:
        """The sources not at hand that may register the flag: Miles, and the one that its name tells."""
        start = flag.split("-")[2]
        owner = start if start in ("router", "sglang") else "megatron"
        return [name for name in ("miles", owner) if name not in self.by_name]


def sources_of(chosen: Checkouts) -> Sources:
    """Those of the settings whose folders are there, and the router that the training Python would import."""
    folders: dict[str, Path | None] = {"miles": chosen.miles_dir, "megatron": chosen.megatron_path}
    router, _ = imported("sglang_router")
    folders |= {"sglang": chosen.sglang_dir / "python", "router": router and router.parent}
    present = {name: one for name, one in folders.items() if one is not None and os.access(one, os.R_OK)}
    return Sources({name: Source(f"{folder}/", folder) for name, folder in present.items()})
