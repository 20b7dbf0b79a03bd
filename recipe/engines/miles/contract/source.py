"""Upstream's Python as text: what a name or an expression stands for, told without importing or running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe.errors import RecipeError

BUILTINS = {kind.__name__: kind for kind in (bool, float, int, str)}


class UnreadableError(Exception):
    """An expression whose value only running the program would tell."""


class UnparsableError(RecipeError):
    """A file of a source is no Python."""


@dataclass(frozen=True)
class Source:
    """A folder that packages are imported from; `label` starts what is told of a place in it."""

    label: str
    folder: Path

    def where(self, path: Path, line: int) -> str:
        """A place in a file of this source."""
        return f"{self.label}{path.relative_to(self.folder)}:{line}"


@dataclass(frozen=True, eq=False)
class Module:
    """A parsed file with its names of the top level."""

    program: Program
    name: str
    source: Source
    path: Path
    body: list[ast.stmt]
    names: dict[str, Any] = field(default_factory=dict)

    def where(self, node: ast.expr | ast.stmt) -> str:
        return self.source.where(self.path, node.lineno)


@dataclass(frozen=True, eq=False)
class Scope:
    """Names of a function (or of a class, or none) in front of those of its module."""

    module: Module
    names: dict[str, Any] = field(default_factory=dict)

    def raw(self, name: str) -> Any:
        """What the name was last bound to, imports followed. Raises UnreadableError."""
        found = self.names.get(name, self.module.names.get(name))
        if isinstance(found, Imported):
            return found.follow(self.module.program)
        if found is None:
            raise UnreadableError(name)
        return found


@dataclass(frozen=True)
class Lazy:
    """An expression and where its names are looked up."""

    node: ast.expr
    scope: Scope


@dataclass(frozen=True)
class Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: Scope


@dataclass(frozen=True)
class Class:
    node: ast.ClassDef
    scope: Scope

    def bases(self) -> Iterator[Class]:
        """The base classes that can be found, the nearest first."""
        for base in self.node.bases:
            try:
                found = value(base, self.scope)
            except UnreadableError:
                continue
            if isinstance(found, Class):
                yield found

    @property
    def known(self) -> bool:
        """Whether all base classes can be found, and theirs."""
        bases = list(self.bases())
        return len(bases) == len(self.node.bases) and all(one.known for one in bases)

    def raw(self, name: str) -> Any:
        """What the body, or a base class, binds `name` to. Raises UnreadableError."""
        own = bindings(self.node.body, Scope(self.scope.module)).get(name)
        for place in [] if own is not None else self.bases():
            try:
                return place.raw(name)
            except UnreadableError:
                continue
        if own is None:
            raise UnreadableError(f"{self.node.name}.{name}")
        return own

    def members(self) -> list[Member]:
        """Those of an enumeration."""
        return [
            Member(name, bound)
            for name, bound in bindings(self.node.body, self.scope).items()
            if isinstance(bound, Lazy) and not name.startswith("_")
        ]


@dataclass(frozen=True)
class Member:
    """Of an enumeration."""

    name: str
    bound: Lazy


@dataclass(frozen=True)
class Imported:
    module: str
    name: str | None

    def follow(self, program: Program) -> Any:
        module = program.module(self.module)
        if self.name is None:
            return module
        if module is not None and self.name in module.names:
            return Scope(module).raw(self.name)
        found = program.module(f"{self.module}.{self.name}")
        if found is None:
            raise UnreadableError(f"{self.module}.{self.name}")
        return found


class Program:
    """The modules that can be imported from the sources, the first source that has one wins."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of a dotted name, or None where no source has it. Raises UnparsableError."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def find(self, dotted: str) -> Any:
        """The function or class of a dotted path. Raises UnreadableError, UnparsableError."""
        module, _, name = dotted.rpartition(".")
        return Imported(module, name).follow(self)

    def _load(self, name: str) -> Module | None:
        stem = Path(*name.split("."))
        for source in self.sources:
            for path in (source.folder / stem.with_suffix(".py"), source.folder / stem / "__init__.py"):
                if path.is_file():
                    module = Module(self, name, source, path, parse(path).body)
                    module.names.update(bindings(module.body, Scope(module)))
                    return module
        return None


def parse(path: Path) -> ast.Module:
    """Raises UnparsableError."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UnparsableError(
            "a source file can't be read", expected="Python", found=error, where=f"{path}:{line}"
        ) from None


def bindings(body: list[ast.stmt], scope: Scope) -> dict[str, Any]:
    """Every name that statements bind, branches of `if` and `try` included; the last one wins."""
    names: dict[str, Any] = {}
    for statement in body:
        match statement:
            case ast.If() | ast.Try():
                for block in blocks(statement):
                    names |= bindings(block, scope)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=more):
                if isinstance(before := names.get(name), Lazy):
                    names[name] = Lazy(ast.BinOp(before.node, ast.Add(), more), scope)
            case _:
                names |= _bound(statement, scope)
    return names


def _bound(statement: ast.stmt, scope: Scope) -> dict[str, Any]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return {statement.name: Function(statement, scope)}
        case ast.ClassDef():
            return {statement.name: Class(statement, scope)}
        case ast.Assign(targets=targets, value=bound):
            return {one.id: Lazy(bound, scope) for one in targets if isinstance(one, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as bound):
            return {name: Lazy(bound, scope)}
        case ast.ImportFrom(module=module, names=aliases, level=level):
            origin = _absolute(module, level, scope.module)
            return {one.asname or one.name: Imported(origin, one.name) for one in aliases}
        case ast.Import(names=aliases):
            return {one.asname: Imported(one.name, None) for one in aliases if one.asname}
    return {}


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The bodies of a compound statement."""
    handlers = [one.body for one in getattr(statement, "handlers", [])]
    parts = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
    return [parts[0], *handlers, *parts[1:]]


def _absolute(module: str | None, level: int, importer: Module) -> str:
    """The dotted name of a `from` import: `level` is the number of its leading dots."""
    if not level:
        return module or ""
    own = importer.name.split(".")[: None if importer.path.name == "__init__.py" else -1]
    return ".".join([*own[: len(own) - level + 1], *([module] if module else [])])


def value(node: ast.expr, scope: Scope) -> Any:
    """What an expression is: constants, containers, functions, classes. Raises UnreadableError, UnparsableError."""
    try:
        return _value(node, scope)
    except (RecursionError, TypeError) as error:
        raise UnreadableError(f"{ast.unparse(node)}: {error}") from None


def settled(bound: Any) -> Any:
    """The value of what a name is bound to. Raises UnreadableError."""
    return value(bound.node, bound.scope) if isinstance(bound, Lazy) else bound


def _value(node: ast.expr, scope: Scope) -> Any:  # noqa: C901 - one case a form of expression
    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=name):
            if name in BUILTINS and name not in scope.module.names:
                return BUILTINS[name]
            return settled(scope.raw(name))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [one for part in parts for one in _spread(part, scope)]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {value(key, scope): Lazy(each, scope) for key, each in pairs if key is not None}
        case ast.Attribute(value=owner, attr=name):
            return _attribute(value(owner, scope), name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return value(left, scope) + value(right, scope)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not value(operand, scope)
        case ast.IfExp(test=test, body=yes, orelse=no):
            return value(yes if value(test, scope) else no, scope)
        case ast.JoinedStr(values=values):
            return "".join(str(value(part, scope)) for part in values)
        case ast.FormattedValue(value=inner):
            return value(inner, scope)
        case ast.ListComp() | ast.GeneratorExp():
            return _comprehension(node, scope)
        case ast.Call():
            return _call(node, scope)
    raise UnreadableError(ast.unparse(node))


def _spread(part: ast.expr, scope: Scope) -> list[Any]:
    return _items(value(part.value, scope)) if isinstance(part, ast.Starred) else [value(part, scope)]


def _items(container: Any) -> list[Any]:
    if isinstance(container, Class):
        return list(container.members())
    if isinstance(container, list | dict | str):
        return list(container)
    raise UnreadableError(str(container))


def _attribute(owner: Any, name: str) -> Any:
    match owner:
        case Module():
            return settled(Scope(owner).raw(name))
        case Class():
            return settled(owner.raw(name))
        case Member() if name == "name":
            return owner.name
        case Member() if name == "value":
            return settled(owner.bound)
    raise UnreadableError(name)


def _comprehension(node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> list[Any]:
    match node.generators:
        case [ast.comprehension(target=ast.Name(id=name), iter=iterated, ifs=[])]:
            items = _items(value(iterated, scope))
            return [value(node.elt, Scope(scope.module, {**scope.names, name: item})) for item in items]
    raise UnreadableError(ast.unparse(node))


def _call(node: ast.Call, scope: Scope) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "sorted"), args=[argument], keywords=[]):
            return _items(value(argument, scope))
        case ast.Call(func=ast.Attribute(value=owner, attr="keys"), args=[]):
            return _items(value(owner, scope))
        case ast.Call(func=ast.Attribute(value=owner, attr="lower"), args=[]):
            return str(value(owner, scope)).lower()
    raise UnreadableError(ast.unparse(node))
