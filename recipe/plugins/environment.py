"""The settings of the plugins: environment variables that the launcher sets; there are no defaults here."""

from __future__ import annotations

import os
from collections.abc import Callable


class PluginSettingError(Exception):
    """An environment variable that the job must carry is missing or malformed."""


def required[T](name: str, kind: Callable[[str], T]) -> T:
    """The variable `name` as `kind`. Raises PluginSettingError."""
    text = os.environ.get(name, "")
    try:
        if text:
            return kind(text)
    except ValueError:
        pass
    raise PluginSettingError(f"the job's environment must set {name}; found {text!r}")


def optional(name: str) -> str | None:
    """The variable `name`, or None when it is unset or empty."""
    return os.environ.get(name) or None
