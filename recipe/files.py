"""Text files, read with a clear error and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from recipe.errors import BadInputError


def read_text(path: Path) -> str:
    """The text of a file. Raises BadInputError when it is not there, not readable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError("a file can't be read", expected="UTF-8 text", found=error, where=path) from None


def write_whole(path: Path, text: str) -> None:
    """Writes a file that a reader never sees half-written; its mode stays. Raises OSError and leaves nothing."""
    # Two runs may write one file of a shared cache at the same time.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        if path.exists():
            partial.chmod(path.stat().st_mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
