"""Turns Ctrl-C, SIGTERM and SIGHUP into one exception that never arrives while we start or stop something."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from recipe.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(BaseException):
    """A signal came. No Exception, since other packages catch those wherever it may hit them."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name

    def error(self) -> InterruptedRunError:
        """What the user is told once everything is stopped."""
        return InterruptedRunError(f"interrupted ({self.name}): everything that was started is stopped")


class Interrupts:
    """Within `with`, a signal raises Interruption in the main thread, unless an earlier one is on its way.

    Where Python itself drops exceptions (in a finalizer, say) it is lost: `check` and the next signal raise anew.
    Held, a signal is kept until the hold ends: what was started is always registered to be stopped, too.
    """

    def __init__(self) -> None:
        self._held = False
        self._came: int | None = None
        # Dead as soon as nobody handles the exception any more: stopping is not interrupted by a second Ctrl-C.
        self._raised: weakref.ref[Interruption] | None = None
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
        """From now on no signal raises."""
        self._held = True

    def release(self) -> None:
        """Ends a hold, and raises what came meanwhile."""
        self._held = False
        self.check()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes inside is raised at the end, unless that lies in a longer hold."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before
        self.check()

    def check(self) -> None:
        """Raises when a signal came, even if its exception was lost."""
        if self._came is not None and not self._held:
            interruption = Interruption(self._came)
            self._raised = weakref.ref(interruption)
            try:
                raise interruption
            finally:
                del interruption  # this frame, which the exception refers to, would keep it alive

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._came is None:
            self._came = number
        if self._raised is None or self._raised() is None:
            self.check()
