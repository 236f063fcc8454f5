"""The loop: order of timers, cancelling, descriptors that come and go."""

from __future__ import annotations

import contextlib
import os
import select

import pytest

from chaos.proxy.loop import MAX_CANCELLED, Loop


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def loop(clock):
    with contextlib.closing(Loop(clock)) as loop:
        yield loop


def test_timers_fire_in_order_and_only_when_due(loop, clock):
    fired = []
    for when in (3, 1, 2):
        loop.at(when, lambda when=when: fired.append(when))
    clock.now = 2.0

    loop.soon(lambda: None)
    loop.turn()

    assert fired == [1, 2]


def test_a_cancelled_timer_does_not_fire(loop, clock):
    fired = []
    timer = loop.at(1, lambda: fired.append(1))
    timer.cancel()
    timer.cancel()
    clock.now = 2.0

    loop.soon(lambda: None)
    loop.turn()

    assert fired == []


def test_cancelled_timers_do_not_pile_up(loop):
    for _ in range(10 * MAX_CANCELLED):
        loop.at(1e9, lambda: None).cancel()

    assert len(loop._timers) <= MAX_CANCELLED + 1


def test_work_put_off_in_a_turn_waits_for_the_next_turn(loop):
    seen = []
    loop.soon(lambda: loop.soon(lambda: seen.append("next")))

    loop.turn()
    assert seen == []
    loop.turn()

    assert seen == ["next"]


def test_an_event_of_a_descriptor_that_another_handler_closed_is_dropped(loop):
    pipes = [os.pipe() for _ in range(2)]
    seen = []

    def close_the_other(mine, other):
        seen.append(mine)
        loop.unregister(other)

    (one, one_in), (two, two_in) = pipes
    loop.register(one, lambda _: close_the_other(one, two), select.EPOLLIN)
    loop.register(two, lambda _: close_the_other(two, one), select.EPOLLIN)
    os.write(one_in, b"x")
    os.write(two_in, b"x")

    loop.turn()
    for fd in (one, one_in, two, two_in):
        os.close(fd)

    assert len(seen) == 1


def test_unregistering_what_is_unknown_is_no_error(loop):
    loop.unregister(12_345)
