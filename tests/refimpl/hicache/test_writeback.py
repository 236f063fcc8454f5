from __future__ import annotations

import threading

import pytest

from refimpl.core.codes import Code

BATCH = 8


def five_batches(rig, kit):
    r = rig(prefetch={"storage_batch_pages": BATCH})
    return r, kit.chain(5 * BATCH)


def puts(r) -> list[int]:
    return [n for kind, n in r.storage.calls if kind == "put"]


def test_writes_in_batches_parent_before_child(rig, kit):
    r, keys = five_batches(rig, kit)
    r.run(keys)
    r.cache.drain(3)

    assert puts(r) == [BATCH] * 5
    assert list(r.storage.objects) == [
        keys[i : i + 32] for i in range(0, len(keys), 32)
    ]
    assert r.counter("backup_tokens") == 5 * BATCH * 64


def test_one_failed_batch_is_retried_and_everything_is_stored(rig, kit):
    r, keys = five_batches(rig, kit)
    r.failpoints.set("hicache.put_batch", "1*off->1*return(-800)")
    r.run(keys)
    r.cache.drain(3)

    assert len(r.storage.objects) == 5 * BATCH
    assert r.counter("backup_retries") == 1
    assert r.counter("backup_failed_tokens") == 0


def test_a_lasting_failure_stops_the_chain_counts_it_and_heals_on_next_touch(rig, kit):
    r, keys = five_batches(rig, kit)
    r.failpoints.set("hicache.put_batch", "1*off->10*return(-800)")
    r.run(keys)
    r.cache.drain(3)

    assert len(r.storage.objects) == BATCH
    assert r.counter("backup_failed_tokens") == 4 * BATCH * 64
    assert puts(r) == [BATCH]
    r.cache.flush()
    reuse = r.run(keys, commit=False)
    assert reuse.l3_pages == BATCH

    r.failpoints.clear()
    r.run(keys)
    r.cache.drain(3)
    assert len(r.storage.objects) == 5 * BATCH
    r.clean()


def test_the_next_touch_of_pages_still_local_writes_the_hole(rig, kit):
    r, keys = five_batches(rig, kit)
    r.failpoints.set("hicache.put_batch", "3*return(-900)")
    r.run(keys)
    r.cache.drain(3)
    assert not r.storage.objects
    r.run(keys)
    r.cache.drain(3)

    assert len(r.storage.objects) == 5 * BATCH


def test_a_child_is_not_written_behind_a_hole_of_its_parent(rig, kit):
    r, keys = five_batches(rig, kit)
    child = keys + kit.chain(BATCH, "child", keys[-32:])
    r.failpoints.set("hicache.put_batch", "6*return(-800)")
    r.run(keys)
    r.run(child)
    r.cache.drain(3)

    assert not r.storage.objects
    r.run(child)
    r.cache.drain(3)
    assert len(r.storage.objects) == 6 * BATCH


def test_single_failed_pages_are_retried_alone(rig, kit):
    failed = []

    def fault(kind, key, store, cancel, timeout_s):
        if kind == "put" and key == bad and not failed:
            failed.append(key)
            return Code.TRANSFER_FAIL
        return None

    r, keys = rig(fault=fault), kit.chain(20)
    bad = keys[5 * 32 : 6 * 32]
    r.run(keys)
    r.cache.drain(3)

    assert puts(r) == [20, 1]
    assert len(r.storage.objects) == 20


def test_nothing_is_written_twice(rig, kit):
    r, keys = rig(), kit.chain(20)
    r.run(keys)
    r.cache.drain(3)
    for _ in range(5):
        r.run(keys)
    r.cache.drain(3)

    assert puts(r) == [20]


def test_pages_that_another_engine_wrote_count_as_stored(rig, kit):
    r, keys = rig(), kit.chain(20)
    other = rig()
    other.storage.objects = r.storage.objects
    r.run(keys)
    r.cache.drain(3)
    op = other.cache.begin("r", keys)
    other.cache.finish(op)
    other.cache.commit(op, kit.fill)
    other.cache.drain(3)

    assert other.counter("backup_failed_tokens") == 0
    assert other.counter("backup_tokens") + other.counter("reused_tokens", "l3") > 0


def test_a_full_pool_is_no_fault(rig, kit):
    def full(kind, key, store, cancel, timeout_s):
        return Code.NO_AVAILABLE_HANDLE if kind == "put" else None

    r = rig(fault=full)
    for i in range(30):
        r.run(kit.chain(4, f"p{i}"))
    r.cache.drain(5)

    assert r.cache.state()["breaker"]["transitions"] == []
    assert r.counter("backup_failed_tokens") == 30 * 4 * 64


def test_backup_is_dropped_not_queued_while_the_breaker_is_open(rig, kit):
    r = rig()
    r.cache.breaker.force("open")
    for i in range(5):
        r.run(kit.chain(8, f"p{i}"))

    assert r.cache.state()["writeback"]["pending"] == 0
    assert r.counter("backup_dropped_tokens", "breaker_open") == 5 * 8 * 64
    assert not r.storage.calls
    r.clean()


def test_the_queue_is_bounded_and_drops_are_counted(rig, kit):
    release = threading.Event()

    def hang(kind, key, store, cancel, timeout_s):
        if kind == "put":
            release.wait(5)

    r = rig(fault=hang, writeback_tasks=3)
    for i in range(8):
        r.run(kit.chain(4, f"p{i}"))

    assert r.counter("backup_dropped_tokens", "queue_full") >= 4 * 4 * 64
    release.set()
    r.clean()


def test_pages_being_written_are_not_evicted(rig, kit):
    release = threading.Event()

    def hang(kind, key, store, cancel, timeout_s):
        if kind == "put":
            release.wait(5)

    r = rig(fault=hang, l1_pages=16, l2_pages=16)
    keys = kit.chain(16, "first")
    r.run(keys)
    for i in range(4):
        r.run(kit.chain(8, f"p{i}"))
    release.set()
    r.clean()

    for key, parts in r.storage.objects.items():
        assert b"".join(parts.values()) == kit.rows_of(key)[0].tobytes()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_failed_writes_its_part_again_and_only_that(rig, kit, ranks):
    r = rig(ranks=ranks)
    r.failpoints.set("hicache.put_batch", "1*off->1*return(-800)")
    keys = kit.chain(6)
    r.run(keys)
    r.cache.drain(3)

    assert puts(r) == [6] * ranks
    assert all(len(parts) == ranks for parts in r.storage.objects.values())


def test_a_page_that_exists_but_cannot_be_read_is_written_by_the_next_touch(rig, kit):
    """A put that hung half-way holds its key, and must not hide the hole."""
    hung = set()

    def fault(kind, key, store, cancel, timeout_s):
        return Code.OBJECT_ALREADY_EXISTS if kind == "put" and key in hung else None

    r, keys = rig(fault=fault), kit.chain(20)
    hung.update(keys[i * 32 : i * 32 + 32] for i in range(5, 9))
    r.run(keys)
    r.cache.drain(3)
    assert len(r.storage.objects) == 16
    assert r.counter("backup_tokens") == 16 * 64

    hung.clear()
    r.run(keys)
    r.cache.drain(3)
    assert len(r.storage.objects) == 20
    r.clean()


def test_a_page_of_another_writer_counts_as_stored(rig, kit):
    unseen = [Code.OBJECT_NOT_FOUND]

    def fault(kind, key, store, cancel, timeout_s):
        return unseen.pop() if kind == "exists" and unseen else None

    r, keys = rig(), kit.chain(20)
    r.store(keys)
    r.storage.fault = fault
    r.run(keys)
    r.cache.drain(3)
    assert puts(r) == [20, 20]
    r.run(keys)
    r.cache.drain(3)

    assert puts(r) == [20, 20]
    assert r.counter("backup_tokens") == 2 * 20 * 64
