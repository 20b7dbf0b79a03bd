"""The flags that upstream's parser registers, found by following, in source, the functions that build it."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipe.engines.miles.contract.fields import Field, annotated_flags, factory_flags
from recipe.engines.miles.contract.source import (
    Class,
    Function,
    Lazy,
    Program,
    Scope,
    UnreadableError,
    bindings,
    blocks,
    settled,
    value,
)

# What argparse needs to judge values; help, defaults and destinations don't matter here.
JUDGED = ("type", "choices", "nargs", "action", "const")
WITHOUT_VALUE = ("store_true", "store_false", "store_const", "count")


@dataclass(frozen=True)
class Registered:
    """One flag; `options` are argparse's own, `unread` those that only running upstream would tell."""

    name: str
    where: str
    options: Mapping[str, Any]
    unread: tuple[str, ...]

    @property
    def takes(self) -> str:
        """What may follow the flag, in words."""
        if self.options.get("action") in WITHOUT_VALUE:
            return "no value"
        kind = self.options.get("type", str).__name__
        choices = self.options.get("choices")
        what = f"one of {', '.join(map(str, choices))}" if choices else kind
        nargs = self.options.get("nargs")
        if isinstance(nargs, int):
            return f"{what}, {nargs} times"
        return what + {"+": ", once or more", "*": ", any number", "?": " or nothing"}.get(nargs or "", "")

    def misfit(self, values: tuple[str, ...]) -> str | None:
        """Why argparse would refuse the values, or None."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument(self.name, dest="value", **self.options)
        try:
            _, surplus = parser.parse_known_args([self.name, *values])
        except argparse.ArgumentError as error:
            return error.message
        return f"{' '.join(surplus)} is too much" if surplus else None


@dataclass(frozen=True)
class Renaming:
    """What upstream puts in front of a parser's add_argument: another prefix, and flags left out."""

    function: Function

    def name(self, flag: str) -> str:
        """`flag` as the wrapper renames it: its f-string with the flag's stem for what isn't known."""
        for node in ast.walk(self.function.node):
            match node:
                case ast.JoinedStr(values=[ast.Constant(value=str() as start), *_] as parts) if (
                    start[:2] == "--"
                ):
                    return "".join(self._part(part, flag.lstrip("-")) for part in parts)
        raise UnreadableError(ast.unparse(self.function.node))

    def leaves_out(self, destination: str) -> bool:
        """Whether the wrapper returns without registering: `if ... in <list>: return`."""
        for node in ast.walk(self.function.node):
            match node:
                case ast.If(test=test, body=[ast.Return(value=None)]):
                    lists = [one.comparators[0] for one in ast.walk(test) if isinstance(one, ast.Compare)]
                    if any(destination in self._list(one) for one in lists):
                        return True
        return False

    def _list(self, node: ast.expr) -> list[str]:
        try:
            found = value(node, self.function.scope)
        except UnreadableError:
            return []
        return found if isinstance(found, list) else []

    def _part(self, part: ast.expr, stem: str) -> str:
        try:
            return str(value(part, self.function.scope))
        except UnreadableError:
            return stem


class Registry:
    """Flags by name. The first registration of a name counts: argparse refuses a second one, and Miles'
    `reset_arg` changes nothing but the default.
    """

    def __init__(self, prefix: str = "--") -> None:
        self.flags: dict[str, Registered] = {}
        self.lost: list[tuple[str, str]] = []  # what could not be read, and where
        self._prefix = prefix
        self._renaming: Renaming | None = None
        self._followed: list[ast.AST] = []

    def follow(self, function: Function, bound: Mapping[str, Any]) -> None:
        """Registers what `function` adds to its parser, called with the parameters `bound`."""
        if function.node in self._followed:
            return
        taken = function.node.args
        last = zip(reversed(taken.args), reversed(taken.defaults), strict=False)
        given = [*last, *zip(taken.kwonlyargs, taken.kw_defaults, strict=True)]
        defaults = {one.arg: Lazy(node, function.scope) for one, node in given if node is not None}
        self._followed.append(function.node)
        self._statements(
            function.node.body, Scope(function.scope.module, {**function.scope.names, **defaults, **bound})
        )
        self._followed.pop()

    def add(self, name: str, destination: str | None, where: str, options: dict[str, Any]) -> None:
        """`options` as upstream gives them, evaluated where that was possible."""
        if self._renaming is not None:
            if self._renaming.leaves_out(destination or name.lstrip("-").replace("-", "_")):
                return
            name = self._renaming.name(name)
        name = name.replace("--", self._prefix, 1)
        unread = tuple(key for key, given in options.items() if isinstance(given, UnreadableError))
        kept = {key: given for key, given in options.items() if key not in unread}
        names = [name]
        if kept.get("action") is argparse.BooleanOptionalAction:
            names.append(f"--no-{name.removeprefix('--')}")
        if kept.get("action") in (*WITHOUT_VALUE, argparse.BooleanOptionalAction):
            kept = {"action": "store_true"}
        for one in names:
            self.flags.setdefault(one, Registered(one, where, kept, unread))

    def _statements(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.Import() | ast.ImportFrom():
                    scope.names.update(bindings([statement], scope))
                case ast.Assign(targets=[ast.Attribute(attr="add_argument")], value=ast.Name(id=name)):
                    wrapper = scope.names.get(name)
                    self._renaming = Renaming(wrapper) if isinstance(wrapper, Function) else None
                case ast.If(test=test):
                    for block in _taken(statement, test, scope):
                        self._statements(block, scope)
                case ast.For() | ast.While() | ast.With() | ast.Try():
                    for block in blocks(statement):
                        self._statements(block, scope)
                case _:
                    scope.names.update(bindings([statement], scope))
                    for node in ast.walk(statement):
                        if isinstance(node, ast.Call):
                            self._call(node, scope)

    def _call(self, call: ast.Call, scope: Scope) -> None:
        match call.func:
            case ast.Attribute(attr="add_argument"):
                self._add_argument(call, call.args, scope)
            case ast.Name(id="reset_arg"):
                self._add_argument(call, call.args[1:], scope)
            case ast.Name(id="ArgumentGroupFactory"):
                self._fields(factory_flags(call, scope), scope.module.where(call))
            case ast.Name(id="add_cli_args_from_dataclass"):
                self._fields(annotated_flags(call, scope), scope.module.where(call))
            case _ if any(isinstance(one, ast.Name) and one.id == "parser" for one in call.args):
                self._follow_call(call, scope)

    def _follow_call(self, call: ast.Call, scope: Scope) -> None:
        try:
            function = value(call.func, scope)
        except UnreadableError:
            return
        if isinstance(function, Function):
            names = [one.arg for one in function.node.args.args]
            given = {name: Lazy(node, scope) for name, node in zip(names, call.args, strict=False)}
            given |= {one.arg: Lazy(one.value, scope) for one in call.keywords if one.arg}
            self.follow(function, given)

    def _fields(self, fields: Iterator[Field], where: str) -> None:
        try:
            for one in fields:
                for name in one.names:
                    self.add(name, one.destination, one.where, judged(one.options))
        except UnreadableError as error:
            self.lost.append((str(error), where))

    def _add_argument(self, call: ast.Call, names: list[ast.expr], scope: Scope) -> None:
        given = {one.arg: Lazy(one.value, scope) for one in call.keywords if one.arg}
        destination = _or_error(given["dest"]) if "dest" in given else None
        for node in names:
            name = _or_error(Lazy(node, scope))
            if isinstance(name, str) and name.startswith("-"):
                self.add(
                    name,
                    destination if isinstance(destination, str) else None,
                    scope.module.where(call),
                    judged(given),
                )


def judged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the keywords of an add_argument, those that argparse judges values by."""
    options = {key: _or_error(given[key]) for key in JUDGED if key in given}
    if "type" in options and options["type"] not in (bool, float, int, str):
        options["type"] = UnreadableError("a function of upstream's own")
    if "action" in options and options["action"] not in (*WITHOUT_VALUE, "store", "append"):
        options["action"] = _own_action(given["action"], options)
    return options


def _own_action(bound: Any, options: dict[str, Any]) -> Any:
    """argparse's own action that takes as many values as a class derived from argparse.Action does."""
    if isinstance(bound, Lazy) and ast.unparse(bound.node).endswith("BooleanOptionalAction"):
        return argparse.BooleanOptionalAction
    action = options["action"]
    if not isinstance(action, Class):
        return action
    try:
        made = action.raw("__init__")
    except UnreadableError:
        return "store"
    nargs = re.search(r"\bnargs=(\d+)", ast.unparse(made.node.args))
    return "store_true" if nargs and nargs[1] == "0" else "store"


def _or_error(bound: Any) -> Any:
    try:
        return settled(bound)
    except UnreadableError as error:
        return error


def _taken(statement: ast.If, test: ast.expr, scope: Scope) -> list[list[ast.stmt]]:
    """The branch that is taken, or both where only running upstream would tell."""
    try:
        return [statement.body if value(test, scope) else statement.orelse]
    except UnreadableError:
        return [statement.body, statement.orelse]


def parser_of(program: Program, module: str, function: str) -> Function | None:
    """The function, maybe nested, of a module that builds its parser; None where there is none."""
    found = program.module(module)
    if found is None:
        return None
    for node in [one for statement in found.body for one in ast.walk(statement)]:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return Function(node, Scope(found))
    return None
