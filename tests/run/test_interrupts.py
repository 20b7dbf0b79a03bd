"""Signals end a run once, and never between a start and its registration."""

from __future__ import annotations

import signal

import pytest

from recipe.errors import InterruptedRunError
from recipe.run.interrupts import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_once_and_later_ones_do_not(number):
    with Interrupts():
        with pytest.raises(InterruptedRunError, match=number.name):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)


def test_a_held_signal_is_raised_at_the_end_of_the_hold():
    done = []

    def start(interrupts: Interrupts) -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("started and registered")
        done.append("never")

    with Interrupts() as interrupts, pytest.raises(InterruptedRunError):
        start(interrupts)
    assert done == ["started and registered"]


def test_while_stopping_no_signal_raises():
    with Interrupts() as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)


def test_the_previous_handlers_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
