"""Whether what Miles calls can be called so: each plugin's signature against the calls in Miles' source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from recipe.drift.lines import Line, drift, skip
from recipe.engines.miles.contract.sources import File, Sources

# Ours and Miles' own; what else a path names lies outside these sources.
PLUGIN = re.compile(r"(recipe|miles|miles_plugins)(\.[A-Za-z_]\w*)+")
MEND = "make pins-check, or correct the plugin"
HELPER = "call_"  # starts the names of Miles' functions that take a plugin first, then the plugin's arguments
Function = ast.FunctionDef | ast.AsyncFunctionDef
# How much is given by position, the names of what is not, and whether it is awaited: None if any is right.
Given = tuple[int, dict[str, None], bool | None]


class Call(NamedTuple):
    """By which name Miles calls the plugin of a flag, or a method of it, or what stands `beside` it in its module."""

    flag: str
    name: str
    inside: str = ""  # the function of Miles in which the name means the plugin
    method: str = ""
    beside: str = ""


CALLS = (
    Call("--custom-agent-function-path", "custom_agent_function"),
    Call("--custom-agent-function-path", "abort_hook", beside="abort"),
    Call("--custom-rm-path", "rm_function"),
    Call("--dynamic-sampling-filter-path", "call_dynamic_filter"),
    Call("--rollout-function-path", "fn", inside="load_rollout_function", method="__init__"),
    Call("--rollout-function-path", "fn", inside="call_rollout_function", method="__call__"),
)


def lines(flags: Mapping[str, str], sources: Sources) -> Iterator[Line]:
    """The lines of flags, each with its value; none for one whose value is no plugin's dotted path."""
    for flag, path in flags.items():
        calls = [one for one in CALLS if one.flag == flag] or [Call(flag, "")]
        for call in calls if PLUGIN.fullmatch(path) else ():
            module, _, name = path.rpartition(".")
            yield from _checked(call, module, call.beside or name, sources)


def _checked(call: Call, module: str, name: str, sources: Sources) -> Iterator[Line]:
    label, expected = f"plugin {call.flag} {module}.{name}", "a function or class"
    file = sources.file(module)
    home, node = file.find(name) if file else (None, None)
    if home is None or not isinstance(node, Function | ast.ClassDef):
        yield drift(label, expected=expected, found="nothing of that name", where=module, run=MEND)
        return
    function = _method(home, node.name, call.method) if isinstance(node, ast.ClassDef) else node
    uses = list(_uses(call, sources)) if call.name and function else []
    if call.name and not uses:
        lost = f"a call of {call.name}" if function else f"its {call.method}"
        yield skip(label, f"no source here has {lost}")
    told = [(text, function and _refusal(function, *given)) for text, given in uses]
    for text, refused in told if call.name else [(expected, None)]:
        facts = {"expected": text, "found": refused or "fits", "where": home.where(node)}
        yield drift(label, **facts, run=MEND) if refused else Line("ok", label, facts)


def _method(home: File, of_class: str, name: str) -> Function | None:
    """The nearest definition in a class and its bases, or None where a base comes first that no source has."""
    try:
        bodies = (one for _, node in home.classes(of_class) for one in node.body)
        return next((one for one in bodies if isinstance(one, Function) and one.name == name), None)
    except LookupError:
        return None


def _uses(call: Call, sources: Sources) -> Iterator[tuple[str, Given]]:
    """Every call of that name in Miles. Raises RecipeError for a file that is no Python."""
    for source, path, text in sources.texts("miles"):
        if f"{call.name}(" in text and call.inside in text:
            file = sources.at(source, path)
            for place in ast.walk(file.tree):
                if isinstance(place, Function | ast.Module) and getattr(place, "name", "") == call.inside:
                    yield from _calls(call, place, file)


def _calls(call: Call, place: ast.AST, file: File) -> Iterator[tuple[str, Given]]:
    awaited = {id(node.value) for node in ast.walk(place) if isinstance(node, ast.Await)}
    for node in ast.walk(place):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == call.name:
            words = node.args[call.name.startswith(HELPER) :]
            waits = id(node) in awaited
            text = f"{'await ' * waits}({', '.join(map(ast.unparse, [*words, *node.keywords]))})"
            named = {one.arg or "whatever_miles_passes_on": None for one in node.keywords}
            given = len(words) + bool(call.method), named, None if call.method else waits
            yield f"called {text} at {file.where(node)}", given


def _refusal(function: Function, positional: int, named: dict[str, None], awaited: bool | None) -> str | None:
    """Why Python would refuse the call, or None."""
    kind = isinstance(function, ast.AsyncFunctionDef)
    if awaited is not None and awaited != kind:
        return "async def, but Miles doesn't await it" if kind else "def, but Miles awaits it"
    none, given = ast.Constant(None), function.args
    # Python's own view of the parameters: those of a lambda, each default None.
    defaults, kw_defaults = [none for _ in given.defaults], [one and none for one in given.kw_defaults]
    alike = ast.arguments(**{**vars(given), "defaults": defaults, "kw_defaults": kw_defaults})
    code = compile(ast.fix_missing_locations(ast.Expression(ast.Lambda(alike, none))), "<parameters>", "eval")
    try:
        inspect.signature(eval(code)).bind(*[None] * positional, **named)  # noqa: S307 - constants alone
    except TypeError as error:
        return f"({ast.unparse(given)}): {error}"
    return None
