"""What a run has left behind, whoever wrote it: files only, JSON with bounded numbers, text without control codes."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

# Larger than anything that is measured, and its square, or a sum of them, is still a float.
HUGE = 1e100
WHOLE_DIGITS = 18  # those of an integer of 64 bits
# ECMA-48: control sequences, strings for the terminal (titles, links), and short escapes.
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[@-Z\\-_])")
# What is left of the control characters becomes its picture; C1, and what turns the direction of text, a question.
PICTURES = (
    {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
)


def clean(text: str) -> str:
    """Text without control codes, lone surrogates and marks that reorder it."""
    text = ESCAPE.sub("", text.replace("\r\n", "\n")).translate(PICTURES)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def open_file(path: Path, flags: int = 0) -> BinaryIO:
    """Opens a file to read. Raises OSError for what is none: a pipe would keep its reader waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def loads(text: bytes) -> Any:
    """The JSON in `text`: numbers beyond HUGE are infinite, half a pair of surrogates is a question mark.

    Raises ValueError when it is none.
    """
    try:
        value = DECODER.decode(text.decode())
        if b"\\ud" in text.lower():
            return DECODER.decode(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode())
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def size(folder: Path) -> int:
    """The bytes of all files below; what is a link, or vanishes meanwhile, does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = Path(parent, name).lstat()
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _float(text: str) -> float:
    value = float(text)
    return value if abs(value) <= HUGE else math.copysign(math.inf, value)


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= WHOLE_DIGITS else _float(text)


DECODER = json.JSONDecoder(parse_float=_float, parse_int=_integer)
