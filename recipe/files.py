"""Text files, read with a clear error and written whole or not at all; places where nothing can be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from recipe.errors import BadInputError, RecipeError


def read_text(path: Path) -> str:
    """The text of a file. Raises BadInputError when it is not there, not readable or not UTF-8."""
    found: object = "a pipe"
    try:
        if not path.is_fifo():  # which would be waited for
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = error
    raise BadInputError("a file can't be read", expected="UTF-8 text", found=found, where=path)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that a reader never sees half-written; its mode stays, a link to it too.

    Raises BadInputError when something other than a file is there, else OSError; leaves nothing half-written.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not target.is_file():  # a folder, a pipe, a device, a loop of links
        raise BadInputError("a file could not be written", expected="a file, or nothing there", found=path)
    # Two runs may write one file of a shared cache at the same time.
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        if target.exists():
            partial.chmod(target.stat().st_mode)
        partial.replace(target)
    except OSError as error:
        error.filename = str(path)  # and not a part of it that is gone by then
        raise
    finally:
        partial.unlink(missing_ok=True)


def require_folder(path: Path, name: str) -> None:
    """Raises BadInputError when `path`, which the user knows as `name`, is no folder to write in nor can become one."""
    whole = path.absolute()
    there = next(part for part in (whole, *whole.parents) if os.path.lexists(part))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True) or not there.is_dir():
        found = f"{there} is no folder, or not for this user"
        raise BadInputError(f"{name} can't be written", expected="a place for it", found=found, where=path)


def kind_of(error: OSError) -> type[RecipeError]:
    """What an error in a place that the user chose is: a failure of the disk, or else bad input."""
    return RecipeError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else BadInputError
