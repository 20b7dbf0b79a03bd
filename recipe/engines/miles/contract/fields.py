"""The flags that upstream makes of the fields of a dataclass, in the two ways that Megatron and SGLang have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recipe.engines.miles.contract.source import (
    BUILTINS,
    Class,
    Lazy,
    Scope,
    UnreadableError,
    settled,
    value,
)


@dataclass(frozen=True)
class Field:
    """Names and options as for argparse's add_argument; options may be Lazy or an UnreadableError."""

    names: list[str]
    destination: str
    where: str
    options: dict[str, Any]


def factory_flags(call: ast.Call, scope: Scope) -> Iterator[Field]:
    """Megatron: ArgumentGroupFactory(Class, exclude=[...]): every field, by its annotation, or as the
    field's metadata "argparse_meta" says.
    """
    excluded = [value(one.value, scope) for one in call.keywords if one.arg == "exclude"]
    for statement, own in _fields(value(call.args[0], scope)):
        name = statement.target.id
        if name in (excluded[0] if excluded else []) or _keyword(statement.value, "init") is False:
            continue
        names, options = [_flag(name)], _typed(statement.annotation, own)
        if options.get("type") is bool:
            names, options = _switch(name, statement.value)
        meta = _metadata(statement.value, own)
        names = settled(meta.pop("arg_names")) if "arg_names" in meta else names
        yield Field(names, name, own.module.where(statement), {**options, **meta})


def annotated_flags(call: ast.Call, scope: Scope) -> Iterator[Field]:
    """SGLang: add_cli_args_from_dataclass(parser, Class): the fields annotated A[type, help or Arg(...)]."""
    for statement, own in _fields(value(call.args[1], scope)):
        match statement.annotation:
            case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[kind, about, *_])):
                meta = {one.arg: one.value for one in getattr(about, "keywords", []) if one.arg}
                if "no_cli" not in meta:
                    yield _annotated(statement, kind, meta, own)


def _annotated(statement: ast.AnnAssign, kind: ast.expr, meta: dict[str, ast.expr], own: Scope) -> Field:
    assert isinstance(statement.target, ast.Name)
    name = statement.target.id
    names = [value(meta["cli_name"], own) if "cli_name" in meta else _flag(name)]
    names += value(meta["aliases"], own) if "aliases" in meta else []
    given: dict[str, Any] = {
        key: Lazy(meta[key], own) for key in ("choices", "nargs", "const") if key in meta
    }
    if "action" in meta:
        given["action"] = Lazy(meta["action"], own)
    elif "type_parser" in meta:
        given["type"] = Lazy(meta["type_parser"], own)
    else:
        given = {**_typed(kind, own), **given}
        if given.get("type") is bool:
            given = {"action": "store_true"}
    return Field(names, name, own.module.where(statement), given)


def _fields(found: Any) -> Iterator[tuple[Any, Scope]]:
    """The annotated assignments of a dataclass, those of its base classes first, each with its names."""
    if not isinstance(found, Class):
        raise UnreadableError(str(found))
    for base in found.bases():
        yield from _fields(base)
    scope = Scope(found.scope.module)
    for statement in found.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement, scope


def _typed(annotation: ast.expr, scope: Scope) -> dict[str, Any]:
    """argparse's options for a type annotation."""
    match annotation:
        case ast.Constant(value=str() as text):
            return _typed(ast.parse(text, mode="eval").body, scope)
        case ast.Name(id=name) if name in BUILTINS:
            return {"type": BUILTINS[name]}
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right], scope)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
            return _union(parts, scope)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _typed(inner, scope)
        case ast.Subscript(value=ast.Name(id="List" | "list"), slice=inner):
            return {**_typed(inner, scope), "nargs": "+"}
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            choices = value(inner, scope)
            choices = choices if isinstance(choices, list) else [choices]
            return {"type": type(choices[0]), "choices": choices}
    return _named(annotation, scope)


def _named(annotation: ast.expr, scope: Scope) -> dict[str, Any]:
    """The options for a type that goes by a name: an enumeration, or another name of an annotation."""
    unread = {"type": UnreadableError(ast.unparse(annotation))}
    if not isinstance(annotation, ast.Name):
        return unread
    try:
        found = scope.raw(annotation.id)
    except UnreadableError:
        return unread
    if isinstance(found, Lazy):
        return _typed(found.node, found.scope)
    if isinstance(found, Class) and any("Enum" in ast.unparse(base) for base in found.node.bases):
        return {"type": str, "choices": [one.name for one in found.members()]}
    return unread


def _union(parts: list[ast.expr], scope: Scope) -> dict[str, Any]:
    kept = [one for one in parts if not (isinstance(one, ast.Constant) and one.value is None)]
    if len(kept) == 1:
        return _typed(kept[0], scope)
    return {"type": UnreadableError(" | ".join(map(ast.unparse, kept)))}


def _switch(name: str, default: ast.expr | None) -> tuple[list[str], dict[str, Any]]:
    """Megatron: a switch turns on what is False by default, and off, by two names, everything else."""
    given = _keyword(default, "default") if isinstance(default, ast.Call) else getattr(default, "value", None)
    if given is False:
        return [_flag(name)], {"action": "store_true"}
    return [_flag(f"no_{name}"), _flag(f"disable_{name}")], {"action": "store_true"}


def _metadata(default: ast.expr | None, scope: Scope) -> dict[str, Any]:
    """What a field's metadata says of its flag."""
    for keyword in getattr(default, "keywords", []):
        if keyword.arg == "metadata":
            found = value(keyword.value, scope).get("argparse_meta")
            return dict(settled(found)) if found is not None else {}
    return {}


def _keyword(call: ast.expr | None, name: str) -> Any:
    """A constant keyword of dataclasses.field(...), or None."""
    found = [one.value for one in getattr(call, "keywords", []) if one.arg == name]
    return getattr(found[0], "value", None) if found else None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
