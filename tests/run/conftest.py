"""The command line in this process, where a process of its own would show nothing more."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from recipe import cli


@pytest.fixture
def recipe(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`recipe WORDS`: its exit code, and all that it and the programs that it starts print."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["recipe", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, "".join(capfd.readouterr())

    return run
