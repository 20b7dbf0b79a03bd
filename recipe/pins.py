"""The pins as typed objects: pins/*.json, read and checked for form; an unknown key or value is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from recipe.errors import BadInputError

PROJECT_ROOT = Path(__file__).resolve().parents[1]
PINS = Path("pins")
UPSTREAM, RELIED_ON = PINS / "upstream.json", PINS / "relied_on.json"
TOOLS, FLAKE = PINS / "tools.json", PINS / "flake.json"

Step = str | int  # a key of an object, or an index of an array


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return pattern


def _stays_below(path: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError("a path below the checkout")
    return path


Text = Annotated[str, StringConstraints(min_length=1)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
NarHash = Annotated[str, StringConstraints(pattern=r"^sha256-[A-Za-z0-9+/]{43}=$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^\S+$"), AfterValidator(_stays_below)]
RecipeName = Annotated[str, StringConstraints(pattern=r"^(camel|terminus2)$")]
SourceName = Annotated[str, StringConstraints(pattern=r"^(miles|sglang|harbor|camel)$")]
NEEDED = {"camel": ("miles", "sglang", "harbor", "camel"), "terminus2": ("miles", "sglang", "harbor")}


class _Pinned(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Image(_Pinned):
    """The container image; `paths` tells where it has its checkouts (miles, sglang, megatron)."""

    registry: Text
    repository: Text
    digest: Digest
    reason: Text
    paths: dict[str, Text]

    @property
    def reference(self) -> str:
        """What a container engine pulls: registry/repository@digest."""
        return f"{self.registry}/{self.repository}@{self.digest}"


class Model(_Pinned):
    """The Hugging Face repository of the weights, at one commit."""

    repository: Text
    revision: Commit
    reason: Text


class Source(_Pinned):
    """A git repository at one commit; `nar_hash` is its hash as Nix computes it, where known."""

    url: Annotated[str, StringConstraints(pattern=r"^https://\S+$")]
    rev: Commit
    nar_hash: NarHash | None = Field(alias="narHash")
    reason: Text


class Recipe(RootModel[dict[SourceName, Source]]):
    """The sources of one recipe by name."""

    model_config = ConfigDict(frozen=True)

    @property
    def sources(self) -> dict[str, Source]:
        return self.root


class Tool(_Pinned):
    """A tool by version; an action of GitHub also by commit."""

    version: Text
    rev: Commit | None = None
    reason: Text


class Feature(_Pinned):
    """What the recipes rely on in one file of a source: exactly one of present, absent and pattern is given."""

    name: Text
    source: SourceName
    file: RelativePath
    present: Text | None = None
    absent: Text | None = None
    pattern: Annotated[Text, AfterValidator(_compiles)] | None = None
    why: Text
    recipes: Annotated[list[RecipeName], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        if [self.present, self.absent, self.pattern].count(None) != 2:
            raise ValueError("exactly one of present, absent and pattern")
        return self

    @property
    def expected(self) -> str:
        """The condition in words."""
        if self.pattern is not None:
            return f"a match of {self.pattern}"
        return f"text {self.present}" if self.present is not None else f"no text {self.absent}"

    def holds(self, text: str) -> bool:
        """Whether the file's text meets the condition; `^` of a pattern is the start of a line."""
        if self.pattern is not None:
            return re.search(self.pattern, text, re.MULTILINE) is not None
        return self.present in text if self.present is not None else str(self.absent) not in text


class FlakeInput(_Pinned):
    """An input of flake.nix. flake.lock pins it; `seal` is the SHA-256 of what flake.lock says, as JSON with
    sorted keys, since Nix itself notices an altered flake.lock only when it fetches.
    """

    seal: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    reason: Text

    @staticmethod
    def seal_of(locked: object) -> str:
        """The seal of a node's `locked`."""
        return hashlib.sha256(json.dumps(locked, sort_keys=True).encode()).hexdigest()


class Pins(_Pinned):
    """Everything that is pinned, and what is relied on in it."""

    image: Image
    model: Model
    recipes: dict[RecipeName, Recipe]
    features: tuple[Feature, ...]
    tools: dict[str, Tool]
    flake_inputs: dict[str, FlakeInput]

    def features_of(self, recipe: str, source: str) -> list[Feature]:
        """What `recipe` relies on in `source`."""
        return [one for one in self.features if one.source == source and recipe in one.recipes]


class _Upstream(_Pinned):
    schema_version: Literal[1] = Field(alias="schema")
    image: Image
    model: Model
    recipes: dict[RecipeName, Recipe]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for recipe, names in NEEDED.items():
            found = tuple(self.recipes[recipe].sources) if recipe in self.recipes else ()
            if sorted(found) != sorted(names):
                wanted = ", ".join(names)
                raise ValueError(f"recipes.{recipe} with {wanted} (it has {', '.join(found) or 'nothing'})")
        return self


class _ReliedOn(_Pinned):
    schema_version: Literal[1] = Field(alias="schema")
    features: list[Feature]


def load_pins(root: Path = PROJECT_ROOT) -> Pins:
    """Reads pins/*.json below `root`. Raises BadInputError: file, line, key, what was expected and found."""
    upstream = parse_upstream(root / UPSTREAM, _text(root / UPSTREAM))
    relied_on = _parse(root / RELIED_ON, _text(root / RELIED_ON), TypeAdapter(_ReliedOn))
    tools = _parse(root / TOOLS, _text(root / TOOLS), TypeAdapter(dict[str, Tool]))
    return Pins(
        image=upstream.image,
        model=upstream.model,
        recipes=upstream.recipes,
        features=tuple(relied_on.features),
        tools=tools,
        flake_inputs=_parse(root / FLAKE, _text(root / FLAKE), TypeAdapter(dict[str, FlakeInput])),
    )


def parse_upstream(path: Path, text: str) -> _Upstream:
    """What pins/upstream.json says, were `text` in it. Raises BadInputError."""
    return _parse(path, text, TypeAdapter(_Upstream))


def value_offset(text: str, steps: Sequence[Step]) -> int:
    """Where in a JSON text the value at `steps` starts; a step that is not there is passed over."""
    position = _skip(text, 0)
    for step in steps:
        position = dict(_members(text, position)).get(step, position)
    return position


def line_of(text: str, steps: Sequence[Step]) -> int:
    """The line of the value at `steps` in a JSON text, from 1."""
    return text.count("\n", 0, value_offset(text, steps)) + 1


def replaced(text: str, steps: Sequence[Step], value: str | None) -> str:
    """A JSON text with another value at `steps`, which must be there; every other character stays."""
    start = value_offset(text, steps)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[:start] + json.dumps(value) + text[end:]


def _parse[T](path: Path, text: str, kind: TypeAdapter[T]) -> T:
    try:
        data = json.loads(text, object_pairs_hook=_no_twice)
        return kind.validate_python(data)
    except json.JSONDecodeError as error:
        raise BadInputError(
            "a pins file is no JSON", expected="JSON", found=error.msg, where=f"{path}:{error.lineno}"
        ) from None
    except ValidationError as error:
        raise _bad_form(path, text, error) from None
    except _TwiceError as error:
        raise BadInputError(
            f"{path.name} has a key twice", expected="each key once", found=error, where=path
        ) from None


class _TwiceError(Exception):
    """A key of a JSON object is there twice: readers differ in which value they take."""


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise _TwiceError(", ".join(sorted(twice)))
    return dict(pairs)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError("a pins file can't be read", found=error, where=path) from None


def _bad_form(path: Path, text: str, error: ValidationError) -> BadInputError:
    problem = error.errors(include_url=False)[0]
    steps = [step for step in problem["loc"] if step != "[key]"]
    key = ".".join(str(step) for step in steps) or "its content"
    unknown = problem["type"] == "extra_forbidden"
    expected = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return BadInputError(
        f"{path.name}: {key} is {'unknown' if unknown else 'not as it should be'}",
        expected="a key of the schema" if unknown else expected,
        found=_found(problem, unknown=unknown),
        where=f"{path}:{line_of(text, steps)}",
        run=f"git diff {PINS}",
    )


def _found(problem: Any, *, unknown: bool) -> str | None:
    if unknown:
        return str(problem["loc"][-1])
    if problem["type"] in ("missing", "value_error"):
        return None
    return repr(problem["input"])


def _members(text: str, position: int) -> Iterator[tuple[Step, int]]:
    """Keys or indices of the JSON object or array at `position`, each with the offset of its value."""
    if text[position] not in "{[":
        return
    decoder, is_object, index = json.JSONDecoder(), text[position] == "{", 0
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        name: Step = index
        if is_object:
            name, position = decoder.raw_decode(text, position)
            position = _skip(text, _skip(text, position) + 1)
        yield name, position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
