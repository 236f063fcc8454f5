"""The calls of stores and clients, through gRPC."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.proto import pool_pb2


def keys(count: int, first: int = 1) -> bytes:
    return b"".join((first + i).to_bytes(32, "little") for i in range(count))


def test_lookup_answers_in_request_order_with_duplicates_and_misses(master) -> None:
    master.put(keys(3))
    asked = keys(1, 3) + keys(1, 99) + keys(1, 1) + keys(1, 3)
    found = master.lookup(asked)
    places = np.frombuffer(found.offset, "<u8").reshape(4, found.replicas)

    assert master.codes(found) == [0, Code.OBJECT_NOT_FOUND, 0, 0]
    assert np.frombuffer(found.size, "<u4").tolist() == [4096, 0, 4096, 4096]
    assert np.frombuffer(found.checksum, "<u8").tolist() == [5, 0, 5, 5]
    assert (places[0] == places[3]).all()
    assert found.lease_ms == 10_000


def test_empty_batch_is_answered_empty(master) -> None:
    found = master.lookup(b"")
    started = master.put_start(b"", client=1)

    assert (found.status, found.segment, started.token) == (b"", b"", b"")


def test_table_too_large_to_check_in_passing_says_so(master, monkeypatch) -> None:
    monkeypatch.setattr("refimpl.master.pages.CHECKED_OBJECTS", 9)
    master.put(keys(9))
    at_the_limit = master.state()["conservation"]
    master.put(keys(1, 50))
    above = master.state()["conservation"]

    assert at_the_limit == []
    assert above is None
    assert json.loads(master.page("/conservation")) == []


def test_answer_describes_every_segment_it_names(master) -> None:
    master.put(keys(200))
    found = master.lookup(keys(200))
    named = set(np.frombuffer(found.segment, "<u8").tolist()) - {0}

    described = [s.id for s in found.segments]
    assert named <= set(described)
    assert len(described) == len(set(described))
    assert all(s.rails[0].address for s in found.segments)


def test_nothing_is_readable_before_its_end_and_revoke_gives_it_back(master) -> None:
    started = master.put_start(keys(2), client=1)
    before = master.codes(master.lookup(keys(2)))
    request = pool_pb2.PutEndRequest(keys=keys(2), token=started.token, client=1)
    revoked = master.codes(master.stub.PutRevoke(request, timeout=5))
    after = master.codes(master.lookup(keys(2)))

    assert before == [Code.REPLICA_IS_NOT_READY] * 2
    assert revoked == [0, 0]
    assert after == [Code.OBJECT_NOT_FOUND] * 2


def test_end_with_a_stale_token_has_no_effect_unless_the_defect_is_on(master) -> None:
    started = master.put_start(keys(1), client=1)
    stale = (int.from_bytes(started.token, "little") + 1000).to_bytes(8, "little")
    request = pool_pb2.PutEndRequest(
        keys=keys(1), token=stale, checksum=bytes(8), client=1
    )
    refused = master.codes(master.stub.PutEnd(request, timeout=5))
    unread = master.codes(master.lookup(keys(1)))
    master.failpoint("defect.stale_end_accepted", "on")
    accepted = master.codes(master.stub.PutEnd(request, timeout=5))

    assert refused != [0]
    assert unread == [Code.REPLICA_IS_NOT_READY]
    assert accepted == [0]
    assert master.codes(master.lookup(keys(1))) == [0]


def test_local_first_stays_on_the_writers_host_unless_the_defect_is_on(master) -> None:
    def homes(first: int) -> set[int]:
        started = master.put_start(keys(64, first), client=1, host_id="host-3")
        return set(np.frombuffer(started.segment, "<u8").tolist())

    local = homes(1)
    master.failpoint("defect.placement_random", "on")
    spread = homes(1000)

    assert local == {3}
    assert len(spread) == 4


def test_failpoints_answer_their_code_for_every_key(master) -> None:
    master.put(keys(2))
    for name in ("lookup", "put_start", "put_end"):
        master.failpoint(f"master.{name}", "return(-900)")
    looked = master.lookup(keys(2))
    started = master.put_start(keys(2, 50), client=1)
    ended = master.put(keys(2, 60))
    master.page("/failpoints", "DELETE")

    assert master.codes(looked) == [Code.RPC_FAIL] * 2
    assert len(looked.segment) == 2 * 8 * looked.replicas
    assert master.codes(started) == [Code.RPC_FAIL] * 2
    assert ended == [Code.RPC_FAIL] * 2
    assert master.codes(master.lookup(keys(2))) == [0, 0]


def test_a_probe_that_a_failpoint_answers_is_counted_as_a_probe(master) -> None:
    master.failpoint("master.lookup", "return(-900)")
    before = master.metric("master_batch_exist_key_failures_total")
    master.lookup(keys(1), no_lease=True)
    master.page("/failpoints", "DELETE")

    assert master.metric("master_batch_exist_key_failures_total") == before + 1


def test_panic_is_internal_and_the_next_call_is_served(master) -> None:
    master.failpoint("master.lookup", "1*panic")
    with pytest.raises(grpc.RpcError) as caught:
        master.lookup(keys(1))

    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert master.codes(master.lookup(keys(1))) == [Code.OBJECT_NOT_FOUND]


def test_probe_without_a_lease_lets_the_object_be_removed(master) -> None:
    master.put(keys(2))
    probe = master.lookup(keys(1), no_lease=True)
    master.lookup(keys(1, 2))
    request = pool_pb2.RemoveRequest(keys=keys(2))
    removed = master.codes(master.stub.Remove(request, timeout=5))

    assert master.codes(probe) == [0]
    assert probe.lease_ms == 0
    assert removed == [0, Code.OBJECT_HAS_LEASE]


def test_remove_all_leaves_only_what_readers_hold(master) -> None:
    master.put(keys(3))
    master.lookup(keys(1))
    master.stub.Remove(pool_pb2.RemoveRequest(all=True), timeout=5)
    found = master.codes(master.lookup(keys(3), no_lease=True))

    assert found == [0, Code.OBJECT_NOT_FOUND, Code.OBJECT_NOT_FOUND]


def test_unmounted_store_is_never_named_again_and_twice_is_fine(master) -> None:
    master.put(keys(100))
    request = pool_pb2.UnmountRequest(id=2, client=2)
    codes = [master.stub.UnmountSegment(request, timeout=5).code for _ in range(2)]
    found = master.lookup(keys(100))

    assert codes == [0, 0]
    assert 2 not in np.frombuffer(found.segment, "<u8").tolist()
    assert 2 not in [s.id for s in found.segments]


def test_graceful_unmount_is_readable_until_its_grace_ends(master, eventually) -> None:
    master.put(keys(8), host_id="host-2")
    request = pool_pb2.UnmountRequest(id=2, client=2, grace_s=0.4)
    master.stub.UnmountSegment(request, timeout=5)
    during = master.codes(master.lookup(keys(8), no_lease=True))
    listed = master.stub.ListSegments(pool_pb2.ListSegmentsRequest(), timeout=5)
    started = master.put_start(keys(8, 50), client=1, host_id="host-2")

    assert during == [0] * 8
    assert {s.id: s.status for s in listed.segments}[2] == "GRACEFULLY_UNMOUNTING"
    assert 2 not in np.frombuffer(started.segment, "<u8").tolist()
    eventually(lambda: "store-2\n" not in master.page("/get_all_segments"))
    assert 0 not in master.codes(master.lookup(keys(8), no_lease=True))


def test_names_are_listed_as_long_as_their_objects_are_there(master) -> None:
    master.put(keys(3), names=["a", "b/c", "line\nend"])
    master.put(keys(1, 9))

    listed = master.stub.ListNames(pool_pb2.ListNamesRequest(), timeout=5)
    assert list(listed.names) == ["a", "b/c", "line\nend"]
    assert listed.cursor == 0
    assert master.page("/get_all_keys") == "a\nb/c\nline\\nend\n"

    master.stub.Remove(pool_pb2.RemoveRequest(keys=keys(1)), timeout=5)
    assert master.page("/get_all_keys") == "b/c\nline\\nend\n"


def test_names_are_one_a_key_or_none(master) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        master.put_start(keys(2), client=1, names=["a"])

    assert "1 names for 2 keys" in caught.value.details()


def test_preferred_segments_come_first(master) -> None:
    started = master.put_start(keys(8), client=1, prefer=[3])

    assert set(np.frombuffer(started.segment, "<u8").tolist()) == {3}


def test_a_newcomer_is_told_where_heartbeats_go(master) -> None:
    about = master.stub.Describe(pool_pb2.DescribeRequest(), timeout=5)

    assert about.heartbeat == master.heartbeat
    assert (about.time_scale, about.lease_ms) == (1.0, 10_000)
    assert about.view == master.state()["view"]


def test_a_segment_is_queried_by_name(master) -> None:
    master.put(keys(8), prefer=[2])

    assert master.page("/query_segment?segment=store-2").splitlines() == [
        "store-2",
        f"Used(bytes): {8 * 4096}",
        f"Capacity(bytes) : {1 << 30}",
    ]
    with pytest.raises(AssertionError, match="no segment of this name"):
        master.page("/query_segment?segment=store-77")


def test_remove_all_tells_how_many_and_takes_leased_ones_by_force(master) -> None:
    master.put(keys(4))
    master.lookup(keys(1))
    gentle = master.stub.Remove(pool_pb2.RemoveRequest(all=True), timeout=5)
    forced = master.stub.Remove(pool_pb2.RemoveRequest(all=True, force=True), timeout=5)

    assert (gentle.removed, forced.removed) == (3, 1)


def test_pages_tell_metrics_state_and_conservation(master) -> None:
    master.put(keys(10))
    master.lookup(keys(10) + keys(5, 100))
    state = master.state()

    assert state["conservation"] == []
    assert state["gauges"]["master_key_count"] == 10
    assert master.page("/get_all_segments").split() == [
        f"store-{n}" for n in range(1, 5)
    ]
    assert master.page("/role") == "leader"
    assert master.metric("master_batch_get_replica_list_items_total") == 15
    assert master.metric("master_batch_get_replica_list_failed_items_total") == 5
    assert master.metric("master_batch_get_replica_list_partial_successes_total") == 1
    assert master.metric("master_mount_segment_requests_total") == 4
    sizes = [
        master.metric(f'segment_total_capacity_bytes{{segment="store-{n}"}}')
        for n in range(1, 5)
    ]
    assert master.metric("master_total_capacity_bytes") == sum(sizes)
    assert master.metric("master_allocated_bytes") == 10 * 4096


def test_objects_are_evicted_at_the_watermark_and_counted(master, eventually) -> None:
    for number in range(1, 5):
        request = pool_pb2.UnmountRequest(id=number, client=number)
        master.stub.UnmountSegment(request, timeout=5)
    assert master.mount(9, size=1 << 20) == 0
    statuses = []
    for turn in range(20):
        statuses += master.put(keys(16, 1 + 16 * turn))
        eventually(lambda: master.metric("master_allocated_bytes") <= 0.95 * (1 << 20))

    assert set(statuses) == {0}
    assert master.metric("master_evicted_key_count") > 0
    assert master.metric("master_successful_evictions_total") > 0
    assert master.state()["conservation"] == []


def test_client_that_left_in_order_is_known_no_more_at_once(master) -> None:
    master.mount(50)
    with master.beats() as beats:
        before = beats.beat(50)
        leave = pool_pb2.UnmountRequest(id=50, client=50)
        master.stub.UnmountSegment(leave, timeout=5)
        after = beats.beat(50)

    assert (before, after) == (0, 1)
