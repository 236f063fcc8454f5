from __future__ import annotations

import random

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.core.names import NAME_BYTES_MAX, Names
from refimpl.core.pool import Pool, PoolSettings, SegmentInfo

PAGE = 4096


def slots(*numbers):
    return np.array(numbers, dtype=np.intp)


def keys_of(*numbers):
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 0] = numbers
    return keys


@pytest.fixture
def pool():
    pool = Pool(PoolSettings(max_objects=64, max_names_bytes=64), random.Random(0))
    info = SegmentInfo(
        id=1, name="s", host_id="h", size=1 << 20, rails=(("a", "127.0.0.1:1"),)
    )
    assert pool.mount(info, 9, 0.0) == Code.OK
    yield pool
    assert pool.conservation() == []


def put(pool, keys, names=(), now=0.0):
    sizes = np.full(len(keys), PAGE, dtype=np.uint32)
    started = pool.put_start(keys, sizes, now, client=1, host_id="", names=names)
    pool.put_end(keys, started.token, np.zeros(len(keys), np.uint64), now, client=1)
    return started


def test_names_stand_beside_their_slots_until_they_go():
    names = Names(8, 1 << 10)
    names.keep(slots(2, 5), ["two", "five"])
    names.forget(slots(5, 6))

    assert list(names.within(range(8))) == ["two"]
    assert (names.count, names.bytes) == (1, 3)


def test_bytes_are_counted_in_utf_8_and_bounded():
    names = Names(8, 5)
    names.keep(slots(0, 1, 2), ["héé", "b", ""])

    assert list(names.within(range(8))) == ["héé"]
    assert (names.bytes, names.dropped) == (5, 1)


def test_a_name_beyond_the_limit_is_dropped_alone():
    names = Names(8, 1 << 20)
    names.keep(slots(0, 1), ["x" * (NAME_BYTES_MAX + 1), "y" * NAME_BYTES_MAX])

    assert names.dropped == 1
    assert names.count == 1


def test_a_writer_without_names_costs_no_memory():
    names = Names(1 << 20, 1 << 20)
    names.forget(slots(7))

    assert list(names.within(range(9))) == []


def test_only_readable_objects_are_listed(pool):
    put(pool, keys_of(1, 2), ["one", "two"])
    sizes = np.full(1, PAGE, dtype=np.uint32)
    pool.put_start(keys_of(3), sizes, 0.0, client=1, host_id="", names=["three"])

    assert pool.names(0) == (["one", "two"], 0)


def test_the_name_goes_with_the_object_and_a_new_one_has_its_own(pool):
    put(pool, keys_of(1, 2), ["one", "two"])
    pool.remove(keys_of(1), 1.0)
    put(pool, keys_of(3), ["three"])
    put(pool, keys_of(4))

    assert sorted(pool.names(0)[0]) == ["three", "two"]
    assert pool.stats(1.0).gauges["master_named_key_count"] == 2


def test_the_second_writer_of_a_key_does_not_rename_it(pool):
    put(pool, keys_of(1), ["first"])
    started = put(pool, keys_of(1), ["second"])

    assert started.status.tolist() == [Code.OBJECT_ALREADY_EXISTS]
    assert pool.names(0)[0] == ["first"]


def test_names_without_room_are_counted_and_their_objects_are_there(pool):
    put(pool, keys_of(1, 2), ["x" * 60, "y" * 60])

    assert pool.names(0)[0] == ["x" * 60]
    assert pool.lookup(keys_of(1, 2), 0.0).status.tolist() == [0, 0]
    assert pool.stats(0.0).counters["master_names_dropped_total"] == 1


def test_names_of_a_removed_segment_are_not_listed(pool):
    put(pool, keys_of(1), ["one"])
    pool.unmount(1, 9, 1.0)

    assert pool.names(0) == ([], 0)


def test_a_listing_comes_in_slices(pool, monkeypatch):
    monkeypatch.setattr("refimpl.core.pool._NAMES_PER_SLICE", 2)
    put(pool, keys_of(1, 2, 3), ["one", "two", "three"])

    first, cursor = pool.names(0)

    assert first == ["one", "two"]
    assert pool.names(cursor) == (["three"], 0)
    assert pool.names(99) == ([], 0)


def test_removing_all_by_force_takes_what_readers_hold(pool):
    put(pool, keys_of(1, 2))
    pool.lookup(keys_of(1), 1.0)

    assert pool.remove_all(2.0) == 1
    assert pool.remove_all(2.0, force=True) == 1
    assert pool.stats(2.0).gauges["master_allocated_bytes"] == PAGE
    pool.release(pool.maintain(20.0).freed)
    assert pool.stats(20.0).gauges["master_allocated_bytes"] == 0
