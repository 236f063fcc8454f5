"""Waiting for a prefetch: at once, by report, by poll, and never for ever."""

from __future__ import annotations

import threading
import time

import pytest

from refimpl.engine.scheduler import Scheduler
from refimpl.engine.ticket import Cancelled, Ticket


class _Prefetch:
    def __init__(self, is_done=False):
        self.is_done = is_done
        self.asked = 0

    def is_ready(self, now):
        self.asked += 1
        return self.is_done


@pytest.fixture
def make():
    made = []

    def make(poll_s=60.0):
        made.append(Scheduler(poll_s, time.monotonic))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


def _later(call, *args):
    done = threading.Event()

    def run():
        call(*args)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    return done


def _until(condition):
    waiter = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("did not come true in 5 s")


def test_what_is_ready_is_not_waited_for(make):
    scheduler = make()
    scheduler.await_ready(Ticket("1", 0.0), _Prefetch(is_done=True))

    assert scheduler.waiting == 0


def test_a_report_ends_the_wait_long_before_the_poll(make):
    scheduler, prefetch = make(poll_s=60.0), _Prefetch()
    done = _later(scheduler.await_ready, Ticket("1", 0.0), prefetch)
    _until(lambda: prefetch.asked >= 2)
    prefetch.is_done = True
    scheduler.notify()

    assert done.wait(5)
    assert scheduler.waiting == 0


def test_without_a_report_the_poll_finds_it(make):
    scheduler, prefetch = make(poll_s=0.01), _Prefetch()
    done = _later(scheduler.await_ready, Ticket("1", 0.0), prefetch)
    _until(lambda: prefetch.asked >= 3)
    prefetch.is_done = True

    assert done.wait(5)


def test_one_that_is_not_ready_does_not_hold_up_the_next(make):
    scheduler, never, soon = make(), _Prefetch(), _Prefetch()
    _later(scheduler.await_ready, Ticket("1", 0.0), never)
    _until(lambda: scheduler.waiting == 1)
    done = _later(scheduler.await_ready, Ticket("2", 0.0), soon)
    _until(lambda: scheduler.waiting == 2)
    soon.is_done = True
    scheduler.notify()

    assert done.wait(5)
    assert scheduler.waiting == 1


def test_cancel_ends_the_wait_and_forgets_the_request(make):
    scheduler, ticket = make(), Ticket("1", 0.0)
    raised = []

    def wait():
        try:
            scheduler.await_ready(ticket, _Prefetch())
        except Cancelled as cancelled:
            raised.append(str(cancelled))

    done = _later(wait)
    _until(lambda: scheduler.waiting == 1)
    ticket.cancel("enough")

    assert done.wait(5)
    assert raised == ["enough"]
    assert scheduler.waiting == 0


def test_close_ends_every_wait_and_later_ones_do_not_begin(make):
    scheduler = make()
    done = _later(scheduler.await_ready, Ticket("1", 0.0), _Prefetch())
    _until(lambda: scheduler.waiting == 1)
    scheduler.close()

    assert done.wait(5)
    scheduler.await_ready(Ticket("2", 0.0), _Prefetch())


def test_an_idle_scheduler_does_not_poll(make):
    scheduler, prefetch = make(poll_s=0.001), _Prefetch(is_done=True)
    scheduler.await_ready(Ticket("1", 0.0), prefetch)
    threading.Event().wait(0.05)

    assert prefetch.asked == 1
