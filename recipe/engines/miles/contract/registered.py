"""The flags that upstream's parsers take, read from the calls that register them."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from recipe.engines.miles.contract.sources import UNREAD, File, Sources
from recipe.errors import RecipeError

# In this order: Miles adds to Megatron's parser, and the flags of SGLang and of the router among its own.
PARSERS = {"megatron": "megatron.training.arguments", "miles": "miles.utils.arguments"}
PARSERS |= {"sglang": "sglang.srt.server_args", "router": "sglang_router.router_args"}
# What Miles puts before SGLang's flags, and, in the router's f-strings, before the router's.
SGLANG_PREFIX, ROUTER_PREFIX = "--sglang-", "router-"
# Miles leaves out the flags of SGLang that it decides itself: a list with this in its name, in this module.
SERVING, LEFT_OUT = "miles.backends.sglang_utils.arguments", "skipped"
ROUTER_LEFT_OUT = ("host", "port")  # by a keyword of Miles' call
TYPES = {kind.__name__: kind for kind in (bool, float, int, str)}
JUDGED = ("type", "choices", "nargs", "action")
BOTH_WAYS = "BooleanOptionalAction"
SWITCHES = ("store_true", "store_false", "store_const", "count", BOTH_WAYS)
# One registration: its names, its destination, its options as upstream gives them, or UNREAD.
Made = tuple[File, ast.AST, list[str], str, dict[str, Any]]


class Registered(NamedTuple):
    """One flag; `options` are argparse's own, `unread` names those that only running upstream would tell."""

    name: str
    where: str
    options: Mapping[str, Any]
    unread: list[str]

    @property
    def takes(self) -> str:
        """The flag with what may follow it, as argparse has it in a usage line."""
        usage = self._parser().format_usage().split()[1:]
        return " ".join([*usage, *(f"({one} not judged)" for one in self.unread)])

    def misfit(self, values: tuple[str, ...]) -> str | None:
        """Why argparse would refuse the values, or None."""
        if {"action", "nargs"} & {*self.unread}:
            return None
        try:
            _, surplus = self._parser().parse_known_args([self.name, *values])
        except argparse.ArgumentError as error:
            return error.message.split(" (choose from")[0]
        return f"{' '.join(surplus)} is too much" if surplus else None

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog="", add_help=False, exit_on_error=False)
        parser.add_argument(self.name, dest="value", required=True, **self.options)
        return parser


class Registry:
    """Flags by name, the first registration of each: a second one changes its default; and where some are lost."""

    def __init__(self, sources: Sources) -> None:
        self.flags: dict[str, Registered] = {}
        self.lost: list[str] = []
        self._sources, self._seen = sources, list[File]()
        self._left_out: dict[str, Sequence[str]] = {"sglang_router": ROUTER_LEFT_OUT}

    def read_all(self) -> None:
        """Reads the parsers at hand. Raises RecipeError for one that is not where it was, or is no Python."""
        serving = self._sources.file(SERVING)
        for name, bound in serving.names.items() if serving else ():
            if LEFT_OUT in name.lower() and isinstance(bound, ast.List):
                self._left_out["sglang"] = ast.literal_eval(bound)
        for source in [name for name in PARSERS if name in self._sources.by_name]:
            file = self._sources.file(PARSERS[source])
            if file is None or (source == "sglang" and serving and source not in self._left_out):
                wanted = PARSERS[source] if file is None else f"{SERVING}: a list *{LEFT_OUT}*"
                raise RecipeError(
                    f"the parser of {source} is not as it was", expected=wanted, found="nothing"
                )
            self.read(file)

    def read(self, file: File, prefix: str = ROUTER_PREFIX) -> None:
        """Registers what a file adds to a parser, `prefix` first in f-strings, and what those files add whose
        functions it hands its parser to. Raises RecipeError for a file that is no Python.
        """
        if file in self._seen:
            return
        self._seen.append(file)
        for call in [node for node in ast.walk(file.tree) if isinstance(node, ast.Call)]:
            try:
                for one in _registrations(call, file, prefix):
                    self._add(*one)
                if any(isinstance(one, ast.Name) and one.id == "parser" for one in call.args):
                    home, _ = file.find(ast.unparse(call.func).partition(".")[0])
                    if home:
                        self.read(home, file.literal(_keywords(call).get("prefix"), ROUTER_PREFIX))
            except (LookupError, TypeError):  # a class that no source has, or UNREAD for a name
                self.lost.append(file.where(call))

    def _add(self, file: File, node: ast.AST, names: list[str], dest: str, given: Mapping[str, Any]) -> None:
        package = file.path.parts[0]
        start = SGLANG_PREFIX if package == "sglang" else "--"
        names = [start + name.lstrip("-") for name in names]
        options = {key: value for key, value in given.items() if value is not UNREAD}
        action = options.pop("action", "store")
        if action == BOTH_WAYS:
            names += [f"--no-{name[2:]}" for name in names]
        if action in SWITCHES:
            options = {"action": "store_true"}
        unread = [key for key, value in given.items() if value is UNREAD]
        for name in names if dest not in self._left_out.get(package, ()) else ():
            self.flags.setdefault(name, Registered(name, file.where(node), options, unread))


def _registrations(call: ast.Call, file: File, prefix: str) -> Iterator[Made]:
    """What a call registers. Raises LookupError for a class of flags that no source has."""
    given = _keywords(call)
    match call.func:
        case ast.Attribute(attr="add_argument") | ast.Name(id="reset_arg"):
            texts = [ast.unparse(one).lstrip("f").strip("'\"") for one in call.args]
            names = [re.sub(r"\{\w+\}", prefix, text) for text in texts if text.startswith("-")]
            if names:
                destination = file.literal(given.get("dest"), names[0].lstrip("-").replace("-", "_"))
                yield file, call, names, destination, _options(given, file)
        case ast.Name(id="ArgumentGroupFactory" | "add_cli_args_from_dataclass" as maker):
            megatron = maker == "ArgumentGroupFactory"
            excluded = file.literal(given.get("exclude"), ())
            for home, node in file.classes(ast.unparse(call.args[0 if megatron else 1])):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) not in excluded:
                        yield from _of_field(home, field, megatron=megatron)


def _keywords(call: ast.AST | None) -> dict[str, ast.expr]:
    return {one.arg: one.value for one in getattr(call, "keywords", []) if one.arg}


def _options(given: Mapping[str, ast.expr], file: File) -> dict[str, Any]:
    """Of the keywords of an add_argument, those that argparse judges values by."""
    read = {key: file.literal(given[key]) for key in JUDGED if key in given}
    if "type" in given:
        read["type"] = TYPES.get(ast.unparse(given["type"]), UNREAD)
    if "action" in given and ast.unparse(given["action"]).endswith(BOTH_WAYS):
        read["action"] = BOTH_WAYS
    match given.get("choices"):  # the values of an enumeration
        case ast.ListComp(ast.Attribute(attr="value"), [ast.comprehension(iter=ast.Name(name))]):
            home, node = file.find(name)
            members = [one.value for one in getattr(node, "body", []) if isinstance(one, ast.Assign)]
            values = [home.literal(one) for one in members if home]
            read["choices"] = UNREAD if UNREAD in values or not values else values
    return read


def _of_field(file: File, field: ast.AnnAssign, *, megatron: bool) -> Iterator[Made]:
    """Megatron: as annotated, or as metadata "argparse_meta" says. SGLang: if annotated A[type, help or Arg(...)]."""
    name, about, kind, given = ast.unparse(field.target), _keywords(field.value), field.annotation, {}
    match kind, about.get("metadata"):
        case ast.Subscript(ast.Name("A" | "Annotated"), ast.Tuple([kind, arg, *_])), _:
            given = _keywords(arg)
        case _, ast.Dict(values=[ast.Dict(keys, values)]):
            given = {file.literal(key): one for key, one in zip(keys, values, strict=True)}
    options = {"type": UNREAD} if "type_parser" in given else _typed(kind, file)
    words = [name]
    if options["type"] is bool:
        options = {"action": "store_true"}
        if megatron and file.literal(about.get("default", field.value)) is not False:
            words = [f"no_{name}", f"disable_{name}"]
    names = file.literal(given.get("arg_names"), ["--" + word.replace("_", "-") for word in words])
    first, more = file.literal(given.get("cli_name"), names[0]), file.literal(given.get("aliases"), [])
    if "init" not in about and "no_cli" not in given and (megatron or kind is not field.annotation):
        yield file, field, [first, *names[1:], *more], name, {**options, **_options(given, file)}


def _typed(annotation: ast.expr, file: File) -> dict[str, Any]:
    """argparse's options for a type annotation: always a type, maybe UNREAD."""
    match annotation:
        case ast.BinOp(inner, _, ast.Constant(None)) | ast.Subscript(ast.Name("Optional"), inner):
            return _typed(inner, file)
        case ast.Subscript(ast.Name("List" | "list"), inner):
            return {**_typed(inner, file), "nargs": "+"}
        case ast.Subscript(ast.Name("Literal"), ast.Tuple([first, *_]) as inner):
            kind = type(file.literal(first)).__name__
            return {"type": TYPES.get(kind, UNREAD), "choices": file.literal(inner)}
    return {"type": TYPES.get(ast.unparse(annotation), UNREAD)}
