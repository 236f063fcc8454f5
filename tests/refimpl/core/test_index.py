from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.core.index import KeyIndex, mixed


def keys_of(numbers):
    """Keys that differ in one word only, the hardest ones to spread."""
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 3] = numbers
    return keys


def keys_with_one_first_word(count, *, bits, home):
    """Keys of one first word and one home cell in a table of `2**bits` cells."""
    keys = np.full((count * 4 << bits, 4), 7, dtype=np.uint64)
    keys[:, 1] = np.arange(len(keys))
    homes = mixed(keys) >> np.uint64(64 - bits)
    return keys[homes == home][:count]


def slots_of(numbers):
    return np.array(numbers, dtype=np.intp)


def test_absent_keys_have_slot_minus_one():
    index = KeyIndex(8)

    assert index.find(keys_of([1, 2])).tolist() == [-1, -1]


def test_the_all_zero_key_is_a_key_like_any_other():
    index = KeyIndex(8)

    before = index.find(keys_of([0])).tolist()
    index.insert(keys_of([0]), slots_of([5]))

    assert (before, index.find(keys_of([0])).tolist()) == ([-1], [5])


def test_keys_that_begin_with_the_same_word_are_told_apart():
    index = KeyIndex(8)
    keys = keys_with_one_first_word(8, bits=5, home=3)
    index.insert(keys[:6], np.arange(6))
    assert index.find(keys).tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    index.delete(keys[1:2])
    assert index.find(keys).tolist() == [0, -1, 2, 3, 4, 5, -1, -1]


def test_a_batch_may_name_one_key_many_times():
    index = KeyIndex(8)
    index.insert(keys_of([7]), slots_of([3]))

    assert index.find(keys_of([7, 9, 7, 7])).tolist() == [3, -1, 3, 3]


def test_a_full_index_finds_every_key():
    index = KeyIndex(5000)
    numbers = np.arange(5000)
    index.insert(keys_of(numbers), slots_of(numbers))

    found = index.find(keys_of(np.arange(6000)))

    assert (found[:5000] == numbers).all()
    assert (found[5000:] == -1).all()


def test_deleting_absent_keys_and_duplicates_is_harmless():
    index = KeyIndex(8)
    index.insert(keys_of([1, 2]), slots_of([0, 1]))

    index.delete(keys_of([1, 1, 3]))

    assert index.find(keys_of([1, 2, 3])).tolist() == [-1, 1, -1]


def test_deleting_a_slot_that_is_not_indexed_is_a_bug_that_shows():
    index = KeyIndex(8)

    with pytest.raises(AssertionError, match="not in the index"):
        index.delete_slots(slots_of([4]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 63), max_size=40)),
        max_size=12,
    )
)
def test_runs_stay_findable_through_any_inserts_and_deletes(steps):
    index, model, unused = KeyIndex(64), {}, list(range(64))
    for inserts, numbers in steps:
        distinct = list(dict.fromkeys(numbers))
        if inserts:
            new = [n for n in distinct if n not in model]
            model.update({n: unused.pop() for n in new})
            index.insert(keys_of(new), slots_of([model[n] for n in new]))
        else:
            index.delete(keys_of(distinct))
            unused += [model.pop(n) for n in distinct if n in model]

    expected = [model.get(n, -1) for n in range(64)]

    assert expected == index.find(keys_of(np.arange(64))).tolist()
    assert index.occupied() == len(model)
