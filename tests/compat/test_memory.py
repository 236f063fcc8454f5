from __future__ import annotations

import gc

import pytest

from refimpl.compat.memory import BufferHandle, LocalBuffer, RegisteredMemory
from refimpl.core.codes import Code

OK, BAD = Code.OK, Code.INVALID_PARAMS


def test_room_is_what_is_left_of_a_region():
    memory = RegisteredMemory()
    memory.register(1000, 100)
    memory.register(1100, 50)

    assert [memory.room(at) for at in (999, 1000, 1099, 1100, 1149, 1150)] == [
        *(0, 100, 1, 50, 1, 0)
    ]


@pytest.mark.parametrize(
    ("address", "size", "code"),
    [(900, 100, OK), (900, 101, BAD), (1100, 1, OK), (1099, 1, BAD), (1000, 1, BAD)],
)
def test_neighbours_are_fine_and_overlaps_are_not(address, size, code):
    memory = RegisteredMemory()
    memory.register(1000, 100)

    assert memory.register(address, size) == code


@pytest.mark.parametrize(("address", "size"), [(0, 10), (-1, 10), (10, 0), (10, -1)])
def test_what_is_no_memory_is_refused(address, size):
    assert RegisteredMemory().register(address, size) == BAD


def test_a_view_does_not_span_two_regions():
    memory = RegisteredMemory()
    memory.register(1000, 100)
    memory.register(1100, 100)

    assert memory.view(1050, 60) is None
    assert memory.view(1200, 0) is None
    assert memory.view(1000, -1) is None


def test_clearing_forgets_all():
    memory = RegisteredMemory()
    memory.register(1000, 100)
    memory.clear()

    assert memory.room(1000) == 0
    assert memory.register(1000, 100) == OK


def test_the_budget_is_exact():
    buffer = LocalBuffer(10)

    assert buffer.take(10)
    assert not buffer.take(1)
    buffer.give(10)
    with buffer.lent(4) as taken, buffer.lent(7) as too_much:
        assert (taken, too_much, buffer.free) == (True, False, 6)
    assert buffer.free == 10
    assert not buffer.take(0)


def test_a_handle_gives_its_bytes_back_when_it_is_dropped():
    buffer = LocalBuffer(10)
    buffer.take(10)
    handle = BufferHandle(10, buffer)
    handle[:] = b"0123456789"
    before = buffer.free
    copy = bytes(handle)
    del handle
    gc.collect()

    assert (before, buffer.free, copy) == (0, 10, b"0123456789")
