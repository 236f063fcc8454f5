"""The clock of a role: steps when told, never goes back, heals when cleared."""

from __future__ import annotations

import pytest

from refimpl.clock import FAILPOINT, Clock
from refimpl.failpoints import Failpoints


class Base:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def points():
    return Failpoints()


@pytest.fixture
def base():
    return Base()


def test_a_clock_that_nobody_stepped_is_its_base(points, base) -> None:
    clock = Clock(points, base)

    assert clock() == 100.0
    base.now_s = 101.5
    assert clock() == 101.5


def test_a_step_forward_happens_once_and_stays(points, base) -> None:
    clock = Clock(points, base)
    points.set(FAILPOINT, "1*return(5000)")

    assert [clock(), clock()] == [105.0, 105.0]
    points.clear(FAILPOINT)
    base.now_s = 101.0
    assert clock() == 106.0


def test_a_step_back_stands_still_until_time_has_caught_up(points, base) -> None:
    clock = Clock(points, base)
    points.set(FAILPOINT, "1*return(-5000)->return(0)")

    assert clock() == 100.0
    base.now_s = 104.9
    assert clock() == 100.0
    base.now_s = 106.0
    assert clock() == 101.0


def test_a_cleared_step_back_lets_time_go_on_at_once(points, base) -> None:
    clock = Clock(points, base)
    points.set(FAILPOINT, "1*return(-60000)->return(0)")
    assert clock() == 100.0
    points.clear(FAILPOINT)
    base.now_s = 101.0

    assert clock() == 100.0
    base.now_s = 103.0
    assert clock() == 102.0


def test_steps_are_counted_as_hits(points, base) -> None:
    clock = Clock(points, base)
    points.set(FAILPOINT, "1*return(5000)")
    clock()
    clock()

    assert points.snapshot()[FAILPOINT]["hits"] == 1


def test_time_never_goes_back_under_any_steps(points, base) -> None:
    clock = Clock(points, base)
    seen = [clock()]
    for step in (3000, -8000, 10, -10, 500_000, -1):
        points.set(FAILPOINT, f"1*return({step})")
        for _ in range(3):
            base.now_s += 0.25
            seen.append(clock())

    assert seen == sorted(seen)
