from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from refimpl.client import Cancel
from refimpl.core.codes import Code
from refimpl.core.hashing import checksum_of, object_key

OK = Code.OK


def keys_of(*names):
    return b"".join(object_key(name) for name in names)


def pages(count, size=4096, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def filled_pool(pool, client, count=8, **more):
    """Puts pages k0.. and answers (keys, data)."""
    keys, data = keys_of(*(f"k{i}" for i in range(count))), pages(count)
    assert client.put(keys, data, timeout_s=5, **more).codes.tolist() == [OK] * count
    return keys, data


def read(client, keys, data, timeout_s=5.0, **more):
    out = np.zeros_like(data)
    return client.get(keys, out, timeout_s=timeout_s, **more), out


def test_what_was_put_is_got(pool):
    pool.store(1, rails=2)
    pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client)

    result, out = read(client, keys, data)

    assert result.codes.tolist() == [OK] * 8
    assert np.array_equal(out, data)
    assert result.endpoints == {"store-1": OK, "store-2": OK}
    assert set(result.asked) == {"store-1", "store-2"}
    assert result.lookup_s > 0
    assert result.transfer_s > 0


def test_codes_are_per_key_in_order_and_keys_may_repeat(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    wanted = keys[32:] + object_key("missing") + keys[:32] + keys[32:]

    result, out = read(client, wanted, pages(4))

    assert result.codes.tolist() == [OK, Code.OBJECT_NOT_FOUND, OK, OK]
    assert np.array_equal(out[[0, 2, 3]], data[[1, 0, 1]])


def test_buffers_may_be_views_of_any_shape_that_is_contiguous(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    buffers = [memoryview(bytearray(4096)), np.zeros((64, 64), np.uint8)]

    result = client.get(keys, buffers, timeout_s=5)

    assert result.codes.tolist() == [OK, OK]
    assert bytes(buffers[0]) == data[0].tobytes()
    assert buffers[1].tobytes() == data[1].tobytes()


def test_keys_may_be_an_array_of_words(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    words = np.frombuffer(keys, np.uint64).reshape(2, 4)

    assert client.exists(words, timeout_s=5).tolist() == [OK, OK]
    assert read(client, words, data)[0].codes.tolist() == [OK, OK]


@pytest.mark.parametrize(
    ("keys", "buffers", "code"),
    [
        (bytes(31), [bytearray(8)], Code.INVALID_PARAMS),
        (bytes(64), [bytearray(8)], Code.INVALID_PARAMS),
        (bytes(32), [np.zeros((8, 8), np.uint8)[:, ::2]], Code.INVALID_PARAMS),
    ],
)
def test_a_callers_mistake_is_its_code(pool, keys, buffers, code):
    client = pool.client()

    assert client.get(keys, buffers, timeout_s=1).codes.tolist() == [code]
    assert client.put(keys, buffers, timeout_s=1).codes.tolist() == [code]


def test_a_buffer_that_cannot_be_written_to_is_the_callers_mistake(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1)

    assert client.get(keys, [bytes(data[0])], timeout_s=1).codes.tolist() == [
        Code.INVALID_PARAMS
    ]


@pytest.mark.parametrize("replicas", [0, -1])
def test_no_replica_at_all_is_the_callers_mistake(pool, replicas):
    pool.store(1)
    put = pool.client().put(bytes(32), [b"a"], timeout_s=1, replicas=replicas)

    assert put.codes.tolist() == [Code.INVALID_PARAMS]


def test_a_buffer_too_small_fails_alone_and_a_larger_one_is_filled_in_front(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    small, large = bytearray(10), bytearray(5000)

    result = client.get(keys, [small, large], timeout_s=5)

    assert result.codes.tolist() == [Code.BUFFER_OVERFLOW, OK]
    assert bytes(large) == data[1].tobytes() + bytes(904)


def test_nothing_asked_is_nothing_done(pool):
    client = pool.client()

    assert client.get(b"", [], timeout_s=1).codes.tolist() == []
    assert client.put(b"", [], timeout_s=1).codes.tolist() == []
    assert pool.master.lookups == 0


def test_an_object_that_exists_is_not_written_again(pool):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    before = store.requests

    result = client.put(keys, data, timeout_s=5)

    assert result.codes.tolist() == [Code.OBJECT_ALREADY_EXISTS] * 2
    assert store.requests == before
    assert result.endpoints == {}


# Wrong bytes.


def test_wrong_bytes_are_named_and_not_called_good(pool):
    bad, good = pool.store(1), pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 4)
    bad.failpoints.set("store.corrupt", "on")

    result, _ = read(client, keys, data)

    assert sorted(result.codes.tolist()) == [Code.CHECKSUM_MISMATCH, OK, OK, OK]
    assert result.endpoints == {
        bad.name: Code.CHECKSUM_MISMATCH,
        good.name: OK,
    }


def test_a_second_replica_mends_wrong_bytes(pool):
    stores = [pool.store(1), pool.store(2)]
    client = pool.client()
    keys, data = filled_pool(pool, client, 4, replicas=2)
    stores[0].failpoints.set("store.corrupt", "on")

    result, out = read(client, keys, data)

    assert result.codes.tolist() == [OK] * 4
    assert np.array_equal(out, data)
    assert result.endpoints["store-1"] == Code.CHECKSUM_MISMATCH


def test_the_defect_hands_wrong_bytes_out(pool):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1)
    store.failpoints.set("store.corrupt", "on")
    pool.failpoints.set("defect.checksum_not_checked", "on")

    result, out = read(client, keys, data)

    assert result.codes.tolist() == [OK]
    assert not np.array_equal(out, data)


# The lease (Mooncake#896, #4239): one matrix on all paths.


def _one_store(pool, client):
    pool.store(1)
    return filled_pool(pool, client, 2)


def _many_stores(pool, client):
    for number in (1, 2, 3):
        pool.store(number)
    return filled_pool(pool, client, 6)


def _two_rails(pool, client):
    pool.store(1, rails=2)
    return filled_pool(pool, client, 4)


def _alternative(pool, client):
    first = pool.store(1)
    pool.store(2)
    keys, data = filled_pool(pool, client, 4, replicas=2)
    first.server.close()
    return keys, data


def _parts(pool, client):
    pool.store(1)
    keys, data = keys_of("p"), pages(1)
    for part in (0, 1):
        half = data[:, part * 2048 : (part + 1) * 2048].copy()
        client.put(keys, half, timeout_s=5, part=part, parts=2)
    return keys, data


def _single_key(pool, client):
    pool.store(1)
    return filled_pool(pool, client, 1)


_PATHS = [_one_store, _many_stores, _two_rails, _alternative, _parts, _single_key]


@pytest.mark.parametrize("when", ["before", "during", "never"])
@pytest.mark.parametrize("path", _PATHS, ids=lambda path: path.__name__.strip("_"))
def test_bytes_after_the_lease_are_not_handed_out(pool, path, when):
    client = pool.client()
    keys, data = path(pool, client)
    pool.master.lease_ms = 10_000 if when == "never" else 60
    if when == "before":
        pool.master.delay_s = 0.09
    if when == "during":
        for store in pool.master.stores.values():
            store.failpoints.set("store.read", "sleep(90)")

    result, out = read(client, keys, data)

    code = OK if when == "never" else Code.LEASE_EXPIRED
    assert result.codes.tolist() == [code] * len(data)
    if when == "never":
        assert np.array_equal(out, data)


def test_the_defect_hands_late_bytes_out(pool):
    client = pool.client()
    keys, data = _one_store(pool, client)
    pool.master.lease_ms, pool.master.delay_s = 30, 0.06
    pool.failpoints.set("defect.lease_not_checked", "on")

    assert read(client, keys, data)[0].codes.tolist() == [OK, OK]


# Deadline and cancellation.


def test_a_hung_lookup_costs_the_deadline_and_names_the_master(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    pool.master.hang.clear()
    began = time.monotonic()

    result, _ = read(client, keys, data, timeout_s=0.2)

    assert 0.15 < time.monotonic() - began < 0.6
    assert result.codes.tolist() == [Code.RPC_TIMEOUT] * 2
    assert result.endpoints == {"master": Code.RPC_TIMEOUT}
    assert result.asked == ()


def test_the_deadline_is_one_over_lookup_and_transfer(pool):
    slow, quick = pool.store(1), pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 4)
    pool.master.delay_s = 0.2
    slow.failpoints.set("store.read", "pause")
    began = time.monotonic()

    result, out = read(client, keys, data, timeout_s=0.4)

    assert time.monotonic() - began < 0.8
    assert sorted(result.codes.tolist()) == [Code.RPC_TIMEOUT] * 2 + [OK] * 2
    assert result.endpoints == {slow.name: Code.RPC_TIMEOUT, quick.name: OK}
    good = result.codes == OK
    assert np.array_equal(out[good], data[good])


def test_nothing_is_left_of_a_deadline_that_passed(pool):
    client = pool.client()

    result = client.get(bytes(32), [bytearray(8)], timeout_s=0)

    assert result.codes.tolist() == [Code.RPC_TIMEOUT]
    assert pool.master.lookups == 0


@pytest.mark.parametrize("where", ["lookup", "transfer"])
def test_cancelling_returns_at_once(pool, where):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    if where == "lookup":
        pool.master.hang.clear()
    else:
        store.failpoints.set("store.read", "pause")
    began = time.monotonic()
    with Cancel() as cancel:
        timer = threading.Timer(0.05, cancel.set)
        timer.start()
        result, _ = read(client, keys, data, timeout_s=10, cancel=cancel)
        timer.join()

    assert time.monotonic() - began < 1
    assert result.codes.tolist() == [Code.RPC_TIMEOUT] * 2
    # Fifty milliseconds are no proof against anybody.
    assert set(result.endpoints.values()) <= {OK}


def test_a_cancelled_call_names_a_store_that_never_said_anything(pool):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    store.failpoints.set("store.read", "pause")
    with Cancel() as cancel:
        timer = threading.Timer(0.2, cancel.set)
        timer.start()
        result, _ = read(client, keys, data, timeout_s=10, cancel=cancel)
        timer.join()

    assert result.endpoints == {"store-1": Code.RPC_TIMEOUT}


def test_a_get_with_cancel_works_like_one_without(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client)

    with Cancel() as cancel:
        result, out = read(client, keys, data, cancel=cancel)

    assert result.codes.tolist() == [OK] * 8
    assert np.array_equal(out, data)


# Replicas, avoidance, identity.


def test_the_other_replica_of_a_silent_store_is_read_in_time(pool, silent):
    """Mooncake#2910, at a fifth of its times."""
    first, second = pool.store(1), pool.store(2)
    client = pool.client(replica_stall_s=0.2)
    keys, data = filled_pool(pool, client, 128, replicas=2)
    first.rails = {"r0": silent}
    began = time.monotonic()

    result, out = read(client, keys, data, timeout_s=2)
    middle = time.monotonic()
    again, _ = read(client, keys, data, timeout_s=2)

    assert result.codes.tolist() == [OK] * 128
    assert np.array_equal(out, data)
    assert middle - began < 0.7
    assert result.endpoints == {first.name: Code.RPC_TIMEOUT, second.name: OK}
    # The second batch does not ask the silent one again.
    assert time.monotonic() - middle < 0.15
    assert again.asked == (second.name,)


def test_two_bad_replicas_are_asked_once_each(pool):
    stores = [pool.store(1), pool.store(2)]
    client = pool.client()
    keys, data = filled_pool(pool, client, 1, replicas=2)
    for store in stores:
        store.failpoints.set("store.read", "return(-800)")

    result, _ = read(client, keys, data, timeout_s=0.5)

    assert result.codes.tolist() == [Code.TRANSFER_FAIL]
    asked = [store.failpoints.snapshot()["store.read"]["calls"] for store in stores]
    assert asked == [1, 1]


def test_the_alternative_is_per_key(pool):
    first, _second, third = pool.store(1), pool.store(2), pool.store(3)
    client = pool.client()
    keys, data = filled_pool(pool, client, 6, replicas=2)
    first.server.close()
    third.failpoints.set("store.read", "return(-800)")

    result, _ = read(client, keys, data)

    # Keys on stores 3 and 1 only have no way left, all others have.
    lost = {
        i
        for i in range(6)
        if {n for n, _ in pool.master.objects[keys[32 * i : 32 * i + 32]]["places"]}
        == {1, 3}
    }
    codes = result.codes.tolist()
    assert lost
    assert {i for i, code in enumerate(codes) if code != OK} == lost
    assert {codes[i] for i in lost} == {Code.TRANSFER_FAIL}


def test_an_avoided_store_is_not_asked(pool):
    first, second = pool.store(1), pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 4)
    before = first.requests

    result, _ = read(client, keys, data, avoid={first.name})

    assert sorted(result.codes.tolist()) == [Code.REPLICA_IS_NOT_READY] * 2 + [OK] * 2
    assert result.endpoints == {second.name: OK}
    assert first.requests == before


def test_an_avoided_store_is_not_written_to(pool):
    first, second = pool.store(1), pool.store(2)
    client = pool.client()

    result = client.put(keys_of("a", "b"), pages(2), timeout_s=5, avoid={first.name})

    assert result.codes.tolist() == [OK, OK]
    assert result.endpoints == {second.name: OK}


def test_names_of_segments_are_not_asked_for_with_every_put(pool):
    first, _second = pool.store(1), pool.store(2)
    client = pool.client(names_fresh_s=1000.0)
    for name in "abc":
        client.put(keys_of(name), pages(1), timeout_s=5, avoid={first.name})

    assert pool.master.lists == 1
    assert all(list(start.exclude) == [first.id] for start in pool.master.starts)


def test_a_restarted_store_is_another_one_and_the_master_is_asked_once_more(pool):
    store = pool.store(1)
    other = pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 4)
    before = pool.master.lookups
    store.server.renew(9, 1.0)

    result, _ = read(client, keys, data)

    # The master still points to the old one: the bytes are gone, nobody is at fault.
    assert sorted(result.codes.tolist()) == [Code.REPLICA_IS_GONE] * 2 + [OK] * 2
    assert result.endpoints == {store.name: OK, other.name: OK}
    assert pool.master.lookups == before + 2


def test_a_fresh_lookup_finds_what_moved(pool):
    store, other = pool.store(1), pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    stale = {key: dict(one) for key, one in pool.master.objects.items()}
    for one in pool.master.objects.values():
        number, offset = one["places"][0]
        if number == store.id:
            other.memory[SPARE : SPARE + 4096] = store.memory[offset : offset + 4096]
            one["places"] = [(other.id, SPARE)]
    moved, pool.master.objects = pool.master.objects, stale
    store.server.renew(9, 1.0)
    answer = pool.master.Lookup

    def lookup(request, context):
        response = answer(request, context)
        pool.master.objects = moved
        return response

    pool.master.Lookup = lookup
    client.close()
    pool.server.stop(None).wait()
    pool.serve("127.0.0.1:0")
    client = pool.client()

    result, out = read(client, keys, data)

    assert result.codes.tolist() == [OK, OK]
    assert np.array_equal(out, data)


SPARE = 1 << 20


# Puts.


def test_parts_of_one_object_are_written_by_ranks_in_any_order(pool):
    store = pool.store(1)
    ranks = [pool.client(), pool.client()]
    keys, data = keys_of("x", "y"), pages(2)
    halves = [np.ascontiguousarray(half) for half in np.split(data, 2, axis=1)]

    second = ranks[1].put(
        keys, halves[1], timeout_s=5, part=1, parts=2, object_bytes=4096
    )
    early = ranks[0].exists(keys, timeout_s=5)
    first = ranks[0].put(
        keys, halves[0], timeout_s=5, part=0, parts=2, object_bytes=4096
    )
    result, out = read(ranks[0], keys, data)

    assert first.codes.tolist() == second.codes.tolist() == [OK, OK]
    assert early.tolist() == [Code.REPLICA_IS_NOT_READY] * 2
    assert result.codes.tolist() == [OK, OK]
    assert np.array_equal(out, data)
    assert store.memory[:4096] == data[0].tobytes()
    expected = checksum_of(halves[0][0]) ^ checksum_of(halves[1][0], 1)
    assert pool.master.objects[keys[:32]]["checksum"] == expected


def test_parts_that_do_not_make_the_object_are_a_callers_mistake(pool):
    client = pool.client()

    result = client.put(bytes(32), pages(1), timeout_s=1, parts=2, object_bytes=5000)
    wrong = client.put(bytes(32), pages(1), timeout_s=1, part=2, parts=2)

    assert result.codes.tolist() == [Code.INVALID_PARAMS]
    assert wrong.codes.tolist() == [Code.INVALID_PARAMS]


def test_every_replica_is_written(pool):
    first, second = pool.store(1), pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 3, replicas=2)

    for i in range(3):
        for number, offset in pool.master.objects[keys[32 * i : 32 * i + 32]]["places"]:
            memory = {1: first, 2: second}[number].memory
            assert memory[offset : offset + 4096] == data[i].tobytes()


@pytest.mark.parametrize("how", ["code", "gone", "silent"])
def test_a_put_goes_elsewhere_when_a_store_fails(pool, how, silent):
    bad, good = pool.store(1), pool.store(2)
    client = pool.client(replica_stall_s=0.2)
    if how == "code":
        bad.failpoints.set("store.write", "return(-800)")
    elif how == "gone":
        bad.server.close()
    else:
        bad.rails = {"r0": silent}
    keys, data = keys_of(*"abcd"), pages(4)
    began = time.monotonic()

    result = client.put(keys, data, timeout_s=3)

    assert time.monotonic() - began < 1.5
    assert result.codes.tolist() == [OK] * 4
    assert result.endpoints[bad.name] != OK
    assert result.endpoints[good.name] == OK
    assert list(pool.master.starts[-1].exclude) == [bad.id]
    assert len(pool.master.revoked) == 2
    assert np.array_equal(read(client, keys, data)[1], data)


def test_a_put_that_fails_everywhere_is_revoked(pool):
    store = pool.store(1)
    store.failpoints.set("store.write", "return(-800)")
    client = pool.client()
    keys = keys_of("a", "b")

    result = client.put(keys, pages(2), timeout_s=3)

    assert result.codes.tolist() == [Code.TRANSFER_FAIL] * 2
    assert result.endpoints == {store.name: Code.TRANSFER_FAIL}
    assert sorted(pool.master.revoked) == sorted([keys[:32], keys[32:]])
    assert client.exists(keys, timeout_s=3).tolist() == [Code.OBJECT_NOT_FOUND] * 2


def test_a_put_whose_revocation_is_lost_is_not_taken_for_one_that_exists(pool):
    pool.store(1).failpoints.set("store.write", "return(-800)")
    pool.master.revokes_nothing = True
    client = pool.client()

    result = client.put(keys_of("a"), pages(1), timeout_s=3)

    assert result.codes.tolist() == [Code.TRANSFER_FAIL]


def test_every_revocation_that_nobody_waits_for_arrives(pool):
    for number in (1, 2):
        pool.store(number).failpoints.set("store.write", "return(-800)")
    client = pool.client()
    names = [f"k{i}" for i in range(30)]

    for name in names:
        client.put(keys_of(name), pages(1), timeout_s=3)

    until = time.monotonic() + 20
    while len(pool.master.revoked) < 60 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(pool.master.revoked) == 60
    assert not pool.master.objects


def test_a_put_keeps_its_deadline(pool, silent):
    store = pool.store(1)
    store.rails = {"r0": silent}
    client = pool.client()
    began = time.monotonic()

    result = client.put(keys_of("a"), pages(1), timeout_s=0.3)

    assert time.monotonic() - began < 1.5
    assert result.codes[0] != OK
    assert result.endpoints[store.name] == Code.RPC_TIMEOUT


# The line to the master, and what else may happen.


def test_removing_and_listing(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 2)

    assert [s.name for s in client.segments(5)] == ["store-1"]
    assert client.remove(keys[:32], timeout_s=5).tolist() == [OK]
    assert client.exists(keys, timeout_s=5).tolist() == [Code.OBJECT_NOT_FOUND, OK]
    assert client.remove_all(5) == 1
    assert client.exists(keys, timeout_s=5).tolist() == [Code.OBJECT_NOT_FOUND] * 2


def test_the_channel_survives_a_restart_of_the_master(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    address = f"127.0.0.1:{pool.port}"
    pool.server.stop(None).wait()
    down = client.exists(keys, timeout_s=1).tolist()
    pool.serve(address)
    began = time.monotonic()
    while client.exists(keys, timeout_s=1).tolist() != [OK]:
        assert time.monotonic() - began < 20

    assert down == [Code.RPC_FAIL]


def test_a_failpoint_before_the_transfer_is_the_code_of_the_keys(pool):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    before = store.requests
    pool.failpoints.set("client.before_transfer", "return(-800)")

    result, _ = read(client, keys, data)

    assert result.codes.tolist() == [-800, -800]
    assert result.asked == ()
    assert store.requests == before


def test_a_client_frozen_before_the_transfer_never_reads_what_came_after(pool):
    """Mooncake#1336: the place was given to another object meanwhile."""
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1)
    pool.failpoints.set("client.before_transfer", "pause")
    results = []
    thread = threading.Thread(target=lambda: results.append(read(client, keys, data)))
    thread.start()
    _until(lambda: pool.failpoints.snapshot()["client.before_transfer"]["hits"])
    store.server.renew(9, 1.0)
    store.memory[:4096] = bytes(4096)
    pool.failpoints.clear()
    thread.join()

    ((result, _out),) = results
    assert result.codes.tolist() == [Code.REPLICA_IS_GONE]


def test_a_place_that_was_overwritten_fails_the_checksum(pool):
    store = pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1)
    store.memory[:4096] = bytes(4096)

    assert read(client, keys, data)[0].codes.tolist() == [Code.CHECKSUM_MISMATCH]


def test_whatever_breaks_inside_is_a_code(pool, monkeypatch, caplog):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)

    def broken(*_args, **_more):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(client._engine, "read", broken)
    monkeypatch.setattr(client._engine, "write", broken)

    assert read(client, keys, data)[0].codes.tolist() == [Code.INTERNAL_ERROR] * 2
    put = client.put(keys_of("n"), pages(1), timeout_s=5)
    assert put.codes.tolist() == [Code.INTERNAL_ERROR]
    assert "on purpose" in caplog.text


def test_a_closed_client_answers_codes(pool):
    client = pool.client()
    client.close()

    assert client.get(bytes(32), [bytearray(8)], timeout_s=1).codes[0] == Code.RPC_FAIL
    with Cancel() as cancel:
        result = client.get(bytes(32), [bytearray(8)], timeout_s=1, cancel=cancel)
    assert result.codes[0] == Code.RPC_FAIL


def test_counters_say_what_happened(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 2)
    read(client, keys + object_key("missing"), pages(3))

    counts = client.stats()["counts"]

    assert counts["put_keys_ok"] == 2
    assert counts["get_keys_ok"] == 2
    assert counts["get_keys_object_not_found"] == 1
    assert client.stats()["transfer"]["rails"]["store-1@r0"]["in"] > 2 * 4096


def _until(condition, seconds=3.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# Ranges of what was looked up before.


def ranges(client, found, wanted, timeout_s=5.0):
    """Reads (row, offset, size) triples and answers (codes, bytes of each)."""
    buffers = [bytearray(size) for _, _, size in wanted]
    rows, offsets = [w[0] for w in wanted], [w[1] for w in wanted]
    codes = client.get_ranges(found, rows, offsets, buffers, timeout_s=timeout_s)
    return codes.tolist(), [bytes(buffer) for buffer in buffers]


def test_ranges_of_one_lookup_are_read_together(pool):
    pool.store(1)
    pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    found = client.lookup(keys, timeout_s=5)

    codes, parts = ranges(client, found, [(0, 10, 90), (1, 0, 4096), (0, 4000, 96)])

    assert codes == [OK, OK, OK]
    assert parts[0] == data[0, 10:100].tobytes()
    assert parts[1] == data[1].tobytes()
    assert parts[2] == data[0, 4000:].tobytes()


def test_a_range_beyond_its_object_is_the_callers_mistake_alone(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1)
    found = client.lookup(keys + object_key("missing"), timeout_s=5)

    wanted = [(0, 4090, 7), (0, 2**63, 1), (0, 0, 4097), (1, 0, 1), (0, 4090, 6)]
    codes, parts = ranges(client, found, wanted)

    bad = Code.INVALID_PARAMS
    assert codes == [bad, bad, bad, Code.OBJECT_NOT_FOUND, OK]
    assert parts[4] == data[0, 4090:].tobytes()
    assert client.get_ranges(found, [0], [0, 1], [bytearray(1)], timeout_s=5) == [bad]


def test_a_range_read_after_its_lease_is_not_trusted(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    pool.master.lease_ms = 1
    found = client.lookup(keys, timeout_s=5)
    time.sleep(0.01)

    assert ranges(client, found, [(0, 0, 8)])[0] == [Code.LEASE_EXPIRED]


def test_a_range_that_is_a_whole_object_is_verified(pool):
    store = pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    found = client.lookup(keys, timeout_s=5)
    store.memory[100] ^= 1

    codes, _ = ranges(client, found, [(0, 0, 4096), (0, 0, 4095)])

    assert codes == [Code.CHECKSUM_MISMATCH, OK]


def test_a_range_in_a_restarted_store_is_gone(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    found = client.lookup(keys, timeout_s=5)
    asked = pool.master.lookups
    pool.master.stores[1].server.renew(99, 1.0)

    assert ranges(client, found, [(0, 0, 8)])[0] == [Code.REPLICA_IS_GONE]
    assert pool.master.lookups == asked


def test_a_range_falls_over_to_the_other_replica(pool):
    first = pool.store(1)
    pool.store(2)
    client = pool.client()
    keys, data = filled_pool(pool, client, 1, replicas=2)
    found = client.lookup(keys, timeout_s=5)
    first.server.close()

    codes, parts = ranges(client, found, [(0, 5, 8)])

    assert codes == [OK]
    assert parts == [data[0, 5:13].tobytes()]


def test_a_get_with_a_lookup_of_its_own_asks_no_second_time(pool):
    pool.store(1)
    client = pool.client()
    keys, data = filled_pool(pool, client, 2)
    found = client.lookup(keys, timeout_s=5)
    asked = pool.master.lookups

    result, out = read(client, keys, data, found=found)

    assert result.codes.tolist() == [OK, OK]
    assert np.array_equal(out, data)
    assert pool.master.lookups == asked


# Puts in steps.


def test_a_reserved_object_is_readable_when_it_is_completed(pool):
    pool.store(1)
    client = pool.client()
    keys, data = keys_of("a", "b"), pages(2)
    buffers = [bytearray(4096), bytearray(4096)]
    held = client.reserve(keys, buffers, timeout_s=5, names=["a", "b"])
    before = client.exists(keys, timeout_s=5).tolist()
    buffers[1][:] = data[1].tobytes()

    assert held.codes.tolist() == [OK, OK]
    assert before == [Code.REPLICA_IS_NOT_READY] * 2
    assert held.complete([1], timeout_s=5).tolist() == [OK]
    result, out = read(client, keys, data)
    assert result.codes.tolist() == [Code.REPLICA_IS_NOT_READY, OK]
    assert np.array_equal(out[1], data[1])
    assert list(pool.master.starts[0].names) == ["a", "b"]


def test_a_revoked_place_is_free_and_revoking_twice_is_harmless(pool):
    pool.store(1)
    client = pool.client()
    held = client.reserve(keys_of("a"), [bytearray(64)], timeout_s=5)

    assert held.revoke([0], timeout_s=5).tolist() == [OK]
    assert held.revoke([0], timeout_s=5).tolist() == [OK]
    assert client.put(keys_of("a"), [b"x"], timeout_s=5).codes.tolist() == [OK]


def test_what_is_taken_already_is_not_reserved(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    held = client.reserve(keys, [bytearray(8)], timeout_s=5)

    assert held.codes.tolist() == [Code.OBJECT_ALREADY_EXISTS]
    with pytest.raises(ValueError, match="0 buffers for 1 keys"):
        client.reserve(keys, [], timeout_s=5)


def test_a_completion_that_failed_keeps_its_place_for_another_try(pool):
    store = pool.store(1)
    client = pool.client()
    held = client.reserve(keys_of("a"), [bytearray(b"x" * 64)], timeout_s=5)
    store.failpoints.set("store.write", "1*return(-800)")
    first = held.complete([0], timeout_s=5).tolist()

    assert first != [OK]
    assert pool.master.revoked == []
    assert held.complete([0], timeout_s=5).tolist() == [OK]


# What newcomers and operators ask.


def test_names_come_slice_by_slice(pool):
    client = pool.client()
    pool.master.names = list("abcde")

    assert client.names(5) == list("abcde")


def test_the_master_describes_itself(pool):
    facts = pool.client().describe(5)

    assert (facts.heartbeat, facts.time_scale, facts.lease_s, facts.view) == (
        "127.0.0.1:7",
        0.5,
        10.0,
        3,
    )


def test_wishes_of_a_put_reach_the_master(pool):
    pool.store(1)
    pool.store(2)
    client = pool.client()
    client.put(
        keys_of("a"),
        [b"x"],
        timeout_s=5,
        pin="hard",
        prefer=("store-2", "nowhere", "store-1"),
        names=["a"],
    )
    asked = pool.master.starts[0]

    assert (asked.pin, list(asked.prefer), list(asked.names)) == ("hard", [2, 1], ["a"])


def test_buffers_are_free_when_the_call_returns_not_when_the_collector_runs(pool):
    pool.store(1)
    client = pool.client()
    keys, _ = filled_pool(pool, client, 1)
    gc.collect()
    gc.disable()
    try:
        buffer = bytearray(4096)
        assert client.get(keys, [buffer], timeout_s=5).codes.tolist() == [OK]
        buffer.extend(b"x")  # BufferError as long as anybody holds a view
    finally:
        gc.enable()
