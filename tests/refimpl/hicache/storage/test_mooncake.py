from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.hicache.storage.batches import GUARD_BYTES
from refimpl.hicache.storage.mooncake import (
    MooncakeSettings,
    MooncakeStorage,
    object_name,
)
from refimpl.native.client import Gone, NotConnected
from refimpl.transfer.cancel import Cancel

SLACK_S = 0.5
"""How late a deadline of a few tenths may be kept on a busy machine."""


def test_what_was_put_is_read_back_and_lies_where_it_was_sent(rig):
    keys = [bytes([n]) * 32 for n in range(1, 9)]
    put = rig.put(*keys)
    got, buffers, _ = rig.get(*keys)

    assert put.codes.tolist() == [0] * 8
    assert got.codes.tolist() == [0] * 8
    assert [bytes(b) for b in buffers] == [bytes([n]) * 64 for n in range(1, 9)]
    assert set(got.endpoints) == {rig.native.objects[k.hex()][0] for k in keys}
    assert set(got.heard_s) == set(got.asked)


def test_codes_are_per_key_and_only_good_ones_touch_their_buffer(rig):
    good, bad, gone = rig.place("a:1", 1), rig.place("a:1", 2), b"\x03" * 32
    rig.native.codes[bad.hex()] = Code.CHECKSUM_MISMATCH
    got, buffers, _ = rig.get(good, bad, gone)

    assert got.codes.tolist() == [0, Code.CHECKSUM_MISMATCH, Code.OBJECT_NOT_FOUND]
    assert [bytes(b) for b in buffers] == [b"\x01" * 64, bytes(64), bytes(64)]
    assert got.endpoints == {"a:1": Code.CHECKSUM_MISMATCH}


def test_a_short_read_is_no_success(rig):
    key = rig.place("a:1", 1)
    rig.native.short = True
    got, buffers, _ = rig.get(key)

    assert got.codes.tolist() == [Code.TRANSFER_FAIL]
    assert bytes(buffers[0]) == bytes(64)


@pytest.mark.parametrize("what", ["zeros", "another object", "one bit"])
def test_a_good_answer_with_other_bytes_is_a_fault_of_its_store(rig, what):
    key, other = rig.place("a:1", 1), rig.place("b:1", 2)
    names, objects = (key.hex(), other.hex()), rig.native.objects
    mine = objects[names[0]][1]
    wrong = {
        "zeros": bytes(len(mine)),
        "another object": objects[names[1]][1],
        "one bit": bytes([mine[0] ^ 1]) + mine[1:],
    }[what]
    objects[names[0]] = ("a:1", wrong)
    got, _, _ = rig.get(key, other)

    assert got.codes.tolist() == [Code.CHECKSUM_MISMATCH, 0]
    assert got.endpoints == {"a:1": Code.CHECKSUM_MISMATCH, "b:1": 0}


def test_healthy_keys_of_a_mixed_batch_are_used_and_the_hung_store_is_named(rig):
    keys = [rig.place("a:1", 1), rig.place("b:1", 2), rig.place("c:1", 3)]
    rig.native.hold("b:1")
    got, buffers, took_s = rig.get(*keys, timeout_s=0.3)

    assert got.codes.tolist() == [0, Code.RPC_TIMEOUT, 0]
    assert got.endpoints == {"a:1": 0, "b:1": Code.RPC_TIMEOUT, "c:1": 0}
    assert [b[0] for b in buffers] == [1, 0, 3]
    assert 0.3 <= took_s < 0.3 + SLACK_S


def test_late_bytes_of_a_hung_read_land_in_no_buffer(rig):
    key = rig.place("b:1", 2)
    rig.native.hold("b:1")
    rig.native.late = b"\xee"
    got, buffers, _ = rig.get(key, timeout_s=0.05)
    assert rig.hung() == {"b:1": 1}
    others = [rig.place("a:1", n) for n in range(10, 24)]
    rig.native.let_go()
    assert rig.until(lambda: not rig.hung())
    again, fresh, _ = rig.get(*others)

    assert got.codes.tolist() == [Code.RPC_TIMEOUT]
    assert bytes(buffers[0]) == bytes(64)
    assert again.codes.tolist() == [0] * 14
    assert [b[0] for b in fresh] == list(range(10, 24))
    assert rig.storage.stats()["lanes"]["late_returns"] == 1


def test_the_memory_of_a_hung_call_is_used_by_nobody_else(rig):
    key = rig.place("b:1", 2)
    rig.native.hold("b:1")
    rig.native.late = b"\xee"
    rig.get(key, timeout_s=0.05)
    lanes = rig.storage._lanes
    free = {lane.number for lane in lanes._free}
    hung = set(range(lanes.count)) - free
    before = {n: lanes.memory.array[n * lanes.lane_bytes] for n in free}
    rig.native.let_go()
    assert rig.until(lambda: not rig.hung())

    assert len(hung) == 1
    assert lanes.memory.array[hung.pop() * lanes.lane_bytes] == 0xEE
    assert before == {n: lanes.memory.array[n * lanes.lane_bytes] for n in free}


def test_an_endpoint_whose_calls_hang_is_refused_at_once_and_others_are_served(rig):
    bad, good = rig.place("b:1", 2), rig.place("a:1", 1)
    rig.native.hold("b:1")
    for _ in range(2):
        rig.get(bad, timeout_s=0.05)
    got, _, took_s = rig.get(bad, good, timeout_s=2.0)

    assert got.codes.tolist() == [Code.RPC_TIMEOUT, 0]
    assert got.endpoints == {"a:1": 0, "b:1": Code.RPC_TIMEOUT}
    assert took_s < SLACK_S
    assert rig.hung() == {"b:1": 2}


def test_when_every_lane_hangs_the_answer_is_a_fault_at_once(mooncake):
    rig = mooncake(lanes=4)
    keys = [rig.place(e, n) for n, e in enumerate(rig.native.endpoints, 1)]
    for endpoint in rig.native.endpoints:
        rig.native.hold(endpoint)
    rig.get(*keys, timeout_s=0.1)
    assert rig.storage._lanes.stuck
    began = time.monotonic()
    codes = rig.storage.exists(b"".join(keys), timeout_s=2.0)
    took_s = time.monotonic() - began

    assert codes.tolist() == [Code.RPC_TIMEOUT] * 4
    assert took_s < SLACK_S
    assert rig.storage._lanes.memory.size_bytes == 4 * (1 << 16)
    rig.native.let_go()
    assert rig.until(lambda: not rig.hung())
    assert rig.get(*keys)[0].codes.tolist() == [0] * 4


def test_more_work_than_lanes_waits_for_them_and_all_of_it_is_done(mooncake):
    rig = mooncake(lanes=2, lane_bytes=128)
    rig.native.delay_s = 0.005
    keys = [rig.place("abcd"[n % 4] + ":1", n) for n in range(1, 25)]
    results = []

    def read():
        results.append(rig.get(*keys, timeout_s=8.0))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(results) == 4
    for got, buffers, _ in results:
        assert got.codes.tolist() == [0] * 24
        assert [b[0] for b in buffers] == list(range(1, 25))


def test_a_hung_master_costs_the_deadline_and_blames_no_store(rig):
    key = rig.place("a:1", 1)
    rig.native.hold("master")
    got, _, took_s = rig.get(key, timeout_s=0.2)

    assert got.codes.tolist() == [Code.RPC_TIMEOUT]
    assert got.endpoints == {}
    assert 0.2 <= took_s < 0.2 + SLACK_S


def test_a_cancel_ends_a_read_at_once(rig):
    key = rig.place("b:1", 2)
    rig.native.hold("b:1")
    with Cancel() as cancel:
        threading.Timer(0.05, cancel.set).start()
        got, _, took_s = rig.get(key, timeout_s=5.0, cancel=cancel)

    assert got.codes.tolist() == [Code.RPC_TIMEOUT]
    assert took_s < 1.0


def test_avoided_stores_are_not_read_from(rig):
    keys = [rig.place("a:1", 1), rig.place("b:1", 2)]
    got, _, _ = rig.get(*keys, avoid=frozenset({"b:1"}))

    assert got.codes.tolist() == [0, Code.REPLICA_NOT_FOUND]
    assert got.asked == ("a:1",)


def test_avoided_stores_are_not_written_to(rig):
    keys = [bytes([n]) * 32 for n in range(1, 33)]
    put = rig.put(*keys, avoid=frozenset({"b:1", "c:1"}))

    assert put.codes.tolist() == [0] * 32
    assert set(put.asked) == {"a:1", "d:1"}
    assert {place for place, _ in rig.native.objects.values()} == {"a:1", "d:1"}


def test_a_put_that_hangs_names_its_store_and_costs_the_deadline(rig):
    keys = [bytes([n]) * 32 for n in range(1, 33)]
    rig.native.hold("b:1")
    began = time.monotonic()
    put = rig.put(*keys, timeout_s=0.3)
    took_s = time.monotonic() - began

    bad = put.codes == Code.RPC_TIMEOUT
    assert bad.any()
    assert (put.codes[~bad] == 0).all()
    assert put.endpoints["b:1"] == Code.RPC_TIMEOUT
    assert {c for e, c in put.endpoints.items() if e != "b:1"} == {0}
    assert took_s < 0.3 + SLACK_S


def test_what_exists_already_is_said_to_and_not_written_again(rig):
    key = rig.place("a:1", 1)
    put = rig.put(key, b"\x09" * 32)

    assert put.codes.tolist() == [Code.OBJECT_ALREADY_EXISTS, 0]
    assert ("write", (key.hex(),)) not in rig.native.calls


def test_a_rank_writes_its_part_and_all_parts_are_read_as_one(mooncake):
    rig = mooncake(ranks=2)
    key = b"\x05" * 32
    for rank in (1, 0):
        half = np.full(32, rank + 1, np.uint8)
        rig.storage.put(key, [half.data], timeout_s=1, part=rank, parts=2)
    got, buffers, _ = rig.get(key)
    there = rig.storage.exists(key, timeout_s=1).tolist()
    rig.native.objects.pop(object_name(key, 1, 2))
    half_gone, _, _ = rig.get(key)

    assert got.codes.tolist() == [0]
    assert bytes(buffers[0]) == b"\x01" * 32 + b"\x02" * 32
    assert there == [0]
    assert half_gone.codes.tolist() == [Code.OBJECT_NOT_FOUND]
    assert rig.storage.exists(key, timeout_s=1).tolist() == [Code.OBJECT_NOT_FOUND]


def test_exists_tells_there_missing_and_failed_apart(rig):
    there, broken = rig.place("a:1", 1), rig.place("a:1", 3)
    rig.native.codes[broken.hex()] = Code.RPC_FAIL
    codes = rig.storage.exists(there + b"\x02" * 32 + broken, timeout_s=1)

    assert codes.tolist() == [0, Code.OBJECT_NOT_FOUND, Code.RPC_FAIL]


def test_whatever_a_native_call_raises_is_a_code(rig):
    key = rig.place("a:1", 1)
    rig.native.raises = RuntimeError("pybind")

    assert rig.storage.exists(key, timeout_s=1).tolist() == [Code.INTERNAL_ERROR]
    assert rig.get(key)[0].codes.tolist() == [Code.INTERNAL_ERROR]
    assert rig.put(b"\x07" * 32).codes.tolist() == [Code.INTERNAL_ERROR]


def test_an_object_larger_than_a_lane_is_refused_and_the_rest_is_read(mooncake):
    rig = mooncake(lane_bytes=64 + GUARD_BYTES)
    keys = [rig.place("a:1", 1), rig.place("a:1", 2, 65)]
    buffers = [bytearray(64), bytearray(65)]
    got = rig.storage.get(b"".join(keys), [memoryview(b) for b in buffers], timeout_s=1)

    assert got.codes.tolist() == [0, Code.BUFFER_OVERFLOW]


# --- canaries and probes ---


def test_a_canary_writes_reads_and_removes_an_object_of_its_own(rig):
    results = [rig.storage.canary(timeout_s=1, avoid=frozenset()) for _ in range(4)]

    assert [int(r.codes[0]) for r in results] == [0] * 4
    assert {r.asked for r in results} == {(e,) for e in rig.native.endpoints}
    assert rig.native.objects == {}
    assert rig.native.count("remove") == 4


def test_a_canary_with_nowhere_to_go_is_no_fault(rig):
    result = rig.storage.canary(timeout_s=1, avoid=frozenset(rig.native.endpoints))

    assert result.codes.tolist() == [Code.NO_AVAILABLE_HANDLE]


def test_a_canary_that_comes_back_changed_is_a_fault(rig):
    real = rig.native.read

    def corrupt(names, addresses, sizes):
        rig.native.objects = {
            name: (place, bytes(len(value)))
            for name, (place, value) in rig.native.objects.items()
        }
        return real(names, addresses, sizes)

    rig.native.read = corrupt
    result = rig.storage.canary(timeout_s=1, avoid=frozenset())

    assert result.codes.tolist() == [Code.CHECKSUM_MISMATCH]
    assert list(result.endpoints.values()) == [Code.CHECKSUM_MISMATCH]


def test_a_canary_that_is_gone_at_once_is_a_fault_and_no_miss(rig):
    rig.native.read = lambda *_: [int(Code.OBJECT_NOT_FOUND)]
    result = rig.storage.canary(timeout_s=1, avoid=frozenset())

    assert result.codes.tolist() == [Code.TRANSFER_FAIL]


def test_a_probe_of_a_hung_store_is_a_fault_in_time_and_of_a_good_one_is_not(rig):
    rig.native.hold("b:1")
    began = time.monotonic()

    assert rig.storage.probe("b:1", timeout_s=0.1) == Code.RPC_TIMEOUT
    assert time.monotonic() - began < 0.1 + SLACK_S
    assert rig.storage.probe("c:1", timeout_s=1.0) == 0
    assert rig.storage.probe("z:9", timeout_s=1.0) == Code.SEGMENT_NOT_FOUND


def test_without_an_admin_a_probe_reads_again_what_the_store_served_last(rig):
    rig.segments.silent = True
    key = rig.place("b:1", 2)
    assert rig.storage.probe("b:1", timeout_s=1) == Code.SEGMENT_NOT_FOUND
    rig.get(key)

    assert rig.storage.probe("b:1", timeout_s=1) == 0
    rig.native.codes[key.hex()] = Code.TRANSFER_FAIL
    assert rig.storage.probe("b:1", timeout_s=1) == Code.TRANSFER_FAIL
    rig.native.objects.clear()
    assert rig.storage.probe("b:1", timeout_s=1) == Code.SEGMENT_NOT_FOUND


def test_without_an_admin_mooncake_places_puts_and_nobody_is_blamed(rig):
    rig.segments.silent = True
    rig.native.codes["a:1"] = Code.TRANSFER_FAIL
    put = rig.put(b"\x01" * 32)

    assert put.codes.tolist() == [Code.TRANSFER_FAIL]
    assert put.endpoints == {}


# --- the client ---


@pytest.fixture
def storage_of():
    made = []

    def build(opener, **changes):
        made.append(MooncakeStorage(opener, MooncakeSettings(**changes)))
        return made[-1]

    yield build
    for storage in made:
        storage.close()


def test_before_the_master_is_there_every_answer_is_a_fault_at_once(storage_of, rig):
    tries = []

    def opener():
        tries.append(1)
        if len(tries) < 3:
            raise NotConnected(Code.RPC_FAIL)
        return rig.native

    storage = storage_of(opener, retry_s=0.05)
    key = rig.place("a:1", 1)
    first = storage.get(key, [memoryview(bytearray(64))], timeout_s=5)
    assert rig.until(lambda: storage.stats()["connected"])
    later = storage.get(key, [memoryview(bytearray(64))], timeout_s=5)

    assert first.codes.tolist() == [Code.RPC_FAIL]
    assert later.codes.tolist() == [0]
    assert storage.stats()["counts"]["connect_-900"] == 2


def test_whatever_opening_raises_it_is_tried_again(storage_of, rig, caplog):
    tries = []

    def opener():
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("broken wheel")
        return rig.native

    storage = storage_of(opener, retry_s=0.02)

    assert rig.until(lambda: storage.stats()["connected"])
    assert storage.stats()["counts"]["connect_-1"] == 2
    assert "broken wheel" in caplog.text


def test_a_client_that_is_gone_is_opened_anew_and_blames_no_store(storage_of, rig):
    """Native code that breaks down costs what was asked of it, and nothing after."""
    clients = [rig.native, type(rig.native)(*rig.native.endpoints)]
    opened = iter(clients)
    storage = storage_of(lambda: next(opened), retry_s=0.02)
    key = rig.place("a:1", 1)
    clients[1].objects = rig.native.objects
    assert rig.until(lambda: storage.stats()["connected"])
    rig.native.raises = Gone("the worker ended")
    during = storage.get(key, [memoryview(bytearray(64))], timeout_s=5)
    rig.native.gone.set()
    assert rig.until(lambda: storage.stats()["counts"].get("connect_-900"))
    assert rig.until(lambda: storage.stats()["connected"])
    later = storage.get(key, [memoryview(bytearray(64))], timeout_s=5)

    assert outcome_of(int(during.codes[0])) is Outcome.FAULT
    assert during.endpoints == {}
    assert rig.native.closed
    assert later.codes.tolist() == [0]


def test_a_read_that_its_client_did_not_survive_blames_no_store(rig):
    key = rig.place("a:1", 1)

    def broken(*_):
        raise Gone("the worker ended")

    rig.native.read = broken
    got, _, _ = rig.get(key)

    assert got.codes.tolist() == [Code.RPC_FAIL]
    assert got.endpoints == {}
    assert rig.storage.stats()["lanes"]["free"] == rig.storage.settings.lanes


def test_a_write_that_its_client_did_not_survive_is_a_fault_and_no_miss(rig):
    def broken(*_, **__):
        raise Gone("the worker ended")

    rig.native.write = broken
    there, new = rig.place("a:1", 1), bytes([9]) * 32
    put = rig.put(there, new)

    assert put.codes.tolist() == [Code.OBJECT_ALREADY_EXISTS, Code.RPC_FAIL]
    assert put.endpoints == {}


@pytest.mark.parametrize("how", ["canary", "witness"])
def test_a_canary_that_its_client_did_not_survive_blames_no_store(rig, how):
    def broken(*_, **__):
        raise Gone("the worker ended")

    rig.native.write = broken
    avoid = frozenset({"a:1"}) if how == "witness" else frozenset()
    result = rig.storage.canary(timeout_s=1, avoid=avoid)

    assert result.codes.tolist() == [Code.RPC_FAIL]
    assert (dict(result.endpoints), result.asked) == ({}, ())


def test_what_cannot_be_opened_is_told_once_and_tried_less_often(storage_of, caplog):
    tries = []

    def opener():
        tries.append(time.monotonic())
        raise RuntimeError("broken wheel")

    storage = storage_of(opener, retry_s=0.01)
    deadline = time.monotonic() + 20
    while len(tries) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    storage.close()

    assert tries[5] - tries[4] >= 0.01 * 2**5
    assert caplog.text.count("could not be opened") == 1


def test_a_client_whose_memory_is_refused_is_closed(storage_of, rig):
    def lost(_memory):
        raise Gone("the worker ended")

    rig.native.register = lost
    storage_of(lambda: rig.native, retry_s=0.02)

    assert rig.until(lambda: rig.native.closed)


def test_who_is_given_up_makes_way_in_the_client(rig):
    key = rig.place("b:1", 1)
    rig.native.hold("b:1")
    rig.get(key, timeout_s=0.1)

    assert len(rig.native.made_way) == 1


def test_a_client_that_opens_after_the_close_is_closed_at_once(storage_of, rig):
    opening, go_on = threading.Event(), threading.Event()

    def opener():
        opening.set()
        assert go_on.wait(10)
        return rig.native

    storage = storage_of(opener)
    assert opening.wait(5)
    closing = threading.Thread(target=storage.close)
    closing.start()
    assert rig.until(storage._closed.is_set)
    go_on.set()
    closing.join(5)

    assert rig.until(lambda: rig.native.closed)
    assert not storage.stats()["connected"]


def test_close_ends_the_threads_and_the_client(rig):
    key = rig.place("a:1", 1)
    rig.get(key)
    rig.storage.close()
    names = [t.name for t in threading.enumerate()]

    assert rig.native.closed
    assert rig.segments.closed
    assert not [n for n in names if n.startswith("mooncake")]
    assert rig.get(key)[0].codes.tolist() == [Code.RPC_FAIL]


def test_close_ends_a_client_in_which_somebody_still_waits(mooncake):
    rig = mooncake()
    key = rig.place("b:1", 2)
    rig.native.hold("b:1")
    results = []
    reader = threading.Thread(
        target=lambda: results.append(rig.get(key, timeout_s=20)[0])
    )
    reader.start()
    # Its lane, not the one before it in which it asks where the object is.
    assert rig.until(lambda: rig.storage._lanes._used["b:1"] == 1)
    rig.storage.close()
    reader.join(15)

    assert not reader.is_alive()
    assert results[0].codes.tolist() == [Code.RPC_FAIL]


def test_a_buffer_that_cannot_be_written_costs_no_lane(rig):
    keys = [rig.place(e, n) for n, e in enumerate(rig.native.endpoints, 1)]
    for _ in range(16):
        buffers = [memoryview(bytes(64)) for _ in keys]
        with pytest.raises(TypeError):
            rig.storage.get(b"".join(keys), buffers, timeout_s=2)

    assert rig.until(lambda: rig.storage.stats()["lanes"]["free"] == 16, 1.0)
    assert rig.get(*keys)[0].codes.tolist() == [0] * 4


def test_close_ends_a_client_with_hung_calls_and_does_not_wait(mooncake):
    rig = mooncake()
    key = rig.place("b:1", 2)
    rig.native.hold("b:1")
    rig.get(key, timeout_s=0.05)
    began = time.monotonic()
    rig.storage.close()
    names = [t.name for t in threading.enumerate()]

    assert time.monotonic() - began < 2.5
    assert rig.native.closed
    assert not [n for n in names if n.startswith("mooncake")]
