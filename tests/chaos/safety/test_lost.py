"""A signal that arrives in a destructor still ends the run."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from chaos.safety.lost import LostSignals
from chaos.safety.signals import SignalGuard
from chaos.scenario.interrupt import Interrupted, Interrupts


class Careless:
    """Whatever is raised while it is destroyed, nobody can catch."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(1000):
            pass


def _lose(number: int, seconds: float = 5.0) -> None:
    careless = Careless(number)
    del careless
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_chaos_run_ends_though_the_signal_came_in_a_destructor(number) -> None:
    with pytest.raises(Interrupted) as ended, Interrupts():
        _lose(number)

    assert ended.value.number == number


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGTERM, pytest.exit.Exception),
        (signal.SIGHUP, pytest.exit.Exception),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_a_run_of_suites_ends_though_the_signal_came_in_a_destructor(
    number, error
) -> None:
    hard, told = [], []
    guard = SignalGuard(hard_exit=hard.append, workers=lambda: told.append(1) or [])
    guard.install()
    try:
        with pytest.raises(error):
            _lose(number)
    finally:
        guard.uninstall()

    assert hard == []
    assert len(told) <= 1, "workers are told once"


def test_the_second_signal_after_a_lost_one_does_not_wait() -> None:
    codes: list[int] = []
    with Interrupts(hard_exit=codes.append):
        with pytest.raises(Interrupted):
            _lose(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    assert codes == [143]


def test_what_is_not_a_signal_is_told_as_before() -> None:
    seen = []
    before = sys.unraisablehook
    sys.unraisablehook = seen.append
    try:
        with LostSignals(lambda error: 0, prepare=lambda: None):

            class Broken:
                def __del__(self) -> None:
                    raise ValueError("x")

            broken = Broken()
            del broken
        assert sys.unraisablehook == seen.append
    finally:
        sys.unraisablehook = before

    assert [type(each.exc_value) for each in seen] == [ValueError]


def test_a_hook_of_somebody_else_is_not_taken_away() -> None:
    before = sys.unraisablehook
    lost = LostSignals(lambda error: 0, prepare=lambda: None)
    lost.install()
    try:
        other = sys.unraisablehook = lambda lost: None
        lost.uninstall()
        assert sys.unraisablehook is other
    finally:
        sys.unraisablehook = before
