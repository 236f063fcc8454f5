from __future__ import annotations

import random

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.core.pool import Pool, PoolSettings, SegmentInfo

PAGE = 4096
CLIENT = 7
STORES = 100
"""Client of store n is STORES + n."""


def keys_of(*numbers):
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 0] = numbers
    return keys


def many(count, first=0):
    return keys_of(*range(first, first + count))


class Cluster:
    """A pool with stores of `pages` pages each, and terse ways to use it."""

    def __init__(self, stores=2, pages=64, seed=0, **settings):
        settings.setdefault("max_objects", 4096)
        self.pool = Pool(PoolSettings(**settings), random.Random(seed))
        self.pages = pages
        for number in range(1, stores + 1):
            assert self.mount(number) == Code.OK

    def mount(self, number, *, name=None, host=None, client=None, now=0.0):
        info = SegmentInfo(
            id=number,
            name=name or f"store-{number}",
            host_id=host or f"host-{number}",
            size=self.pages * PAGE,
            rails=(("tcp0", f"127.0.0.1:{7000 + number}"),),
        )
        return self.pool.mount(info, client or STORES + number, now)

    def start(self, keys, now=0.0, *, client=CLIENT, size=PAGE, host="", **options):
        sizes = np.full(len(keys), size, dtype=np.uint32)
        return self.pool.put_start(
            keys, sizes, now, client=client, host_id=host, **options
        )

    def end(self, keys, tokens, now=0.0, *, client=CLIENT, checksum=1, part=0):
        checksums = np.full(len(keys), checksum, dtype=np.uint64)
        return codes(
            self.pool.put_end(keys, tokens, checksums, now, client=client, part=part)
        )

    def put(self, keys, now=0.0, **options):
        started = self.start(keys, now, **options)
        good = started.status == Code.OK
        assert set(self.end(keys[good], started.token[good], now)) <= {Code.OK}
        return started

    def status(self, keys, now=0.0, **options):
        return codes(self.pool.lookup(keys, now, **options).status)

    def maintain(self, now, slices=10_000):
        """Housekeeping until there is nothing to do; returns the objects evicted."""
        evicted = 0
        for _ in range(slices):
            done = self.pool.maintain(now)
            self.pool.release(done.freed)
            evicted += done.evicted
            if done.again_in_s > 0:
                return evicted
        raise AssertionError("maintenance does not come to an end")

    def gauge(self, name, now=0.0):
        return self.pool.stats(now).gauges[name]

    def counter(self, name, now=0.0):
        return self.pool.stats(now).counters[name]


def codes(status):
    return [Code(int(code)) for code in status]


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    assert cluster.pool.conservation() == []


# --- put and lookup -------------------------------------------------------------------


def test_a_completed_put_is_found_where_it_was_started(cluster):
    started = cluster.put(keys_of(1, 2))

    located = cluster.pool.lookup(keys_of(2, 1, 3), 1.0)

    assert codes(located.status) == [Code.OK, Code.OK, Code.OBJECT_NOT_FOUND]
    assert (located.segment[:2, 0] == started.segment[::-1, 0]).all()
    assert (located.offset[:2, 0] == started.offset[::-1, 0]).all()
    assert located.size.tolist() == [PAGE, PAGE, 0]
    assert located.checksum.tolist() == [1, 1, 0]
    assert located.parts.tolist() == [1, 1, 0]
    assert not located.segment[2].any()


def test_a_put_under_way_is_not_ready_and_tells_no_place(cluster):
    cluster.start(keys_of(1))

    located = cluster.pool.lookup(keys_of(1), 0.0)

    assert codes(located.status) == [Code.REPLICA_IS_NOT_READY]
    assert not located.segment.any()
    assert not located.offset.any()


def test_an_empty_batch_is_answered_empty(cluster):
    nothing = keys_of()

    assert cluster.status(nothing) == []
    assert cluster.put(nothing).status.size == 0
    assert cluster.pool.remove(nothing, 0.0).size == 0


def test_a_key_twice_in_one_start_is_as_two_starts(cluster):
    status = codes(cluster.start(keys_of(1, 2, 1)).status)

    assert status == [Code.OK, Code.OK, Code.OBJECT_ALREADY_EXISTS]


def test_duplicates_are_answered_alike_in_lookup_end_and_remove(cluster):
    started = cluster.start(keys_of(1, 1, 1))
    tokens = np.repeat(started.token[0], 2)

    assert cluster.end(keys_of(1, 1), tokens, checksum=5) == [Code.OK, Code.OK]
    assert cluster.pool.lookup(keys_of(1, 1), 0.0).checksum.tolist() == [5, 5]
    assert codes(cluster.pool.remove(keys_of(1, 1), 20.0)) == [
        Code.OK,
        Code.OBJECT_NOT_FOUND,
    ]


@pytest.mark.parametrize(
    "options",
    [{"replicas": 0}, {"replicas": 3}, {"parts": 0}, {"parts": 65}, {"pin": "firm"}],
)
def test_a_request_that_makes_no_sense_is_refused_whole(cluster, options):
    assert (
        codes(cluster.start(keys_of(1, 2), **options).status)
        == [Code.INVALID_PARAMS] * 2
    )


def test_an_empty_object_is_refused_alone(cluster):
    sizes = np.array([0, PAGE], dtype=np.uint32)

    started = cluster.pool.put_start(
        keys_of(1, 2), sizes, 0.0, client=CLIENT, host_id=""
    )

    assert codes(started.status) == [Code.INVALID_PARAMS, Code.OK]


def test_the_table_is_bounded_and_asks_for_eviction(cluster):
    small = Cluster(max_objects=40, eviction_high_watermark_ratio=1.0)

    status = codes(small.put(many(50)).status)

    assert status == [Code.OK] * 40 + [Code.NO_AVAILABLE_HANDLE] * 10
    assert small.maintain(1.0) > 0
    assert codes(small.put(many(1, first=100)).status) == [Code.OK]
    assert small.pool.conservation() == []


def test_no_space_is_an_admission_code_and_eviction_makes_room():
    full = Cluster(eviction_high_watermark_ratio=1.0)
    full.put(many(128))
    refused = codes(full.start(keys_of(999), now=1.0).status)

    evicted = full.maintain(1.0)

    assert refused == [Code.NO_AVAILABLE_HANDLE]
    assert full.counter("master_put_start_alloc_failures_total") == 1
    assert evicted == 7
    assert codes(full.start(keys_of(999), now=1.0).status) == [Code.OK]


# --- tokens, discard, release (D1, D2) ------------------------------------------------


def test_a_retried_end_is_ok_and_changes_nothing(cluster):
    started = cluster.start(keys_of(1))
    cluster.end(keys_of(1), started.token, checksum=5)

    assert cluster.end(keys_of(1), started.token, checksum=9) == [Code.OK]
    assert cluster.pool.lookup(keys_of(1), 0.0).checksum.tolist() == [5]


@pytest.mark.parametrize("verb", ["end", "revoke"])
def test_a_stale_token_has_no_effect(cluster, verb):
    old = cluster.start(keys_of(1))
    new = cluster.start(keys_of(1), now=31.0)

    if verb == "end":
        late = cluster.end(keys_of(1), old.token, 32.0)
    else:
        late = codes(
            cluster.pool.put_revoke(keys_of(1), old.token, 32.0, client=CLIENT)
        )

    assert late == [Code.INVALID_WRITE]
    assert cluster.status(keys_of(1), 33.0) == [Code.REPLICA_IS_NOT_READY]
    assert cluster.end(keys_of(1), new.token, 34.0) == [Code.OK]
    assert cluster.status(keys_of(1), 34.0) == [Code.OK]


def test_another_client_may_not_end_or_revoke(cluster):
    token = cluster.start(keys_of(1)).token

    ended = cluster.end(keys_of(1), token, client=8)
    revoked = codes(cluster.pool.put_revoke(keys_of(1), token, 0.0, client=8))

    assert (ended, revoked) == ([Code.ILLEGAL_CLIENT], [Code.ILLEGAL_CLIENT])


def test_ending_or_revoking_what_is_not_there_says_so(cluster):
    token = np.ones(1, dtype=np.uint64)

    assert cluster.end(keys_of(1), token) == [Code.OBJECT_NOT_FOUND]
    assert codes(cluster.pool.put_revoke(keys_of(1), token, 0.0, client=CLIENT)) == [
        Code.OBJECT_NOT_FOUND
    ]


def test_a_revoked_put_frees_its_space_at_once(cluster):
    started = cluster.start(keys_of(1))

    revoked = cluster.pool.put_revoke(keys_of(1), started.token, 0.0, client=CLIENT)

    assert codes(revoked) == [Code.OK]
    assert cluster.gauge("master_allocated_bytes") == 0
    assert cluster.status(keys_of(1)) == [Code.OBJECT_NOT_FOUND]


def test_a_complete_object_cannot_be_revoked(cluster):
    started = cluster.put(keys_of(1))

    revoked = cluster.pool.put_revoke(keys_of(1), started.token, 0.0, client=CLIENT)

    assert codes(revoked) == [Code.INVALID_WRITE]


def test_tokens_of_two_masters_do_not_meet():
    tokens = [int(Cluster(seed=s).start(keys_of(1)).token[0]) for s in range(50)]

    assert len(set(tokens)) == 50


def test_an_abandoned_put_is_taken_over_after_the_discard_time_only():
    cluster = Cluster(put_start_discard_timeout_s=1.0, put_start_release_timeout_s=3.0)
    keys = many(100)
    cluster.start(keys)

    assert set(cluster.status(keys)) == {Code.REPLICA_IS_NOT_READY}
    early = cluster.start(keys, now=1.0, client=8)
    late = cluster.start(keys, now=1.1, client=8)

    assert set(codes(early.status)) == {Code.OBJECT_ALREADY_EXISTS}
    assert codes(late.status).count(Code.OK) == 28
    assert cluster.pool.conservation() == []


def test_the_space_of_an_abandoned_put_is_held_until_the_release_time():
    cluster = Cluster(
        stores=1, put_start_discard_timeout_s=1.0, put_start_release_timeout_s=3.0
    )
    old = cluster.start(many(32))
    new = cluster.start(many(32), now=1.5, client=8)
    others = cluster.start(many(32, first=500), now=2.9)
    cluster.maintain(2.9)
    at_2_9_s = cluster.gauge("master_allocated_bytes", 2.9)
    cluster.maintain(3.0)
    freed_at_3_s = at_2_9_s - cluster.gauge("master_allocated_bytes", 3.0)

    assert set(codes(others.status)) == {Code.NO_AVAILABLE_HANDLE}
    assert not set(old.offset.ravel().tolist()) & set(new.offset.ravel().tolist())
    assert (at_2_9_s, freed_at_3_s) == (64 * PAGE, 32 * PAGE)
    assert cluster.pool.conservation() == []


def test_a_dead_put_that_nobody_takes_over_is_freed_by_one_pass():
    cluster = Cluster(put_start_discard_timeout_s=1.0, put_start_release_timeout_s=3.0)
    cluster.start(many(100))

    cluster.maintain(2.9)
    before = cluster.gauge("master_allocated_bytes", 2.9)
    cluster.maintain(3.0)

    assert (before, cluster.gauge("master_allocated_bytes", 3.0)) == (100 * PAGE, 0)
    assert set(cluster.status(many(100), 3.0)) == {Code.OBJECT_NOT_FOUND}


def test_a_put_that_ends_between_discard_and_take_over_still_counts(cluster):
    token = cluster.start(keys_of(1)).token

    assert cluster.end(keys_of(1), token, now=45.0) == [Code.OK]


# --- parts ----------------------------------------------------------------------------


def test_ranks_join_one_put_and_it_completes_when_all_parts_ended(cluster):
    first = cluster.start(keys_of(1), client=1, parts=2)
    second = cluster.start(keys_of(1), now=1.0, client=2, parts=2)

    assert first.token == second.token
    assert (first.offset == second.offset).all()
    assert cluster.end(keys_of(1), first.token, client=2, checksum=6, part=1) == [
        Code.OK
    ]
    assert cluster.status(keys_of(1)) == [Code.REPLICA_IS_NOT_READY]
    assert cluster.end(keys_of(1), first.token, client=1, checksum=5, part=0) == [
        Code.OK
    ]
    located = cluster.pool.lookup(keys_of(1), 2.0)
    assert codes(located.status) == [Code.OK]
    assert (located.checksum[0], located.parts[0]) == (5 ^ 6, 2)


def test_rows_of_one_key_in_one_start_join_when_they_are_parts(cluster):
    started = cluster.start(keys_of(1, 2, 1), parts=2)

    assert codes(started.status) == [Code.OK] * 3
    assert started.token[0] == started.token[2] != started.token[1]
    assert started.offset[0, 0] == started.offset[2, 0]


def test_a_late_rank_takes_a_put_over_after_the_discard_time(cluster):
    first = cluster.start(keys_of(1), parts=2)
    late = cluster.start(keys_of(1), now=30.1, client=8, parts=2)

    assert codes(late.status) == [Code.OK]
    assert late.token != first.token
    assert cluster.end(keys_of(1), first.token, 31.0) == [Code.INVALID_WRITE]


def test_ending_one_part_twice_counts_once(cluster):
    token = cluster.start(keys_of(1), parts=2).token

    for _ in range(2):
        assert cluster.end(keys_of(1), token, checksum=5, part=0) == [Code.OK]
    cluster.end(keys_of(1), token, checksum=6, part=1)

    assert cluster.pool.lookup(keys_of(1), 0.0).checksum.tolist() == [5 ^ 6]


def test_a_part_that_the_object_does_not_have_is_refused(cluster):
    token = cluster.start(keys_of(1), parts=2).token

    assert cluster.end(keys_of(1), token, part=2) == [Code.INVALID_PARAMS]
    assert cluster.end(keys_of(1), token, part=-1) == [Code.INVALID_PARAMS]


def test_sixty_four_parts_complete_an_object(cluster):
    token = cluster.start(keys_of(1), parts=64).token

    for part in reversed(range(64)):
        assert cluster.status(keys_of(1)) == [Code.REPLICA_IS_NOT_READY]
        cluster.end(keys_of(1), token, part=part)

    assert cluster.status(keys_of(1)) == [Code.OK]


@pytest.mark.parametrize("options", [{"parts": 1}, {"parts": 4}, {"size": 2 * PAGE}])
def test_a_rank_with_another_shape_does_not_join(cluster, options):
    cluster.start(keys_of(1), parts=2)

    late = cluster.start(keys_of(1), now=1.0, **{"parts": 2, **options})

    assert codes(late.status) == [Code.OBJECT_ALREADY_EXISTS]


def test_a_size_that_does_not_divide_into_parts_is_refused(cluster):
    assert codes(cluster.start(keys_of(1), parts=3).status) == [Code.INVALID_PARAMS]


def test_what_one_rank_revokes_is_held_while_others_may_write(cluster):
    token = cluster.start(keys_of(1), client=1, parts=2).token
    cluster.start(keys_of(1), client=2, parts=2)

    revoked = cluster.pool.put_revoke(keys_of(1), token, 1.0, client=2)

    assert codes(revoked) == [Code.OK]
    assert cluster.end(keys_of(1), token, client=1) == [Code.OBJECT_NOT_FOUND]
    assert cluster.gauge("master_allocated_bytes") == PAGE
    cluster.maintain(600.0)
    assert cluster.gauge("master_allocated_bytes") == 0


# --- leases and removal ---------------------------------------------------------------


def test_a_lookup_leases_and_an_existence_probe_does_not(cluster):
    cluster.put(keys_of(1, 2))
    cluster.status(keys_of(1), 5.0)
    cluster.status(keys_of(2), 5.0, grant_lease=False)

    removed = codes(cluster.pool.remove(keys_of(1, 2), 14.9))

    assert removed == [Code.OBJECT_HAS_LEASE, Code.OK]
    assert codes(cluster.pool.remove(keys_of(1), 15.0)) == [Code.OK]


def test_a_lookup_of_what_is_not_readable_leases_nothing(cluster):
    token = cluster.start(keys_of(1)).token
    cluster.status(keys_of(1), 5.0)
    cluster.end(keys_of(1), token, 5.0)

    assert codes(cluster.pool.remove(keys_of(1), 5.0)) == [Code.OK]


def test_a_forced_removal_keeps_the_bytes_until_the_lease_ends(cluster):
    cluster.put(keys_of(1))
    cluster.status(keys_of(1), 5.0)

    assert codes(cluster.pool.remove(keys_of(1), 6.0, force=True)) == [Code.OK]
    assert cluster.status(keys_of(1), 6.0) == [Code.OBJECT_NOT_FOUND]
    cluster.maintain(14.0)
    assert cluster.gauge("master_allocated_bytes", 14.0) == PAGE
    cluster.maintain(15.0)
    assert cluster.gauge("master_allocated_bytes", 15.0) == 0


@pytest.mark.parametrize("force", [False, True])
def test_a_put_under_way_is_not_removed_even_by_force(cluster, force):
    cluster.start(keys_of(1))

    assert codes(cluster.pool.remove(keys_of(1), 0.0, force)) == [
        Code.REPLICA_IS_NOT_READY
    ]


def test_remove_all_spares_leases_and_puts_under_way(cluster):
    cluster.put(many(20))
    cluster.status(many(5), 1.0)
    cluster.start(keys_of(500), now=1.0)

    assert cluster.pool.remove_all(2.0) == 15
    assert cluster.status(many(5), 2.0) == [Code.OK] * 5
    assert cluster.gauge("master_key_count") == 6


# --- segments (A6, A7, B3, E8) --------------------------------------------------------


def test_an_unmounted_segment_is_unreadable_from_that_instant(cluster):
    started = cluster.put(many(60))
    on_first = started.segment[:, 0] == 1

    assert cluster.pool.unmount(1, STORES + 1, 1.0) == Code.OK
    status = np.array(cluster.status(many(60), 1.0))

    assert set(status[on_first]) == {Code.OBJECT_NOT_FOUND}
    assert set(status[~on_first]) == {Code.OK}
    cluster.maintain(1.0)
    assert cluster.gauge("master_key_count") == int((~on_first).sum())
    assert cluster.gauge("master_cleanup_pending") == 0


def test_several_removals_are_cleaned_by_one_sweep():
    cluster = Cluster(stores=4, pages=256)
    cluster.put(many(900))
    for number in (1, 2, 3, 4):
        cluster.pool.unmount(number, STORES + number, 1.0)

    swept = 0
    for _ in range(100):
        swept += cluster.pool.maintain(1.0).swept

    assert swept == 900
    assert cluster.gauge("master_key_count") == 0
    assert cluster.pool.conservation() == []


def test_a_key_whose_segment_is_gone_can_be_put_again_before_the_sweep(cluster):
    cluster.put(many(20))
    for number in (1, 2):
        cluster.pool.unmount(number, STORES + number, 1.0)
    cluster.mount(3, now=1.0)

    assert codes(cluster.put(many(20), now=1.0).status) == [Code.OK] * 20
    cluster.maintain(1.0)
    assert cluster.status(many(20), 1.0) == [Code.OK] * 20


@pytest.mark.parametrize("swept", [False, True])
def test_ending_a_put_whose_segments_are_gone_says_so(cluster, swept):
    token = cluster.start(keys_of(1)).token
    for number in (1, 2):
        cluster.pool.unmount(number, STORES + number, 1.0)
    if swept:
        cluster.maintain(1.0)

    assert cluster.end(keys_of(1), token, 2.0) == [Code.REPLICA_IS_GONE]
    assert cluster.gauge("master_key_count") == 0


def test_with_two_replicas_the_other_one_is_told_first(cluster):
    started = cluster.put(keys_of(1), replicas=2)
    dead, alive = started.segment[0].tolist()
    cluster.pool.unmount(int(dead), STORES + int(dead), 1.0)

    for _ in range(2):
        located = cluster.pool.lookup(keys_of(1), 1.0)
        assert codes(located.status) == [Code.OK]
        assert located.segment[0].tolist() == [alive, 0]
        assert located.offset[0].tolist() == [started.offset[0, 1], 0]
        cluster.maintain(1.0)


def test_a_put_completes_with_the_replica_that_is_left(cluster):
    started = cluster.start(keys_of(1), replicas=2)
    cluster.pool.unmount(1, STORES + 1, 1.0)

    assert cluster.end(keys_of(1), started.token, 1.0) == [Code.OK]
    assert cluster.status(keys_of(1), 1.0) == [Code.OK]


def test_no_host_holds_both_replicas_so_any_host_may_die():
    cluster = Cluster(stores=0, pages=4096)
    for number in range(1, 7):
        cluster.mount(number, host=f"node-{number % 3}")
    cluster.put(many(3000), replicas=2)

    for number in (1, 4):
        cluster.pool.unmount(number, STORES + number, 1.0)

    assert set(cluster.status(many(3000), 1.0)) == {Code.OK}


def test_unmounting_what_is_unknown_is_ok_and_what_is_anothers_is_not(cluster):
    assert cluster.pool.unmount(99, CLIENT, 0.0) == Code.OK
    assert cluster.pool.unmount(1, STORES + 2, 0.0) == Code.ILLEGAL_CLIENT
    assert len(cluster.pool.segments()) == 2


def test_a_graceful_unmount_reads_until_its_deadline_and_takes_nothing_new(cluster):
    cluster.put(many(60))
    cluster.pool.unmount(1, STORES + 1, 1.0, grace_s=5.0)

    statuses = {info.id: info.status for info in cluster.pool.segments()}
    new = cluster.start(many(30, first=500), now=2.0)

    assert statuses == {1: "GRACEFULLY_UNMOUNTING", 2: "OK"}
    assert set(new.segment[new.status == Code.OK].ravel().tolist()) == {2}
    cluster.maintain(5.9)
    assert set(cluster.status(many(60), 5.9)) == {Code.OK}
    done = cluster.pool.maintain(6.0)
    cluster.pool.release(done.freed)
    assert done.unmounted == (1,)
    assert Code.OBJECT_NOT_FOUND in cluster.status(many(60), 6.0)


def test_a_second_unmount_may_shorten_the_grace_but_not_extend_it(cluster):
    for grace_s in (5.0, 9.0):
        cluster.pool.unmount(1, STORES + 1, 1.0, grace_s=grace_s)

    assert cluster.pool.maintain(6.0).unmounted == (1,)


def test_mounting_again_is_idempotent_for_its_owner_only(cluster):
    assert cluster.mount(1, now=1.0) == Code.OK
    assert cluster.mount(1, client=55, now=1.0) == Code.SEGMENT_ALREADY_EXISTS
    cluster.pool.unmount(1, STORES + 1, 1.0, grace_s=5.0)
    assert cluster.mount(1, now=1.0) == Code.UNAVAILABLE_IN_CURRENT_STATUS
    assert len(cluster.pool.segments()) == 2


def test_a_namesake_is_refused_while_the_owner_is_heard_and_replaces_it_after():
    cluster = Cluster(stores=1)
    cluster.put(many(10))
    cluster.pool.heartbeat(STORES + 1, 5.0)

    early = cluster.mount(9, name="store-1", client=55, now=7.9)
    late = cluster.mount(9, name="store-1", client=55, now=8.0)

    assert (early, late) == (Code.SEGMENT_ALREADY_EXISTS, Code.OK)
    assert [info.id for info in cluster.pool.segments()] == [9]
    assert set(cluster.status(many(10), 8.0)) == {Code.OBJECT_NOT_FOUND}


def test_a_store_that_comes_back_never_resurrects_objects(cluster):
    cluster.put(many(60))
    for number in (1, 2):
        cluster.pool.unmount(number, STORES + number, 1.0)
        cluster.mount(number, now=1.0)

    assert set(cluster.status(many(60), 1.0)) == {Code.OBJECT_NOT_FOUND}
    cluster.maintain(1.0)
    assert set(cluster.status(many(60), 1.0)) == {Code.OBJECT_NOT_FOUND}


@pytest.mark.parametrize(
    "field", [{"name": ""}, {"id": 0}, {"size": 0}, {"size": 1 << 63}]
)
def test_a_segment_without_name_identity_or_possible_bytes_is_refused(field):
    whole = {"id": 1, "name": "s", "host_id": "h", "size": PAGE, "rails": ()}

    code = Cluster(stores=0).pool.mount(SegmentInfo(**{**whole, **field}), CLIENT, 0.0)

    assert code == Code.INVALID_PARAMS


def test_rows_of_removed_segments_are_used_again_after_the_sweep():
    cluster = Cluster(stores=0, max_segments=2)

    for number in range(1, 20):
        assert cluster.mount(number, now=float(number)) == Code.OK
        cluster.put(keys_of(number), now=float(number))
        cluster.pool.unmount(number, STORES + number, float(number))
        cluster.maintain(float(number))

    assert cluster.gauge("master_key_count") == 0


def test_more_segments_than_rows_are_refused():
    cluster = Cluster(stores=2, max_segments=2)

    assert cluster.mount(3) == Code.UNAVAILABLE_IN_CURRENT_STATUS


# --- clients --------------------------------------------------------------------------


def test_an_expired_client_takes_its_segments_with_it_and_has_to_remount():
    cluster = Cluster(stores=3)
    cluster.put(many(90))
    expired = []
    for second in range(1, 12):
        for client in (STORES + 1, STORES + 2):
            cluster.pool.heartbeat(client, float(second))
        expired += cluster.pool.expire(float(second))

    assert expired == [STORES + 3]
    assert not cluster.pool.heartbeat(STORES + 3, 12.0)
    assert [info.id for info in cluster.pool.segments()] == [1, 2]
    assert cluster.gauge("master_active_clients") == 2
    assert cluster.mount(3, now=12.0) == Code.OK
    assert cluster.pool.heartbeat(STORES + 3, 13.0)


def test_a_stalled_master_loses_no_key():
    cluster = Cluster(stores=3)
    cluster.put(many(90))
    cluster.pool.expire(1.0)

    assert cluster.pool.expire(13.0) == []
    assert set(cluster.status(many(90), 13.0)) == {Code.OK}
    assert cluster.counter("master_client_expiry_deferred_total") == 1


def test_a_client_with_a_segment_left_is_still_waited_for(cluster):
    cluster.mount(3, client=STORES + 1)
    cluster.pool.unmount(3, STORES + 1, 1.0)

    assert cluster.pool.heartbeat(STORES + 1, 2.0)
    cluster.pool.unmount(1, STORES + 1, 3.0)
    assert not cluster.pool.heartbeat(STORES + 1, 4.0)


def test_a_store_that_left_in_order_is_not_counted_as_expired(cluster):
    cluster.pool.unmount(1, STORES + 1, 1.0)
    for second in range(1, 30):
        cluster.pool.heartbeat(STORES + 2, float(second))
        assert cluster.pool.expire(float(second)) == []

    assert cluster.counter("master_clients_expired_total") == 0


# --- slow start, locality, metrics ----------------------------------------------------


def test_a_store_that_rejoins_a_filled_pool_starts_slowly():
    # Filled well: without slow start two thirds of the new pages go to the empty store.
    settings = {"allocation_strategy": "free_ratio_first", "max_objects": 16_384}
    cluster = Cluster(stores=4, pages=2000, **settings)
    cluster.put(many(6000))
    cluster.pool.unmount(4, STORES + 4, 1.0)
    cluster.mount(5, now=31.0)

    rows = [
        cluster.put(many(20, first=10_000 + 20 * n), now=31.0 + n / 20).segment
        for n in range(20)
    ]

    assert (np.vstack(rows) == 5).mean() <= 2 / 4


def test_a_pool_that_starts_empty_has_no_slow_start():
    cluster = Cluster(stores=4, allocation_strategy="local_first")

    assert (cluster.put(many(60), host="host-2").segment == 2).all()


def test_local_puts_and_strangers_are_counted():
    cluster = Cluster(stores=4, allocation_strategy="local_first")
    cluster.put(many(30), host="host-2")
    cluster.put(many(10, first=100), host="pod-ip")

    counters = cluster.pool.stats(0.0).counters

    assert counters["master_local_first_puts_total"] == 40
    assert counters["master_local_first_local_total"] == 30
    assert counters["master_local_first_unmatched_total"] == 10


def test_capacity_is_the_sum_of_what_is_mounted_through_any_change(cluster):
    for number in (3, 4):
        cluster.mount(number)
    cluster.pool.unmount(1, STORES + 1, 1.0)
    cluster.mount(3)

    stats = cluster.pool.stats(1.0)

    expected = sum(info.size for info in stats.segments)
    assert expected == stats.gauges["master_total_capacity_bytes"] == 3 * 64 * PAGE


def test_hits_are_counted_in_keys_and_bytes(cluster):
    cluster.put(keys_of(1, 2))
    cluster.status(keys_of(1, 2, 3), 1.0)

    counters = cluster.pool.stats(1.0).counters

    assert counters["total_get_nums_"] == 3
    assert counters["mem_cache_hit_nums_"] == 2
    assert counters["mem_cache_hit_bytes_total"] == 2 * PAGE


def test_a_probe_of_existence_is_no_get_that_could_hit(cluster):
    cluster.put(keys_of(1))
    cluster.pool.lookup(keys_of(1, 2), 1.0, grant_lease=False)

    assert cluster.pool.stats(1.0).counters["total_get_nums_"] == 0


def test_a_broken_law_is_told_in_words():
    cluster = Cluster(stores=1)
    cluster.put(keys_of(1))
    segment = cluster.pool._segments.live()[0]
    segment.allocator.allocate(PAGE)

    assert "store-1: 8192 B allocated, 4096 B owned" in cluster.pool.conservation()


def test_settings_scale_every_duration_but_the_poll():
    scaled = PoolSettings().scaled(0.1)

    assert scaled.client_ttl_s == 1.0
    assert scaled.put_start_release_timeout_s == 60.0
    assert scaled.eviction_period_s == PoolSettings().eviction_period_s


def test_an_unknown_strategy_is_refused_by_name():
    with pytest.raises(ValueError, match="best_fit"):
        PoolSettings(allocation_strategy="best_fit")
