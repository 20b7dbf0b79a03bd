"""Signals end a run once, and never between a start and its registration."""

from __future__ import annotations

import contextlib
import signal
import weakref

import pytest

from recipe.run.interrupts import SIGNALS, Interruption, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_does_not_cut_the_stopping_that_a_first_one_began(number):
    stopped = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGINT)
            stopped.append("whole")

    with Interrupts(), pytest.raises(Interruption) as raised:
        work()
    assert stopped == ["whole"]
    assert raised.value.error().exit_code == 130
    assert number.name in str(raised.value.error())


def test_what_other_packages_catch_is_not_what_a_signal_raises():
    with Interrupts(), pytest.raises(Interruption), contextlib.suppress(Exception):
        signal.raise_signal(signal.SIGINT)


class Finalized:
    """Something whose end runs code of ours, from which Python lets no exception out."""


def swallow(number: int) -> None:
    thing = Finalized()
    weakref.finalize(thing, signal.raise_signal, number)
    del thing


@pytest.fixture
def unraisable(monkeypatch) -> None:
    # pytest's own hook would keep the lost exception.
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    monkeypatch.setattr("sys.excepthook", lambda *_: None)


def test_a_signal_whose_exception_was_lost_is_found_by_the_next_check(unraisable):
    with Interrupts() as interrupts:
        swallow(signal.SIGTERM)
        with pytest.raises(Interruption):
            interrupts.check()


def test_after_a_lost_exception_the_next_signal_raises_again(unraisable):
    with Interrupts():
        swallow(signal.SIGTERM)
        with pytest.raises(Interruption):
            signal.raise_signal(signal.SIGINT)


def test_a_held_signal_is_raised_at_the_end_of_the_hold():
    done = []

    def start(interrupts: Interrupts) -> None:
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("started and registered")
        done.append("never")

    with Interrupts() as interrupts, pytest.raises(Interruption):
        start(interrupts)
    assert done == ["started and registered"]


def test_while_stopping_no_signal_raises():
    with Interrupts() as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interruption):
            interrupts.release()


def test_the_previous_handlers_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interrupts():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
