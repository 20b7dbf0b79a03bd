"""Turns Ctrl-C, SIGTERM and SIGHUP into one exception that never arrives while we start or stop something."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from recipe.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within `with`, the first signal raises InterruptedRunError in the main thread, later ones do nothing.

    Held, a signal is kept until the hold ends: what was started is always registered to be stopped, too.
    """

    def __init__(self) -> None:
        self._held = False
        self._came: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """From now on no signal raises: we are stopping anyway."""
        self._held = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes inside is raised at the end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._came is not None:
            self._raise()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._came is None:
            self._came = number
            if not self._held:
                self._raise()

    def _raise(self) -> None:
        name = signal.Signals(self._came or 0).name
        raise InterruptedRunError(f"interrupted ({name}): everything that was started is stopped")
