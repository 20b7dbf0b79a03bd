"""What the plugins tell of a run: one JSON object a line, appended to the file that RUN_JOURNAL names.

A journal that can't be written costs no trial: that is told once, and the run goes on without it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from recipe.plugins.environment import optional

logger = logging.getLogger(__name__)

# Of this process, as the rollout loop is: the rollout that runs, and whether a line was lost or cut.
_state: dict[str, Any] = {"rollout": None, "broken": False}


def set_rollout(rollout: int) -> None:
    """From now on every line says that it is of this rollout."""
    _state["rollout"] = rollout


def write(kind: str, **fields: Any) -> None:
    """Appends one event with its time (unix seconds) and rollout; nothing where RUN_JOURNAL is not set."""
    path = optional("RUN_JOURNAL")
    if path is None:
        return
    event = {"time": time.time(), "kind": kind, "rollout": _state["rollout"], **fields}
    # A line that a full disk cut is ended first, so that it takes no other one with it.
    line = "\n" * _state["broken"] + json.dumps(event, default=str) + "\n"
    try:
        _append(path, line.encode(errors="replace"))
    except OSError as error:
        if not _state["broken"]:
            logger.warning("the journal %s can't be written, what happens is not recorded: %s", path, error)
        _state["broken"] = True
    else:
        _state["broken"] = False


def _append(path: str, line: bytes) -> None:
    """One write in append mode: lines of several writers never mix."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(handle, line) < len(line):
            raise OSError("only a part of a line could be written")
    finally:
        os.close(handle)
