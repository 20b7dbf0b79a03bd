"""Logs that a long run can't fill a disk with: their middle is cut, and a line says so."""

from __future__ import annotations

import re
from pathlib import Path

# A rollout of production has some 8,000 model calls, of which the session servers write about 500 bytes each: 100
# rollouts are 400 MB, which stay whole.
LIMIT_BYTES = 512 << 20
CUT = re.compile(r"\[\.\.\. (\d+) characters of this log were cut here \.\.\.\]\n")


def cut_middle(log: Path, limit: int | None = None) -> bool:
    """Keeps the first and the last quarter of `limit` bytes of a file that has grown beyond it; whether it has.

    Works on the file itself, which others append to (in append mode): what they write meanwhile may be lost.
    """
    limit = limit or LIMIT_BYTES
    if not log.exists() or log.stat().st_size <= limit:
        return False
    with log.open("r+b") as file:
        head = file.read(limit // 4)
        kept = head.rfind(b"\n") + 1
        file.seek(kept)
        rest = file.read()
        start = rest.find(b"\n", len(rest) - limit // 4) + 1
        if not start:
            start = len(rest) - limit // 4
        told = f"[... {characters(rest[:start])} characters of this log were cut here ...]\n"
        file.seek(kept)
        file.write(told.encode() + rest[start:])
        file.truncate()
    return True


def characters(text: bytes) -> int:
    """How many characters of the log a text of it stands for: what was cut out of it counts."""
    whole = text.decode(errors="replace")
    return len(whole) + sum(int(cut[1]) - len(cut[0]) for cut in CUT.finditer(whole))
