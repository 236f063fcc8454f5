"""What Mooncake's client API promises, in our words, over the reference pool."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from refimpl.compat.config import ReplicateConfig, SoftPinAction
from refimpl.compat.mooncake import MooncakeDistributedStore
from refimpl.core.codes import Code

MISSING = Code.OBJECT_NOT_FOUND
BAD = Code.INVALID_PARAMS


def config(**fields):
    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


# --- values ---------------------------------------------------------------------------


def test_what_was_put_is_got_and_measured(pool, store):
    key = pool.key()

    assert store.put(key, b"Hello") == 0
    assert store.get(key) == b"Hello"
    assert store.get_size(key) == 5
    assert store.is_exist(key) == 1


def test_a_missing_key_is_empty_absent_and_without_size(pool, store):
    key = pool.key()

    assert store.get(key) == b""
    assert store.get_buffer(key) is None
    assert store.is_exist(key) == 0
    assert store.get_size(key) == MISSING
    assert store.remove(key) == MISSING


def test_putting_a_key_again_succeeds_and_keeps_the_old_bytes(pool, store):
    key = pool.key()

    assert store.put(key, b"old") == 0
    assert store.put(key, b"newer") == 0
    assert store.get(key) == b"old"


def test_an_upsert_replaces_bytes_even_under_a_lease(pool, store):
    key = pool.key()
    store.put(key, b"old")
    store.get(key)

    assert store.upsert(key, b"newer") == 0
    assert store.get(key) == b"newer"
    assert store.upsert_parts(key, b"a", b"bc") == 0
    assert store.get(key) == b"abc"
    assert store.upsert_batch([key], [b"z"]) == 0
    assert store.get(key) == b"z"


@pytest.mark.parametrize("value", [bytearray(b"abc"), memoryview(b"abc")])
def test_any_contiguous_buffer_is_a_value(pool, store, value):
    key = pool.key()

    assert store.put(key, value) == 0
    assert store.get(key) == b"abc"


def test_what_is_no_buffer_is_a_type_error(pool, store):
    with pytest.raises(TypeError):
        store.put(pool.key(), "text")
    with pytest.raises(TypeError):
        store.put(key_of_another_name=pool.key(), value=b"v")


def test_an_empty_value_or_key_is_refused(pool, store):
    assert store.put(pool.key(), b"") == BAD
    assert store.put("", b"v") == BAD


def test_parts_make_one_object(pool, store):
    key = pool.key()

    assert store.put_parts(key, b"one", b"", memoryview(b"two")) == 0
    assert store.get(key) == b"onetwo"
    assert store.put_parts(pool.key()) == 0
    assert store.upsert_parts(key, b"") == 0
    assert store.get(key) == b"onetwo"


def test_batches_answer_in_order(pool, store):
    keys = pool.keys(3)

    assert store.put_batch(keys[:2], [b"a", b"bb"]) == 0
    assert store.get_batch([keys[1], keys[2], keys[0]]) == [b"bb", b"", b"a"]
    assert store.batch_is_exist(keys) == [1, 1, 0]
    assert store.batch_is_exist([]) == []
    assert store.put_batch(keys, [b"a"]) == BAD


def test_buffers_have_sizes_addresses_and_the_buffer_protocol(pool, store):
    keys = pool.keys(2)
    store.put(keys[0], b"buffer")
    found, missing = store.batch_get_buffer(keys)

    assert missing is None
    assert (bytes(found), found.size(), len(found)) == (b"buffer", 6, 6)
    assert memoryview(found)[:3] == b"buf"
    assert found.ptr() > 0


def test_threads_share_a_client(pool, store):
    wrong = []

    def work(number):
        keys = [f"{pool.key('thread')}-{number}-{i}" for i in range(20)]
        value = bytes([number]) * 50_000
        codes = [store.put(key, value) for key in keys]
        if any(codes) or any(store.get(key) != value for key in keys):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


# --- the local buffer -----------------------------------------------------------------


def test_without_a_local_buffer_nothing_is_copied(pool, store):
    key = pool.key()
    with pool.client(local_buffer_size=0) as other:
        assert other.put(key, b"v") == BAD
        assert other.is_exist(key) == 0
        store.put(key, b"v")
        assert other.get(key) == b""
        assert other.get_size(key) == 1


def test_a_handle_holds_the_local_buffer_until_it_is_dropped(pool, store):
    key = pool.key()
    store.put(key, bytes(1000))
    with pool.client(local_buffer_size=1500) as other:
        handle = other.get_buffer(key)
        full = other.get(key)
        del handle
        assert full == b""
        assert other.get(key) == bytes(1000)


# --- zero copy ------------------------------------------------------------------------


def test_objects_go_from_and_into_registered_memory(pool, store, region):
    key, memory = pool.key(), region(4096)
    memory.write(b"zero copy")

    assert store.put_from(key, memory.at, 9) == 0
    memory.fill(0)
    assert store.get_into(key, memory.at + 100, 200) == 9
    assert memory.read(110, 0) == bytes(100) + b"zero copy\x00"


def test_memory_that_is_not_registered_is_not_touched(pool, store, bare_region):
    key, memory = pool.key(), bare_region(64)
    store.put(key, b"bytes")

    assert store.get_into(key, memory.at, 64) == BAD
    assert store.put_from(pool.key(), memory.at, 5) == BAD
    assert memory.read(5) == bytes(5)


def test_a_buffer_that_reaches_beyond_its_region_is_refused(pool, store, region):
    key, memory = pool.key(), region(64)
    store.put(key, b"bytes")

    assert store.get_into(key, memory.at + 60, 64) == BAD
    assert store.get_into(key, memory.at, 4) == BAD
    assert store.put_from(pool.key(), memory.at + 1, 64) == BAD


def test_regions_may_not_overlap_and_are_unregistered_by_their_start(store, region):
    memory = region(64)

    assert store.register_buffer(memory.at + 32, 64) == BAD
    assert store.register_buffer(memory.at, 64) == BAD
    assert store.unregister_buffer(memory.at + 32) == BAD
    assert store.unregister_buffer(memory.at) == 0
    assert store.unregister_buffer(memory.at) == BAD
    assert store.register_buffer(memory.at, 0) == BAD


def test_batches_answer_bytes_or_a_code_per_key(pool, store, region):
    keys, memory = pool.keys(3), region(300)
    memory.write(b"first", 0)
    memory.write(b"second", 100)
    put = store.batch_put_from(
        keys, [memory.at, memory.at + 100, memory.at + 290], [5, 6, 20]
    )
    memory.fill(0)
    got = store.batch_get_into(
        keys, [memory.at + i * 100 for i in range(3)], [100, 3, 100]
    )

    assert put == [0, 0, BAD]
    assert got == [5, BAD, MISSING]
    assert memory.read(5) == b"first"
    assert memory.read(6, 100) == bytes(6)


def test_lists_of_different_lengths_are_refused_key_by_key(pool, store, region):
    keys, memory = pool.keys(2), region(64)

    assert store.batch_put_from(keys, [memory.at] * 3, [1] * 3) == [BAD, BAD]
    assert store.batch_get_into(keys, [memory.at] * 3, [1] * 3) == [BAD, BAD]
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []


def test_putting_no_bytes_from_memory_succeeds_without_an_object(pool, store, region):
    key, memory = pool.key(), region(64)

    assert store.put_from(key, memory.at, 0) == 0
    assert store.is_exist(key) == 0


def test_metadata_stands_before_the_data(pool, store, region):
    key, memory = pool.key(), region(64)
    memory.write(b"METAdata")

    assert store.put_from_with_metadata(key, memory.at + 4, memory.at, 4, 4) == 0
    assert store.get(key) == b"METAdata"


def test_an_upsert_from_memory_replaces(pool, store, region):
    keys, memory = pool.keys(2), region(64)
    store.put(keys[0], b"old")
    memory.write(b"newer")

    assert store.upsert_from(keys[0], memory.at, 5) == 0
    assert store.batch_upsert_from(keys, [memory.at] * 2, [3, 4]) == [0, 0]
    assert store.get_batch(keys) == [b"new", b"newe"]


def test_one_object_over_several_buffers(pool, store, region):
    keys, memory = pool.keys(2), region(64)
    memory.write(b"ab..cd..ef")
    ptrs = [memory.at, memory.at + 4, memory.at + 8]
    put = store.batch_put_from_multi_buffers(keys, [ptrs, ptrs[:1]], [[2] * 3, [2]])
    memory.fill(ord("_"))
    got = store.batch_get_into_multi_buffers(keys, [ptrs[:2], ptrs[:1]], [[4, 3], [1]])

    near = config(prefer_alloc_in_same_node=True)

    assert put == [0, 0]
    assert store.batch_put_from_multi_buffers(keys[:1], [ptrs], [[2] * 3], near) == [0]
    assert store.get_batch(keys) == [b"abcdef", b"ab"]
    assert got == [6, BAD]
    assert memory.read(8) == b"abcdef__"


# --- ranges ---------------------------------------------------------------------------


def test_ranges_of_many_objects_go_into_many_buffers(pool, store, region):
    one, two = pool.keys(2)
    store.put_batch([one, two], [b"0123456789", b"abcdefghij"])
    left, right = region(32), region(32)
    left.fill(ord("_"))
    right.fill(ord("_"))
    results = store.get_into_ranges(
        [left.at, right.at],
        [[one, two], [two, one]],
        [[[0, 10], [5]], [[2], [0]]],
        [[[1, 8], [2]], [[0], [4]]],
        [[[3, 2], [4]], [[6], [2]]],
    )

    assert results == [[[3, 2], [4]], [[6], [2]]]
    assert left.read(13) == b"123__cdef_89_"
    assert right.read(9) == b"45abcdef_"


def test_bad_ranges_fail_alone_and_keep_their_shape(pool, store, region):
    key, memory = pool.key(), region(32)
    store.put(key, b"0123456789")
    results = store.get_into_ranges(
        [memory.at],
        [[key, pool.key(), key]],
        [[[0, 0, 30], [0], [0]]],
        [[[8, 0, 0], [0], []]],
        [[[3, 2, 9], [1], [1]]],
    )

    assert results == [[[BAD, 2, BAD], [MISSING], [BAD]]]
    assert store.get_into_ranges([memory.at], [[key]], [[[0]]], [], []) == [[[BAD]]]


# --- sessions -------------------------------------------------------------------------


def test_a_get_session_reads_ranges_by_one_lookup(pool, store, region):
    keys, memory = pool.keys(2), region(32)
    store.put(keys[0], b"0123456789")

    assert store.batch_get_session_start(keys) == [0, MISSING]
    got = store.batch_get_into_multi_buffer_ranges(
        keys,
        [[memory.at, memory.at + 8], [memory.at]],
        [[4, 2], [1]],
        [[6, 0], [0]],
    )
    assert got == [6, BAD]
    assert memory.read(10) == b"6789\0\0\0\x0001"
    assert store.batch_get_session_end(keys) == 0


def test_a_get_session_ends_with_its_lease(pool, store, region):
    key, memory = pool.key(), region(32)
    store.put(key, b"0123456789")
    store.batch_get_session_start([key])
    pool.outwait_lease()
    ask = ([key], [[memory.at]], [[4]], [[0]])

    assert store.batch_get_into_multi_buffer_ranges(*ask) == [Code.LEASE_EXPIRED]
    assert store.batch_get_into_multi_buffer_ranges(*ask) == [BAD]


def test_ranges_outside_of_a_get_session_are_refused(pool, store, region):
    key, memory = pool.key(), region(32)
    store.put(key, b"0123456789")
    store.batch_get_session_start([key])

    def read(size, offset):
        return store.batch_get_into_multi_buffer_ranges(
            [key], [[memory.at]], [[size]], [[offset]]
        )

    assert read(4, 7) == [BAD]
    assert read(33, 0) == [BAD]
    assert read(3, 7) == [3]
    store.batch_get_session_end([key])
    assert read(3, 7) == [BAD]


def test_a_put_session_takes_ranges_in_any_order(pool, store, region):
    key, memory = pool.key(), region(32)
    memory.write(b"worldhello")

    assert store.batch_put_session_start([key], [10]) == [0]
    assert store.is_exist(key) == 0
    put = store.batch_put_from_multi_buffer_ranges(
        [key], [[memory.at, memory.at + 5]], [[5, 5]], [[5, 0]]
    )
    assert put == [10]
    assert store.batch_put_session_end([key]) == [0]
    assert store.get(key) == b"helloworld"
    assert store.batch_put_session_end([key]) == [BAD]


def test_a_revoked_put_session_leaves_nothing(pool, store):
    key = pool.key()
    store.batch_put_session_start([key], [10])

    assert store.batch_put_session_start([key], [10]) == [BAD]
    assert store.batch_put_session_revoke([key]) == [0]
    assert store.batch_put_session_revoke([key]) == [BAD]
    assert store.put(key, b"v") == 0
    assert store.batch_put_session_start([key], [1]) == [Code.OBJECT_ALREADY_EXISTS]


def test_bytes_outside_of_a_put_session_are_refused(pool, store, region):
    key, memory = pool.key(), region(32)
    store.batch_put_session_start([key, pool.key()], [10, 0])

    def write(size, offset):
        return store.batch_put_from_multi_buffer_ranges(
            [key], [[memory.at]], [[size]], [[offset]]
        )

    assert [write(5, 6), write(33, 0), write(4, -1)] == [[BAD]] * 3
    assert write(4, 6) == [4]
    assert store.batch_put_session_revoke([key]) == [0]


def test_closing_gives_up_open_put_sessions(pool, store):
    key = pool.key()
    with pool.client() as other:
        assert other.batch_put_session_start([key], [10]) == [0]

    assert store.put(key, b"v") == 0


# --- removal --------------------------------------------------------------------------


def test_a_reader_holds_an_object_until_its_lease_ends_or_by_force(pool, store):
    one, two = pool.keys(2)
    store.put_batch([one, two], [b"1", b"2"])
    store.get_batch([one, two])

    assert store.remove(one) == Code.OBJECT_HAS_LEASE
    assert store.remove(two, force=True) == 0
    pool.outwait_lease()
    assert store.batch_remove([one, two]) == [0, MISSING]


def test_asking_whether_a_key_exists_holds_it_as_upstream_does(pool, store):
    key = pool.key()
    store.put(key, b"v")
    store.is_exist(key)

    assert store.remove(key) == Code.OBJECT_HAS_LEASE


def test_names_are_removed_by_pattern(pool, store):
    word = pool.key("regex")
    keys = [f"{word}/{tail}" for tail in ("a1", "a2", "b1")]
    store.put_batch(keys, [b"v"] * 3)

    assert store.remove_by_regex(f"^{word}/a[0-9]$") == 2
    assert store.batch_is_exist(keys) == [0, 0, 1]
    assert store.remove_by_regex("(") == BAD
    assert store.remove_by_regex(f"{word}/nothing") == 0


def test_clearing_removes_what_no_reader_holds(pool, store):
    one, two = pool.keys(2)
    store.put_batch([one, two], [b"1", b"2"])
    store.get(two)

    assert store.batch_replica_clear([one, two]) == [one]


# --- replicas, pins, preferences ------------------------------------------------------


def test_descriptors_tell_where_an_object_is(pool, store):
    key = pool.key()
    store.put(key, b"12345")
    (replica,) = store.get_replica_desc(key)
    at = replica.get_memory_descriptor().buffer_descriptor

    assert replica.is_memory_replica()
    assert not replica.is_disk_replica()
    assert str(replica.status) == "ReplicaStatus.COMPLETE"
    assert at.size == 5
    assert at.transport_endpoint.startswith("127.0.0.1:")
    assert list(store.batch_get_replica_desc([key, pool.key()])) == [key]


def test_two_replicas_are_in_two_segments_and_outlive_one(pool, store):
    key, lone = pool.keys(2)
    with pool.client(global_segment_size=16 << 20) as other:
        two = config(replica_num=2)
        assert store.put(key, b"twice", two) == 0
        named = config(preferred_segment=other.get_hostname())
        assert store.put(lone, b"once", named) == 0
        places = {r.segment_name for r in store.get_replica_desc(key)}
        assert places == {store.get_hostname(), other.get_hostname()}

    assert store.get(key) == b"twice"
    assert store.get(lone) == b""


def test_more_replicas_than_segments_are_fewer(pool, store):
    key = pool.key()

    assert store.put(key, b"v", config(replica_num=3)) == 0
    assert len(store.get_replica_desc(key)) == 1


def test_an_unknown_preferred_segment_is_no_reason_to_fail(pool, store):
    wish = config(preferred_segments=["nowhere:1", store.get_hostname()])

    assert store.put(pool.key(), b"v", wish) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"soft_pin_ttl_ms": 1000},
        {"soft_pin_ttl_ms": 1000, "soft_pin_action": SoftPinAction.DISABLE},
        {"replica_num": 0},
        {"nof_replica_num": 1},
        {"group_ids": ["a", "b"]},
        {"prefer_alloc_in_same_node": True},
    ],
)
def test_wishes_that_contradict_are_refused(pool, store, fields):
    key = pool.key()

    assert store.put(key, b"v", config(**fields)) == BAD
    assert store.is_exist(key) == 0


def test_pinned_objects_are_written(pool, store):
    soft = config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=1000)
    before = "master_soft_pin_key_count"

    assert store.put(pool.key(), b"v", soft) == 0
    assert store.put(pool.key(), b"v", config(with_hard_pin=True)) == 0
    assert f"{before} 1.0" in pool.page("/metrics")


def test_a_full_pool_says_so(pool, store):
    assert store.put(pool.key(), bytes(8)) == 0
    with pool.client(local_buffer_size=256 << 20) as other:
        assert other.put(pool.key(), bytes(128 << 20)) == Code.NO_AVAILABLE_HANDLE


# --- tenants and pages ----------------------------------------------------------------


def test_tenants_do_not_see_each_other(pool, store):
    key = pool.key()
    store.put(key, b"ours")
    with pool.client(tenant_id="blue") as blue:
        assert blue.is_exist(key) == 0
        assert blue.put(key, b"theirs") == 0
        assert blue.get(key) == b"theirs"
        assert blue.remove_all() == 0
        pool.outwait_lease()
        assert blue.remove_all() == 1
    assert store.get(key) == b"ours"


def test_the_master_lists_keys_and_segments_like_upstreams(pool, store):
    key, name = pool.key(), store.get_hostname()
    store.put(key, b"v")

    assert key in pool.page("/get_all_keys").splitlines()
    assert name in pool.page("/get_all_segments").splitlines()
    told = pool.page(f"/query_segment?segment={name}").splitlines()
    assert told[0] == name
    assert told[2] == f"Capacity(bytes) : {64 << 20}"
    assert pool.page("/role") == "leader"
    assert '"ok"' in pool.page("/health")


# --- without setup --------------------------------------------------------------------


def test_a_client_that_is_not_set_up_refuses_everything():
    store = MooncakeDistributedStore()

    assert store.health_check() == 1
    assert store.get("k") == b""
    assert store.get_batch(["k"]) == [b""]
    assert store.get_hostname() == ""
    codes = [
        store.put("k", b"v"),
        store.put_from("k", 4096, 1),
        store.put_from("k", 4096, 0),
        store.is_exist("k"),
        store.get_size("k"),
        store.remove("k"),
        store.remove_all(),
        store.remove_by_regex("k"),
        store.register_buffer(4096, 1),
        store.unregister_buffer(4096),
        *store.batch_get_into(["k"], [4096], [1]),
        *store.batch_get_session_start(["k"]),
        *store.batch_put_session_start(["k"], [1]),
        *store.batch_put_session_end(["k"]),
    ]
    assert set(codes) == {BAD}
    assert store.close() == 0


# --- wrong bytes ----------------------------------------------------------------------


def test_an_object_read_in_pieces_is_verified_as_a_whole(
    pool, store, region, monkeypatch
):
    key, memory = pool.key(), region(64)
    store.put(key, b"0123456789")
    real = store._now.link.lookup

    def lied(names):
        found = real(names)
        return dataclasses.replace(found, checksum=found.checksum ^ 1)

    monkeypatch.setattr(store._now.link, "lookup", lied)
    ptrs = [memory.at, memory.at + 32]

    wrong = Code.CHECKSUM_MISMATCH
    assert store.batch_get_into_multi_buffers([key], [ptrs], [[5, 5]]) == [wrong]
    assert store.batch_get_into_multi_buffers([key], [ptrs[:1]], [[10]]) == [wrong]
    assert store.batch_get_into([key], [memory.at], [10]) == [wrong]
    assert store.get(key) == b""
