"""Each law of the pool can be broken, and is then told."""

from __future__ import annotations

import random

import numpy as np
import pytest

from refimpl.core.objects import COMPLETE, FREE
from refimpl.core.pool import Pool, PoolSettings, SegmentInfo


@pytest.fixture
def pool():
    pool = Pool(PoolSettings(max_objects=64), random.Random(0))
    info = SegmentInfo(id=1, name="store-1", host_id="h", size=1 << 16, rails=())
    pool.mount(info, 1, 0.0)
    keys = np.arange(32, dtype=np.uint64).reshape(8, 4)
    sizes = np.full(8, 1000, dtype=np.uint32)
    started = pool.put_start(keys, sizes, 0.0, client=1, host_id="")
    pool.put_end(keys[:4], started.token[:4], started.token[:4], 0.0, client=1)
    assert pool.conservation() == []
    return pool


def lost_bytes(pool):
    pool._segments.live()[0].allocator.allocate(1000)


def two_owners(pool):
    pool._objects.offset[1] = pool._objects.offset[0]


def wrong_count(pool):
    pool._objects.count += 1


def wrong_complete(pool):
    pool._objects.state[5] = COMPLETE


def lost_key(pool):
    pool._objects.index.delete_slots(np.array([3]))


def moved_key(pool):
    pool._objects.keys[2] += np.uint64(1)


def absent_slot_used(pool):
    pool._objects.state[-1] = FREE + 1


@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        (lost_bytes, "9000 B allocated, 8000 B owned"),
        (two_owners, "overlap or leave a gap"),
        (wrong_count, "9 slots counted, 8 used"),
        (wrong_complete, "4 objects counted complete, 5 are"),
        (lost_key, "7 keys indexed, 8 slots used"),
        (moved_key, "not found at its slot"),
        (absent_slot_used, "absent slot is in use"),
    ],
)
def test_a_broken_law_is_told_in_words(pool, breaking, words):
    breaking(pool)

    assert any(words in law for law in pool.conservation())
