from __future__ import annotations

import itertools

import pytest

from chaos.systems.clocks import Clocks, in_our_time


class Time:
    """Our clock; asking takes as long as the next of `trips_s` says."""

    def __init__(self, trips_s) -> None:
        self.now = 1000.0
        self.trips_s = itertools.cycle(trips_s)

    def __call__(self) -> float:
        return self.now

    def ask(self, ahead_s):
        def asked() -> float:
            trip_s = next(self.trips_s)
            self.now += trip_s / 2
            theirs = self.now + ahead_s
            self.now += trip_s / 2
            return theirs

        return asked


def test_a_machine_that_booted_earlier_is_ahead() -> None:
    ours = Time([0.002])

    assert Clocks(ours).ahead_s("e", 1, ours.ask(5000.0)) == pytest.approx(5000.0)


def test_the_quickest_answer_counts() -> None:
    ours = Time([0.8, 0.001])
    late = iter([0.3, 0.0, 0.3, 0.0, 0.3])
    ask = ours.ask(-70.0)

    def lopsided() -> float:
        theirs = ask()
        ours.now += next(late)
        return theirs

    assert Clocks(ours).ahead_s("e", 1, lopsided) == pytest.approx(-70.0, abs=1e-3)


@pytest.mark.parametrize("ahead_s", [0.0, 0.004, -0.03])
def test_roles_of_this_kernel_are_not_shifted_by_the_way_to_them(ahead_s) -> None:
    ours = Time([0.001])

    assert Clocks(ours).ahead_s("e", 1, ours.ask(ahead_s)) == 0.0


def test_a_process_is_asked_once() -> None:
    ours = Time([0.002])
    clocks, asked = Clocks(ours), []

    def ask(ahead_s):
        asked.append(ahead_s)
        return ours.ask(ahead_s)()

    first = clocks.ahead_s("e", 1, lambda: ask(100.0))
    assert clocks.ahead_s("e", 1, lambda: ask(7.0)) == first
    assert clocks.ahead_s("e", 2, lambda: ask(200.0)) == pytest.approx(200.0)
    assert len(asked) == 10


def test_instants_of_a_state_are_told_on_our_clock() -> None:
    cache = {
        "breaker": {"transitions": [{"at": 105.0, "to": "OPEN"}]},
        "quarantine": {"events": [{"at": 106.5, "endpoint": "store-1"}]},
        "now": 107.0,
    }

    in_our_time(cache, 100.0)

    assert cache["breaker"]["transitions"][0]["at"] == 5.0
    assert cache["quarantine"]["events"][0]["at"] == 6.5
    assert cache["now"] == 7.0
