"""How one setting is declared, and the forms that its value may have."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

INTERFACE = r"^[\w.:,=^-]+$"
INTERFACE_FORM = "the name of a network interface"
# No sound number comes near it, and what is worked out of several such ones still fits a float.
LARGEST = 10**12
WORD = r"^[\w.-]+$"
WORD_FORM = "letters, digits and . _ - only"


def _absolute(path: Path) -> Path:
    if any(ord(character) < ord(" ") for character in str(path)):
        raise ValueError("a path without control characters")
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # ~name of no user
        raise ValueError(str(error)) from error


def _address(text: str) -> str:
    try:
        named = not text.replace(".", "").isdigit() and re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", text)
        if named or ipaddress.IPv4Address(text) != ipaddress.IPv4Address(0):
            return text
    except ValueError:
        pass
    raise ValueError("the IPv4 address or the name of one host")


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Address = Annotated[str, AfterValidator(_address)]


def setting(
    default: object = ...,
    *,
    meaning: str,
    unit: str = "",
    derived: str = "",
    agent: str = "all",
    form: str = "",
    factory: Callable[[dict[str, Any]], object] | None = None,
    **bounds: Any,
) -> Any:
    """A field and what the tables show of it; `derived` says in words what `factory` computes, `form` a pattern."""
    if "ge" in bounds:
        bounds.setdefault("le", LARGEST)
    extra: dict[str, Any] = {"unit": unit, "derived": derived, "agent": agent, "form": form}
    if factory is not None:
        return Field(default_factory=factory, description=meaning, json_schema_extra=extra, **bounds)
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)
