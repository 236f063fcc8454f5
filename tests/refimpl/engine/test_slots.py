"""The queue in front of the slots: order, bounds, and no slot that gets lost."""

from __future__ import annotations

import threading

import pytest

from refimpl.engine.slots import DuplicateRequest, PrefillSlots, QueueFull
from refimpl.engine.ticket import Cancelled, Ticket


def _enter(slots, *names):
    tickets = [Ticket(name, 0.0) for name in names]
    for ticket in tickets:
        slots.enter(ticket)
    return tickets


def _acquire_later(slots, ticket, got):
    def run():
        slots.acquire(ticket)
        got.append(ticket.request_id)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _until(condition):
    waiter = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("did not come true in 5 s")


def test_slots_are_granted_in_the_order_of_entry_not_of_readiness():
    slots = PrefillSlots(1, 10)
    first, second, third = _enter(slots, "1", "2", "3")
    slots.acquire(first)
    got = []
    late = _acquire_later(slots, third, got)
    _until(lambda: slots.counts()["eligible"] == 1)
    early = _acquire_later(slots, second, got)
    _until(lambda: slots.counts()["eligible"] == 2)
    slots.release(first)
    early.join(5)
    slots.release(second)
    late.join(5)

    assert got == ["2", "3"]


def test_who_is_not_eligible_blocks_nobody():
    slots = PrefillSlots(1, 10)
    _waits_for_cache, second = _enter(slots, "1", "2")
    slots.acquire(second)

    assert second.granted


def test_capacity_is_a_bound_and_leaving_makes_room():
    slots = PrefillSlots(1, 2)
    first, _ = _enter(slots, "1", "2")
    with pytest.raises(QueueFull):
        _enter(slots, "3")
    slots.leave(first)

    _enter(slots, "3")


def test_an_active_id_is_refused():
    slots = PrefillSlots(1, 2)
    _enter(slots, "1")

    with pytest.raises(DuplicateRequest):
        _enter(slots, "1")


def test_a_refused_double_does_not_take_the_first_one_away():
    slots = PrefillSlots(1, 2)
    (first,) = _enter(slots, "1")
    slots.leave(Ticket("1", 0.0))

    assert slots.find("1") is first


def test_cancel_while_waiting_raises_and_leaves_no_trace():
    slots = PrefillSlots(1, 10)
    first, second, third = _enter(slots, "1", "2", "3")
    slots.acquire(first)
    second.cancel("no more")
    with pytest.raises(Cancelled, match="no more"):
        slots.acquire(second)
    slots.leave(second)
    slots.leave(first)
    slots.acquire(third)
    slots.leave(third)

    assert slots.counts() == {
        "inside": 0,
        "eligible": 0,
        "running": 0,
        "free_slots": 1,
    }


def test_a_slot_granted_to_a_cancelled_request_comes_back():
    slots = PrefillSlots(1, 10)
    first, second = _enter(slots, "1", "2")
    slots.acquire(first)
    got = []
    thread = _acquire_later(slots, second, got)
    _until(lambda: slots.counts()["eligible"] == 1)
    slots.release(first)
    thread.join(5)
    second.cancel("late")
    slots.leave(second)
    slots.leave(second)

    assert slots.counts()["free_slots"] == 1


def test_release_without_a_slot_changes_nothing():
    slots = PrefillSlots(2, 10)
    (ticket,) = _enter(slots, "1")
    slots.release(ticket)

    assert slots.counts()["free_slots"] == 2
