"""The pins as typed objects: pins/*.json, read and checked for form; an unknown key or value is refused."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from recipe.files import read_text
from recipe.json_text import parse

PROJECT_ROOT = Path(__file__).resolve().parents[1]
PINS = Path("pins")
UPSTREAM, RELIED_ON = PINS / "upstream.json", PINS / "relied_on.json"
TOOLS, FLAKE, FORMS = PINS / "tools.json", PINS / "flake.json", PINS / "forms.json"
NEEDED = {"camel": ("miles", "sglang", "harbor", "camel"), "terminus2": ("miles", "sglang", "harbor")}
# The setting that tells where the image's checkout is.
IMAGE_PATHS = {"miles": "miles_dir", "sglang": "sglang_dir", "megatron": "megatron_path"}


class _Pinned(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression ({error})") from None
    return pattern


def _stays_below(path: str) -> str:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError("a path below the checkout")
    return path


Text = Annotated[str, StringConstraints(min_length=1)]
Pattern = Annotated[Text, AfterValidator(_compiles)]


class _Form(_Pinned):
    expected: Text
    pattern: Pattern

    def check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(self.expected)
        return value


def _read[T](path: Path, kind: TypeAdapter[T]) -> T:
    return parse(path, read_text(path), kind)


# The forms of texts in pins/upstream.json, which nix/pins.nix reads as well.
FORM = {
    name: AfterValidator(form.check)
    for name, form in _read(PROJECT_ROOT / FORMS, TypeAdapter(dict[str, _Form])).items()
}
Commit = Annotated[str, FORM["commit"]]
NarHash = Annotated[str, FORM["narHash"]]
Reason = Annotated[str, FORM["reason"]]
RelativePath = Annotated[str, StringConstraints(pattern=r"^\S+$"), AfterValidator(_stays_below)]
RecipeName = Annotated[str, StringConstraints(pattern=r"^(camel|terminus2)$")]
SourceName = Annotated[str, StringConstraints(pattern=r"^(miles|sglang|harbor|camel)$")]
PathName = Annotated[str, StringConstraints(pattern=f"^({'|'.join(IMAGE_PATHS)})$")]
SchemaVersion = Annotated[int, Field(ge=1, le=1)]  # not Literal, which takes true and 1.0 for 1


class Image(_Pinned):
    """The container image; `paths` tells where it has its checkouts (miles, sglang, megatron)."""

    registry: Annotated[str, FORM["registry"]]
    repository: Annotated[str, FORM["repository"]]
    digest: Annotated[str, FORM["digest"]]
    reason: Reason
    paths: Annotated[dict[PathName, Annotated[str, FORM["folder"]]], Field(min_length=len(IMAGE_PATHS))]

    @property
    def reference(self) -> str:
        """What a container engine pulls: registry/repository@digest."""
        return f"{self.registry}/{self.repository}@{self.digest}"


class Model(_Pinned):
    """The Hugging Face repository of the weights, at one commit."""

    repository: Annotated[str, FORM["repository"]]
    revision: Commit
    reason: Reason


class Source(_Pinned):
    """A git repository at one commit; `nar_hash` is its hash as Nix computes it, where known."""

    url: Annotated[str, FORM["url"]]
    rev: Commit
    nar_hash: NarHash | None = Field(alias="narHash")
    reason: Reason


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
    pattern: Pattern | None = None
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


class _Upstream(_Pinned):
    schema_version: SchemaVersion = Field(alias="schema")
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


class Pins(_Upstream):
    """Everything that is pinned, and what is relied on in it."""

    features: tuple[Feature, ...]
    tools: dict[str, Tool]
    flake_inputs: dict[str, FlakeInput]

    def features_of(self, recipe: str, source: str) -> list[Feature]:
        """What `recipe` relies on in `source`."""
        return [one for one in self.features if one.source == source and recipe in one.recipes]


class _ReliedOn(_Pinned):
    schema_version: SchemaVersion = Field(alias="schema")
    features: list[Feature]


def _with_uv(tools: dict[str, Tool]) -> dict[str, Tool]:
    if "uv" not in tools:
        raise ValueError("a tool uv")
    return tools


def load_pins(root: Path = PROJECT_ROOT) -> Pins:
    """Reads pins/*.json below `root`. Raises BadInputError: file, line, key, what was expected and found."""
    return Pins.model_construct(
        **dict(parse_upstream(root / UPSTREAM, read_text(root / UPSTREAM))),
        features=tuple(_read(root / RELIED_ON, TypeAdapter(_ReliedOn)).features),
        tools=_read(root / TOOLS, TypeAdapter(Annotated[dict[str, Tool], AfterValidator(_with_uv)])),
        flake_inputs=_read(root / FLAKE, TypeAdapter(dict[str, FlakeInput])),
    )


def parse_upstream(path: Path, text: str) -> _Upstream:
    """What pins/upstream.json says, were `text` in it. Raises BadInputError."""
    return parse(path, text, TypeAdapter(_Upstream))
