"""The settings as tables: for the terminal, for docs/settings.md and .env.example; none is made by hand."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Table

from recipe.presets import OF_AGENT, PRESETS
from recipe.settings import Settings

DOCS = Path(__file__).resolve().parents[1]
KINDS = {
    SecretStr: "text, secret",
    int: "integer",
    float: "number",
    bool: "0 or 1",
    str: "text",
    Path: "path",
}


class Row(NamedTuple):
    """One setting as the tables show it."""

    name: str
    kind: str
    default: str
    unit: str
    agent: str
    meaning: str


def rows() -> list[Row]:
    """Every setting, in the order of the class."""
    return [_row(name, field) for name, field in Settings.model_fields.items()]


def resolved(settings: Settings) -> str:
    """The values of one run as NAME=VALUE lines, and where each comes from."""
    lines = [
        (f"{name.upper()}={_text(value)}", settings.source(name)) for name, value in settings.public().items()
    ]
    return "\n".join(f"{line:<48} {source}" for line, source in lines)


def overview() -> Table:
    """Every setting with type, default and meaning (and unit), its name always whole."""
    table = Table("setting", "type", "default", "meaning", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in rows():
        unit = f" [{row.unit}]" if row.unit else ""
        table.add_row(row.name, row.kind, row.default, escape(row.meaning + unit))
    return table


def markdown() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Written by `recipe settings --write` from recipe/settings.py and recipe/presets.py.",
        "",
        "A value comes from, highest first: `NAME=VALUE` arguments (of `make` or of `recipe`), the",
        "environment, the preset of the command, the file `.env`, the default.",
        "",
        "| setting | type | default | unit | agent | meaning |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows()),
    ]
    for command, engines in PRESETS.items():
        for engine, preset in engines.items():
            title = f"## Preset of `make {command}`, engine {engine}"
            lines += ["", title, "", "| setting | value |", "|---|---|"]
            lines += [f"| {setting} | {_portable(value)} |" for setting, value in preset.items()]
    for (engine, agent), preset in OF_AGENT.items():
        lines += ["", f"With the engine {engine} and the agent {agent}, each of them also sets:", ""]
        lines += [f"- {setting}={value}" for setting, value in preset.items()]
    return "\n".join(lines) + "\n"


def env_example() -> str:
    """.env.example: every setting, commented out."""
    lines = [
        "# Copy to .env. Written by `recipe settings --write`; docs/settings.md explains each line.",
        "# `make smoke` and `make learn` fix what they need themselves (recipe/presets.py): what is meant for them",
        "# goes on the command line or into the environment.",
    ]
    for row in rows():
        unit = f" [{row.unit}]" if row.unit else ""
        lines += ["", f"# {row.meaning}{unit}", f"#{row.name}={row.default if _is_value(row) else ''}"]
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """The written forms by their path."""
    return {DOCS / "docs" / "settings.md": markdown(), DOCS / ".env.example": env_example()}


def _row(name: str, field: FieldInfo) -> Row:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    default = str(extra["derived"]) or _default(field)
    meaning = field.description or ""
    return Row(
        name.upper(), _kind(field.annotation), default, str(extra["unit"]), str(extra["agent"]), meaning
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    return _text(field.default)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def _kind(annotation: Any) -> str:
    if typing.get_origin(annotation) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(annotation))
    inner = next((kind for kind in KINDS if kind is annotation or kind in _parts(annotation)), None)
    return KINDS[inner] if inner else str(annotation)


def _parts(annotation: Any) -> set[Any]:
    below = typing.get_args(annotation)
    return set(below).union(*(_parts(part) for part in below)) if below else set()


def _is_value(row: Row) -> bool:
    field = Settings.model_fields[row.name.lower()]
    return field.default_factory is None and not field.is_required()


def _portable(value: str) -> str:
    return value.replace(f"{DOCS}/", "")
