"""Whether what Miles calls can be called so: each plugin's signature against the calls in Miles' source."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract.source import (
    Class,
    Function,
    Module,
    Program,
    Scope,
    Source,
    UnreadableError,
    value,
)

LOADER = re.compile(r"load_\w*function")
# Ours and Miles' own; what else a path names lies outside these sources.
PLUGIN = re.compile(r"(recipe|miles|miles_plugins)(\.[A-Za-z_]\w*)+")
AGENT = "--custom-agent-function-path"
NEW = "experimental_refactor"
TOOLS = {"debug_utils", "test_utils"}


@dataclass(frozen=True)
class Use:
    """One call of a plugin; `awaited` is None where Miles takes both kinds of function."""

    where: str
    call: ast.Call
    arguments: list[ast.expr]
    awaited: bool | None
    constructs: bool = False

    def __str__(self) -> str:
        given = [*self.arguments, *self.call.keywords]
        text = f"({', '.join(map(ast.unparse, given))})"
        return f"await {text}" if self.awaited else text

    def refused_by(self, function: Function, *, method: bool) -> str | None:
        """Why Python would refuse the call, or None."""
        kind = isinstance(function.node, ast.AsyncFunctionDef)
        if self.awaited is not None and self.awaited != kind:
            return "async def, but Miles doesn't await it" if kind else "def, but Miles awaits it"
        named = {one.arg: None for one in self.call.keywords if one.arg}
        if len(named) < len(self.call.keywords):
            named["whatever_miles_passes_on"] = None
        try:
            signature(function.node.args).bind(*[None] * (len(self.arguments) + method), **named)
        except TypeError as error:
            return f"({ast.unparse(function.node.args)}): {error}"
        return None


def lines(flags: Iterable[tuple[str, str]], program: Program, miles: Source) -> Iterator[Line]:
    """The lines of flags, each given with its value; none for one whose value is no plugin's dotted path."""
    modules = list(_loading_modules(program, miles))
    for name, path in flags:
        if not PLUGIN.fullmatch(path):
            continue
        uses = _uses(modules, name.lstrip("-").replace("-", "_"))
        yield from _checked(f"plugin {name} {path}", path, uses, program)
        if name == AGENT:
            hook = f"{path.rpartition('.')[0]}.abort"
            uses = _uses(modules, ".abort")
            yield from _checked(f"plugin {name}, its abort hook {hook}", hook, uses, program)


def _checked(label: str, path: str, found: list[Use], program: Program) -> Iterator[Line]:
    drifted = partial(drift, label, run="make pins-check, or correct the plugin")
    try:
        plugin = program.find(path)
    except UnreadableError:
        yield drifted(expected="a function or class", found="nothing of that name", where=path)
        return
    if not isinstance(plugin, Function | Class):
        yield drifted(expected="a function or class", found=type(plugin).__name__, where=path)
        return
    where = plugin.scope.module.where(plugin.node)
    if not path.startswith("recipe."):
        yield Line("ok", label, {"expected": "a function or class", "found": "defined", "where": where})
        return
    if not found:
        yield drifted(expected="a call in Miles", found="Miles never loads it", where=where)
    for use in found:
        expected = f"called {use} at {use.where}"
        try:
            refused = _refusal(plugin, use)
        except UnreadableError as error:
            yield skip(label, f"{error} comes from a base class that no source at hand has")
            continue
        if refused:
            yield drifted(expected=expected, found=refused, where=where)
        else:
            yield Line("ok", label, {"expected": expected, "found": "accepts it", "where": where})


def _refusal(plugin: Function | Class, use: Use) -> str | None:
    """Why Python would refuse the call, or None. Raises UnreadableError for a method of an unknown base class."""
    if isinstance(plugin, Function):
        return use.refused_by(plugin, method=False)
    name = "__init__" if use.constructs else "__call__"
    try:
        return use.refused_by(plugin.raw(name), method=True)
    except UnreadableError:
        if plugin.known:
            return f"the class has no {name}"
        raise


def _loading_modules(program: Program, miles: Source) -> Iterator[Module]:
    """The modules of Miles that load a plugin; its debug tools are no part of a job."""
    for path in sorted((miles.folder / "miles").rglob("*.py")):
        parts = path.relative_to(miles.folder).with_suffix("").parts
        if TOOLS & set(parts) or not LOADER.search(path.read_text(errors="replace")):
            continue
        module = program.module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        if module is not None:
            yield module


def _uses(modules: list[Module], destination: str) -> list[Use]:
    """Every call, in Miles, of what it loads from the argument `destination` (or a path with that ending)."""
    found = [use for module in modules for use in _uses_in(module, destination)]
    return list({use.where: use for use in found}.values())


def _uses_in(module: Module, destination: str) -> Iterator[Use]:
    for function in [node for one in module.body for node in ast.walk(one)]:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            target, loads = _loading(node, destination)
            for load in loads:
                yield from _inside(load, module)
                place: list[ast.stmt] = [function] if isinstance(target, ast.Name) else module.body
                yield from _calls(place, ast.unparse(target) if target else "", module)


def _loading(node: ast.AST, destination: str) -> tuple[ast.expr | None, list[ast.Call]]:
    """What an assignment binds, and the loading calls in its value whose path is the destination's."""
    match node:
        case ast.Assign(targets=[target], value=bound):
            pass
        case (
            ast.AnnAssign(target=target, value=ast.expr() as bound)
            | ast.NamedExpr(target=target, value=bound)
        ):
            pass
        case _:
            return None, []
    calls = [one for one in ast.walk(bound) if isinstance(one, ast.Call)]
    return target, [
        one for one in calls if LOADER.fullmatch(_name(one.func)) and _means(one.args[-1:], destination)
    ]


def _means(arguments: list[ast.expr], destination: str) -> bool:
    match arguments:
        case [ast.Attribute(attr=name) | ast.Name(id=name)]:
            return name == destination
        case [ast.JoinedStr(values=[*_, ast.Constant(value=str() as end)])]:
            return end == destination
    return False


def _inside(load: ast.Call, module: Module) -> Iterator[Use]:
    """The calls in the loader itself: it makes the object where it is given a class."""
    if len(load.args) < 2:  # a loader of a path alone calls nothing
        return
    try:
        loader = value(load.func, Scope(module))
    except UnreadableError:
        return
    for node in ast.walk(loader.node):
        target, loads = _loading(node, loader.node.args.args[-1].arg)
        if loads and target is not None:
            for use in _calls([loader.node], ast.unparse(target), loader.scope.module):
                yield Use(use.where, use.call, use.arguments, None, constructs=True)


def _calls(place: list[ast.stmt], target: str, module: Module) -> Iterator[Use]:
    """Calls of `target`, direct ones and those where a helper call_* is followed by it and its arguments."""
    nodes = [node for one in place for node in ast.walk(one)]
    awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
    # The job chooses the other branch: it sets Miles' variable for the new rollout functions.
    old = [
        one
        for node in nodes
        if isinstance(node, ast.If) and NEW in ast.unparse(node.test)
        for one in node.orelse
    ]
    left_out = {id(node) for one in old for node in ast.walk(one)}
    for node in nodes:
        if not isinstance(node, ast.Call) or id(node) in left_out:
            continue
        if ast.unparse(node.func) == target:
            yield Use(module.where(node), node, node.args, id(node) in awaited)
        for index, (helper, plugin) in enumerate(pairwise([node.func, *node.args])):
            if ast.unparse(plugin) == target and _name(helper).startswith("call_"):
                both = _takes_both(helper, module)
                arguments = node.args[index + 1 :]
                yield Use(module.where(node), node, arguments, None if both else id(node) in awaited)


def _takes_both(helper: ast.expr, module: Module) -> bool:
    """Whether a helper asks for itself if what it called is a coroutine."""
    try:
        found = value(helper, Scope(module))
    except UnreadableError:
        return False
    return isinstance(found, Function) and "iscoroutine" in ast.unparse(found.node)


def _name(function: ast.expr) -> str:
    return ast.unparse(function).split(".")[-1]


def signature(arguments: ast.arguments) -> inspect.Signature:
    """Python's own view of a function's parameters: of a lambda that has them, and None for every default."""
    alike = copy.deepcopy(arguments)
    for one in (node for node in ast.walk(alike) if isinstance(node, ast.arg)):
        one.annotation = None
    alike.defaults = [ast.Constant(None) for _ in alike.defaults]
    alike.kw_defaults = [one and ast.Constant(None) for one in alike.kw_defaults]
    made = ast.fix_missing_locations(ast.Expression(ast.Lambda(alike, ast.Constant(None))))
    return inspect.signature(eval(compile(made, "<parameters>", "eval")))  # noqa: S307 - constants alone
