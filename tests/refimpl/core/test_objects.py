from __future__ import annotations

import numpy as np
import pytest

from refimpl.core.objects import COMPLETE, FREE, PROCESSING, SHARDS, ObjectTable


def keys_of(*numbers):
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 1] = numbers
    return keys


def claim(table, *numbers, state=PROCESSING):
    slots = table.claim(keys_of(*numbers))
    table.state[slots] = state
    table.complete += len(slots) if state == COMPLETE else 0
    return slots


def test_a_row_is_one_cache_line():
    assert ObjectTable(8).index.rows.itemsize * 8 == 64


def test_claimed_slots_hold_their_keys():
    table = ObjectTable(8)
    slots = claim(table, 5, 6, 7)

    assert table.keys[slots, 1].tolist() == [5, 6, 7]
    assert (table.count, table.high_water) == (3, 3)


def test_dropped_slots_are_used_again_before_new_ones():
    table = ObjectTable(8)
    slots = claim(table, 1, 2, 3)
    table.drop(slots[:2])

    again = claim(table, 4, 5, 6)

    assert set(slots[:2].tolist()) < set(again.tolist())
    assert table.high_water == 4


def test_dropping_counts_both_states():
    table = ObjectTable(8)
    slots = np.concatenate([claim(table, 1), claim(table, 2, 3, state=COMPLETE)])

    table.drop(slots[:2])

    assert (table.count, table.complete) == (1, 1)
    assert table.state[slots[:2]].tolist() == [FREE, FREE]


def test_dropping_twice_is_a_bug_that_shows():
    table = ObjectTable(8)
    slots = claim(table, 1)
    table.drop(slots)

    with pytest.raises(AssertionError, match="free already"):
        table.drop(slots)


def test_a_full_table_takes_nothing_more():
    table = ObjectTable(4)
    claim(table, 1, 2, 3, 4)

    with pytest.raises(AssertionError, match="full"):
        table.claim(keys_of(5))


def test_the_absent_slot_reads_as_free_and_empty():
    table = ObjectTable(4)
    claim(table, 1, 2, 3, 4)

    slots, rows = table.locate(keys_of(9))

    assert (slots.tolist(), table.state[-1]) == ([-1], FREE)
    assert (rows["size"][0], rows["segment"][0].tolist()) == (0, [0, 0])


@pytest.mark.parametrize("capacity", [1, 1000, 1 << 20])
def test_the_shards_cover_the_table(capacity):
    table = ObjectTable(capacity)

    assert table.shard_size * SHARDS >= capacity
    assert (table.shard_size - 1) * SHARDS < capacity
