from __future__ import annotations

import random

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.core.eviction import target_and_floor
from refimpl.core.pool import Pool, PoolSettings, SegmentInfo

PAGE = 4096


def keys_of(*numbers):
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 2] = numbers
    return keys


class OneStore:
    """A pool of one store with `pages` pages; times are given with each step."""

    def __init__(self, pages=100, **settings):
        settings.setdefault("max_objects", 4096)
        self.pool = Pool(PoolSettings(**settings), random.Random(0))
        info = SegmentInfo(
            id=1, name="store-1", host_id="host-1", size=pages * PAGE, rails=()
        )
        self.pool.mount(info, 9, 0.0)

    def put(self, numbers, now, *, size=PAGE, pin="", exclude=()):
        keys = keys_of(*numbers)
        sizes = np.full(len(keys), size, dtype=np.uint32)
        started = self.pool.put_start(
            keys, sizes, now, client=1, host_id="", pin=pin, exclude=frozenset(exclude)
        )
        self.pool.put_end(keys, started.token, started.token, now, client=1)
        return started.status.tolist()

    def look(self, numbers, now, grant_lease=True):
        found = self.pool.lookup(keys_of(*numbers), now, grant_lease)
        return {n for n, c in zip(numbers, found.status, strict=True) if c == Code.OK}

    def one_pass(self, now):
        """Slices until the pass is over; returns how many objects went."""
        evicted = 0
        for _ in range(1000):
            done = self.pool.maintain(now)
            self.pool.release(done.freed)
            evicted += done.evicted
            if done.again_in_s > 0:
                return evicted
        raise AssertionError("pass does not end")

    def counter(self, name):
        return self.pool.stats(0.0).counters[name]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (0.50, (0.05, 0.025)),
        (0.91, (0.06, 0.03)),
        (0.95, (0.10, 0.05)),
        (1.00, (0.15, 0.10)),
    ],
)
def test_target_and_floor_follow_upstreams_formulas(used, expected):
    assert expected == pytest.approx(target_and_floor(used, PoolSettings()))


def test_nothing_is_evicted_below_the_watermark():
    store = OneStore()
    store.put(range(90), 0.0)

    assert store.one_pass(1.0) == 0
    assert store.counter("master_attempted_evictions_total") == 0


def test_the_least_recently_looked_up_go_first():
    store = OneStore()
    for number in range(95):
        store.put([number], number / 100)
    store.look(range(40), 1.0)

    evicted = store.one_pass(20.0)
    left = store.look(range(95), 20.0, grant_lease=False)

    assert set(range(95)) - left == set(range(40, 40 + evicted))
    assert evicted == 10
    assert store.pool.conservation() == []


def test_objects_nobody_looked_up_go_by_age_even_when_slots_were_reused():
    store = OneStore()
    for number in range(60):
        store.put([number], number / 100)
    store.pool.remove(keys_of(*range(0, 60, 2)), 1.0)
    for number in range(100, 165):
        store.put([number], number / 100)

    evicted = store.one_pass(20.0)
    left = store.look([*range(60), *range(100, 165)], 20.0, grant_lease=False)

    assert set(range(1, 60, 2)) - left == set(range(1, 2 * evicted, 2))


def test_a_leased_object_is_never_evicted_and_futile_passes_back_off():
    store = OneStore()
    store.put(range(95), 0.0)
    store.look(range(95), 0.0)

    pauses, now = [], 0.0
    while now < 9.9:
        done = store.pool.maintain(now)
        assert done.evicted == 0
        if done.again_in_s:
            pauses.append(done.again_in_s)
        now += max(done.again_in_s, 1e-4)

    assert store.look(range(95), 9.9, grant_lease=False) == set(range(95))
    assert pauses[:3] == pytest.approx([0.02, 0.04, 0.08], abs=0.011)
    assert max(pauses) == pytest.approx(1.0)
    assert 10 <= store.counter("master_futile_evictions_total") <= 20
    assert store.counter("master_successful_evictions_total") == 0


def test_eviction_resumes_when_leases_end_and_forgets_its_back_off():
    store = OneStore()
    store.put(range(95), 0.0)
    store.look(range(95), 0.0)
    store.one_pass(1.0)

    assert store.one_pass(10.1) == 10
    assert store.pool.maintain(10.2).again_in_s == pytest.approx(0.01)


def test_existence_probes_of_everything_do_not_make_eviction_futile():
    store = OneStore()
    store.put(range(95), 0.0)
    evicted = 0
    for tick in range(1, 6):
        store.look(range(95), tick * 0.5, grant_lease=False)
        evicted += store.one_pass(tick * 0.5)

    assert evicted == 10
    assert store.counter("master_futile_evictions_total") == 0


def test_hard_pins_stay_whatever_happens():
    store = OneStore()
    store.put(range(60), 0.0, pin="hard")
    store.put(range(100, 140), 1.0)

    for second in range(2, 40):
        store.put([1000 + second], float(second))
        store.one_pass(float(second))

    assert store.look(range(60), 50.0) == set(range(60))


def test_soft_pins_go_only_when_the_others_are_not_enough():
    store = OneStore()
    store.put(range(95), 0.0, pin="soft")
    store.put(range(100, 105), 1.0)

    evicted = store.one_pass(2.0)
    others = store.look(range(100, 105), 2.0, grant_lease=False)
    soft = store.look(range(95), 2.0, grant_lease=False)

    assert evicted == 10
    assert others == set()
    assert len(soft) == 90


def test_soft_pins_stay_when_settings_say_so():
    store = OneStore(allow_evict_soft_pinned_objects=False)
    store.put(range(100), 0.0, pin="soft")

    assert store.one_pass(2.0) == 0


def test_a_soft_pin_ends_by_itself():
    store = OneStore(
        allow_evict_soft_pinned_objects=False, default_kv_soft_pin_ttl_s=30.0
    )
    store.put(range(100), 0.0, pin="soft")

    assert store.one_pass(29.0) == 0
    assert store.one_pass(31.0) == 15


def test_a_lookup_extends_a_soft_pin():
    store = OneStore(
        allow_evict_soft_pinned_objects=False, default_kv_soft_pin_ttl_s=30.0
    )
    store.put(range(100), 0.0, pin="soft")
    store.look(range(100), 15.0)

    assert store.one_pass(40.0) == 0
    assert store.one_pass(46.0) == 15


def test_bytes_count_not_only_objects():
    """Many tiny old objects must not satisfy a pass that needs bytes."""
    store = OneStore(pages=100)
    store.put(range(200), 0.0, size=64)
    store.put(range(1000, 1094), 1.0)

    store.one_pass(2.0)
    used = store.pool.stats(2.0).gauges["master_allocated_bytes"] / (100 * PAGE)

    assert 0.80 < used <= 0.90


def test_the_number_of_keys_has_a_watermark_too():
    store = OneStore(max_objects=200, pages=1000)
    store.put(range(195), 0.0)

    evicted = store.one_pass(1.0)

    assert evicted == 25
    assert store.look(range(195), 1.0) == set(range(25, 195))


def test_a_failed_allocation_asks_for_eviction_below_the_watermark():
    store = OneStore(pages=100)
    store.put(range(85), 0.0)
    refused = store.put([999], 1.0, size=90 * PAGE)

    evicted = store.one_pass(1.0)

    assert refused == [Code.NO_AVAILABLE_HANDLE]
    assert evicted == 5
    assert store.one_pass(2.0) == 0


def test_a_writer_that_can_reach_no_store_has_nothing_evicted():
    store = OneStore(pages=100)
    store.put(range(80), 0.0)
    for second in range(1, 6):
        refused = store.put([999], float(second), exclude=[1])
        store.one_pass(float(second))

    assert refused == [Code.NO_AVAILABLE_HANDLE]
    assert store.counter("master_attempted_evictions_total") == 0


def test_an_object_larger_than_any_store_has_nothing_evicted():
    store = OneStore(pages=100)
    store.put(range(80), 0.0)
    refused = store.put([999], 1.0, size=101 * PAGE)

    assert refused == [Code.NO_AVAILABLE_HANDLE]
    assert store.one_pass(1.0) == 0


def test_a_pool_full_of_puts_under_way_is_not_searched_all_the_time():
    store = OneStore(pages=10, put_start_discard_timeout_s=99.0)
    keys, sizes = keys_of(1), np.full(1, 10 * PAGE, dtype=np.uint32)
    store.pool.put_start(keys, sizes, 0.0, client=1, host_id="")
    store.put([2], 0.0)

    for tick in range(1000):
        store.pool.maintain(1.0 + tick * 0.01)

    assert 10 <= store.counter("master_futile_evictions_total") <= 20


def test_evicted_buffers_are_free_only_after_release():
    store = OneStore()
    store.put(range(100), 0.0)
    done = store.pool.maintain(1.0)
    held = store.put([500], 1.0)
    store.pool.release(done.freed)

    assert held == [Code.NO_AVAILABLE_HANDLE]
    assert store.put([500], 1.0) == [Code.OK]
    assert store.pool.conservation() == []


def test_a_pass_over_a_large_table_is_close_to_lru_and_to_its_quota():
    """Beyond the sample the threshold is estimated: victims are nearly the oldest."""
    pages = 60_000
    store = OneStore(pages=pages, max_objects=65_536)
    lots = np.random.default_rng(1)
    for batch in np.split(lots.permutation(57_000), 57):
        store.put(batch, 0.0)
    order = lots.permutation(57_000)
    for at, batch in enumerate(np.split(order, 570)):
        store.look(batch, 1.0 + at / 1000)

    evicted = store.one_pass(50.0)
    left = store.pool.lookup(keys_of(*order), 50.0, grant_lease=False).status == Code.OK

    assert 5000 <= evicted <= 5700
    assert left[: int(5700 * 0.8)].mean() < 0.05
    assert left[int(5700 * 1.2) :].all()
