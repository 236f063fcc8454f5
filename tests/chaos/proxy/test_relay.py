"""What toxics do to real connections, on ours and on the real one where both can."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from chaos.proxy.client import ToxicInfo


def timed(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def add(rig, info, kind, **options):
    return rig.client.add_toxic(info.name, kind, **options)


def echo_once(rig, near, far, data=b"x"):
    near.sendall(data)
    assert rig.receive(far, len(data)) == data
    far.sendall(data)
    assert rig.receive(near, len(data)) == data


def test_bytes_pass_unchanged_both_ways(rig):
    near, far = rig.connect(rig.proxy())
    data = bytes(range(256)) * 4096

    for source, dest in ((near, far), (far, near)):
        received = bytearray()
        view = memoryview(data)
        while view:
            sent = source.send(view[:65_536])
            received += rig.receive(dest, sent)
            view = view[sent:]
        assert received == data


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_latency_delays_live_connections_in_its_direction_only(rig, stream):
    info = rig.proxy()
    near, far = rig.connect(info)
    echo_once(rig, near, far)
    add(rig, info, "latency", stream=stream, attributes={"latency": 200})
    slow, fast = ((near, far), (far, near))
    if stream == "downstream":
        slow, fast = fast, slow

    def pass_on(source, dest):
        source.sendall(b"x")
        rig.receive(dest, 1)

    assert timed(lambda: pass_on(*slow)) >= 0.199
    assert timed(lambda: pass_on(*fast)) < 0.19


def test_jitter_stays_within_its_bounds(rig):
    info = rig.proxy()
    add(rig, info, "latency", attributes={"latency": 20, "jitter": 10})
    near, far = rig.connect(info)

    def pass_on():
        far.sendall(b"x")
        rig.receive(near, 1)

    took = [timed(pass_on) for _ in range(8)]

    assert min(took) >= 0.0099
    assert len({round(each, 3) for each in took}) > 1


def test_bandwidth_limits_the_rate(rig):
    info = rig.proxy()
    add(rig, info, "bandwidth", attributes={"rate": 1000})
    near, far = rig.connect(info)
    far.sendall(b"x" * 200_000)

    took = timed(lambda: rig.receive(near, 200_000))

    assert 0.15 <= took < 2.0


def test_slow_close_delays_the_end(rig):
    info = rig.proxy()
    add(rig, info, "slow_close", attributes={"delay": 120})
    near, far = rig.connect(info)
    far.close()

    took = timed(lambda: rig.ended(near))

    assert 0.1 <= took < 1.0


def test_timeout_zero_is_a_black_hole_for_live_and_new_connections(rig):
    info = rig.proxy()
    near, far = rig.connect(info)
    echo_once(rig, near, far)
    for stream in ("upstream", "downstream"):
        add(rig, info, "timeout", stream=stream)
    later = rig.connect(info)

    for client, server in ((near, far), later):
        client.sendall(b"x")
        server.sendall(b"x")
        assert rig.silent(server)
        assert rig.silent(client)


def test_removing_a_black_hole_closes_connections_that_lost_bytes(rig):
    info = rig.proxy()
    near, far = rig.connect(info)
    add(rig, info, "timeout")
    far.sendall(b"lost")
    assert rig.silent(near)

    took = timed(lambda: rig.client.remove_toxic(info.name, "timeout_downstream"))

    assert took < 1.0
    assert rig.ended(near) in ("closed", "reset")
    echo_once(rig, *rig.connect(info))


def test_timeout_closes_after_its_time(rig):
    info = rig.proxy()
    add(rig, info, "timeout", attributes={"timeout": 100})
    near, far = rig.connect(info)
    far.sendall(b"x")

    took = timed(lambda: rig.ended(near))

    assert 0.05 <= took < 1.0


def test_reset_peer_sends_a_real_rst_on_new_connections(rig):
    info = rig.proxy()
    add(rig, info, "reset_peer", stream="upstream")

    assert reset_when_used(rig, info)


def reset_when_used(rig, info) -> bool:
    """Whether a new connection is reset, be it in connect already or at the data."""
    try:
        near = rig.dial(info)
        near.sendall(b"x")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return rig.ended(near) == "reset"


def test_slicer_cuts_and_keeps_the_order(rig):
    info = rig.proxy()
    attributes = {"average_size": 100, "size_variation": 50, "delay": 2000}
    add(rig, info, "slicer", attributes=attributes)
    near, far = rig.connect(info)
    data = bytes(range(250)) * 4
    far.sendall(data)
    pieces = []

    while sum(map(len, pieces)) < len(data):
        pieces.append(near.recv(65_536))

    assert b"".join(pieces) == data
    assert len(pieces) > 1


def test_limit_data_closes_after_its_bytes(rig):
    info = rig.proxy()
    add(rig, info, "limit_data", attributes={"bytes": 100})
    near, far = rig.connect(info)
    far.sendall(b"x" * 150)

    assert rig.receive(near, 150) == b"x" * 100
    assert rig.ended(near) in ("closed", "reset")


def test_a_disabled_proxy_refuses_and_closes_live_connections(rig):
    info = rig.proxy()
    near, far = rig.connect(info)
    echo_once(rig, near, far)

    rig.client.set_enabled(info.name, False)

    assert rig.ended(near) in ("closed", "reset")
    assert rig.ended(far) in ("closed", "reset")
    with pytest.raises(ConnectionRefusedError):
        rig.dial(info)
    rig.client.set_enabled(info.name, True)
    echo_once(rig, *rig.connect(info))


def test_toxicity_zero_strikes_nobody(rig):
    info = rig.proxy()
    add(rig, info, "timeout", toxicity=0.0)

    for _ in range(5):
        echo_once(rig, *rig.connect(info))


def test_a_dead_upstream_closes_the_client(rig, dead_address):
    info = rig.client.create("dead", "127.0.0.1:0", dead_address)
    near = rig.dial(info)

    assert rig.ended(near) in ("closed", "reset")
    rig.client.delete("dead")


def test_deleting_a_proxy_closes_its_connections(rig):
    info = rig.proxy()
    near, far = rig.connect(info)

    rig.client.delete(info.name)

    assert rig.ended(near) in ("closed", "reset")
    assert rig.ended(far) in ("closed", "reset")


# K3, K4 and what only ours can do.


def test_coverage_is_300_of_300_before_during_and_after_arming(ours):
    info = ours.proxy()
    before = [ours.connect(info) for _ in range(100)]
    during = [ours.dial(info) for _ in range(50)]
    add(ours, info, "timeout", stream="upstream")
    during += [ours.dial(info) for _ in range(50)]
    after = [ours.dial(info) for _ in range(100)]
    for _ in range(200):
        ours.accept()
    ends = [near for near, _ in before] + during + after

    live = ours.eventually(
        lambda: (
            [
                one
                for one in ours.client.connections(info.name)
                if one["toxics"]["timeout_upstream"]["applied"]
            ]
            if len(ours.client.connections(info.name)) == 300
            else None
        )
    )
    for near in ends:
        near.sendall(b"x")

    def struck():
        return ours.client.counters(info.name)["timeout_upstream"]["bytes"] == 300

    assert {one["index"] for one in live} == set(range(300))
    assert ours.eventually(struck)
    assert ours.client.counters(info.name)["timeout_upstream"]["connections"] == 300
    assert all(ours.silent(far, 0.001) for _, far in before)


def test_connections_name_the_exact_misses(ours):
    info = ours.proxy(ToxicInfo(type="latency", toxicity=0.5))
    ends = [ours.connect(info) for _ in range(40)]

    live = ours.client.connections(info.name)

    applied = [one["toxics"]["latency_downstream"]["applied"] for one in live]
    assert applied == [one["draw"] < 0.5 for one in live]
    assert 5 < sum(applied) < 35
    assert len(ends) == 40


def test_arming_and_healing_one_proxy_leaves_another_alone(ours):
    sick, well = ours.proxy(), ours.proxy()
    ours.connect(sick)
    near, far = ours.connect(well)

    for _ in range(20):
        add(ours, sick, "timeout")
        echo_once(ours, near, far)
        ours.client.remove_toxic(sick.name, "timeout_downstream")
        echo_once(ours, near, far)

    assert ours.client.counters(well.name) == {}


def test_a_toxic_added_in_the_middle_of_a_bulk_stream_strikes_it(ours):
    info = ours.proxy()
    near, far = ours.connect(info)
    far.setblocking(False)
    sent = 0
    for _ in range(100):
        try:
            sent += far.send(bytes(1 << 20))
        except BlockingIOError:
            break

    add(ours, info, "corrupt", attributes={"every_bytes": 4096})
    assert len(ours.receive(near, sent)) == sent
    far.sendall(bytes(65_536))

    assert any(ours.receive(near, 65_536))
    assert ours.client.counters(info.name)["corrupt_downstream"]["bytes"] >= 65_536


@pytest.mark.parametrize("kind", ["timeout", "stall_after", "latency", "bandwidth"])
def test_removal_returns_at_once_with_100_blocked_connections(ours, kind):
    attributes = {"latency": {"latency": 60_000}}.get(kind, {})
    info = ours.proxy(ToxicInfo(type=kind, attributes=attributes))
    ends = [ours.connect(info) for _ in range(100)]
    for _, far in ends:
        far.setblocking(False)
        for _ in range(4):
            try:
                far.send(b"x" * 65_536)
            except BlockingIOError:
                break

    took = timed(lambda: ours.client.remove_toxic(info.name, f"{kind}_downstream"))

    assert took < 1.0
    assert ours.client.toxics(info.name) == {}


@pytest.mark.parametrize("kind", ["latency", "stall_after", "bandwidth", "slow_close"])
def test_removing_what_only_held_data_loses_no_byte(ours, kind):
    attributes = {"latency": {"latency": 60_000}}.get(kind, {})
    info = ours.proxy(ToxicInfo(type=kind, attributes=attributes))
    near, far = ours.connect(info)
    data = bytes(range(256)) * 200
    far.sendall(data)
    far.shutdown(socket.SHUT_WR)
    if kind != "slow_close":
        assert ours.silent(near)

    ours.client.remove_toxic(info.name, f"{kind}_downstream")

    assert ours.receive(near, len(data)) == data
    assert ours.ended(near) == "closed"


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_reset_peer_resets_live_connections_at_both_ends(ours, stream):
    info = ours.proxy()
    near, far = ours.connect(info)
    echo_once(ours, near, far)

    add(ours, info, "reset_peer", stream=stream)

    assert ours.ended(near) == "reset"
    assert ours.ended(far) == "reset"


def test_a_half_close_passes_and_the_answer_still_comes(ours):
    near, far = ours.connect(ours.proxy())
    near.sendall(b"question")
    near.shutdown(socket.SHUT_WR)

    assert ours.receive(far, 100) == b"question"
    far.sendall(b"answer")
    far.close()
    assert ours.receive(near, 100) == b"answer"


def test_a_reset_of_one_side_is_a_reset_of_the_other(ours):
    info = ours.proxy()
    near, far = ours.connect(info)
    echo_once(ours, near, far)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    far.close()

    assert ours.ended(near) == "reset"


def test_a_toxic_heals_after_its_time_to_live(ours):
    info = ours.proxy()
    add(ours, info, "stall_after", ttl_ms=500)
    near, far = ours.connect(info)
    far.sendall(b"held")
    assert ours.silent(near, 0.05)

    assert ours.receive(near, 4) == b"held"
    assert ours.client.toxics(info.name) == {}


def test_an_update_renews_the_time_to_live(ours):
    info = ours.proxy()
    add(ours, info, "latency", ttl_ms=300)
    path = f"/proxies/{info.name}/toxics/latency_downstream"

    ours.call("PATCH", path, {"ttl_ms": 60_000})
    time.sleep(0.35)

    assert ours.call("GET", path)[0] == 200


def test_stall_after_passes_its_bytes_then_falls_silent(ours):
    info = ours.proxy(ToxicInfo(type="stall_after", attributes={"bytes": 10}))
    near, far = ours.connect(info)
    far.sendall(b"x" * 25)

    assert ours.receive(near, 10) == b"x" * 10
    assert ours.silent(near)


def test_corrupt_flips_one_bit_in_every_window(ours):
    attributes = {"every_bytes": 1000, "skip_bytes": 500}
    info = ours.proxy(ToxicInfo(type="corrupt", attributes=attributes))
    near, far = ours.connect(info)
    data = bytes(10_500)
    far.sendall(data)

    received = ours.receive(near, len(data))

    wrong = [place for place, byte in enumerate(received) if byte]
    assert [(place - 500) // 1000 for place in wrong] == list(range(10))
    assert all(received[place].bit_count() == 1 for place in wrong)
    assert ours.client.counters(info.name)["corrupt_downstream"]["chunks"] > 0


def test_drop_first_n_resets_the_first_and_serves_the_rest(ours):
    info = ours.proxy(ToxicInfo(type="drop_first_n", attributes={"connections": 2}))

    assert [reset_when_used(ours, info) for _ in range(2)] == [True, True]
    echo_once(ours, *ours.connect(info))
    assert ours.client.counters(info.name)["drop_first_n_downstream"] == {
        "bytes": 0,
        "chunks": 2,
        "connections": 2,
    }


def test_counters_tell_what_was_struck_and_outlive_the_toxic(ours):
    info = ours.proxy()
    near, far = ours.connect(info)
    add(ours, info, "latency", attributes={"latency": 1})
    far.sendall(b"x" * 100)
    ours.receive(near, 100)
    add(ours, info, "timeout", stream="upstream")
    near.sendall(b"y" * 30)

    def dropped():
        return ours.client.counters(info.name)["timeout_upstream"]["bytes"] == 30

    ours.eventually(dropped)
    ours.client.remove_toxic(info.name, "latency_downstream")

    counters = ours.client.counters(info.name)
    assert counters["latency_downstream"] == {
        "bytes": 100,
        "chunks": 1,
        "connections": 1,
    }


def test_disabling_counts_the_connections_it_cut(ours):
    info = ours.proxy()
    ends = [ours.connect(info) for _ in range(3)]

    ours.client.set_enabled(info.name, False)

    assert ours.client.counters(info.name)["down"]["connections"] == len(ends)


def test_toxics_work_in_the_order_they_were_added(ours):
    info = ours.proxy(
        ToxicInfo(type="limit_data", attributes={"bytes": 5}),
        ToxicInfo(type="latency", attributes={"latency": 60}),
    )
    near, far = ours.connect(info)
    far.sendall(b"0123456789")

    took = timed(lambda: ours.receive(near, 10))

    assert 0.05 <= took < 1.0


def test_data_in_flight_stays_in_order_through_arming_and_healing(ours):
    info = ours.proxy()
    near, far = ours.connect(info)
    far.setblocking(False)
    sent = bytearray()
    received = bytearray()
    for round_ in range(40):
        piece = bytes([round_]) * 50_000
        try:
            sent += piece[: far.send(piece)]
        except BlockingIOError:
            received += near.recv(1 << 20)
        if round_ % 4 == 0:
            add(ours, info, "latency", attributes={"latency": 2, "jitter": 2})
        if round_ % 4 == 2:
            ours.client.remove_toxic(info.name, "latency_downstream")

    received += ours.receive(near, len(sent) - len(received))

    assert received == sent


def test_a_toxicity_change_strikes_and_heals_live_connections(ours):
    info = ours.proxy(ToxicInfo(type="timeout", toxicity=0.0))
    near, far = ours.connect(info)
    path = f"/proxies/{info.name}/toxics/timeout_downstream"
    echo_once(ours, near, far)

    ours.call("PATCH", path, {"toxicity": 1.0})
    far.sendall(b"x")
    assert ours.silent(near)
    ours.call("PATCH", path, {"toxicity": 0.0})

    assert ours.ended(near) in ("closed", "reset")


def test_a_latency_change_applies_to_data_that_waits(ours):
    info = ours.proxy(ToxicInfo(type="latency", attributes={"latency": 60_000}))
    near, far = ours.connect(info)
    far.sendall(b"x")
    assert ours.silent(near, 0.05)
    path = f"/proxies/{info.name}/toxics/latency_downstream"

    ours.call("PATCH", path, {"attributes": {"latency": 1}})

    assert ours.receive(near, 1) == b"x"


@pytest.mark.parametrize("toxics", [(), (ToxicInfo(type="latency"),)])
def test_a_full_receiver_pushes_back_on_the_sender(ours, toxics):
    near, far = ours.connect(ours.proxy(*toxics))
    far.settimeout(0.3)
    sent = 0
    full = False
    while not full and sent < 256 << 20:
        try:
            sent += far.send(bytes(1 << 20))
        except TimeoutError:
            full = True

    assert full
    assert sent < 64 << 20
    assert len(ours.receive(near, sent)) == sent


def test_descriptors_are_back_at_the_baseline_after_connections_end(ours):
    info = ours.proxy()
    baseline = descriptors(ours)
    ends = [ours.connect(info) for _ in range(60)]
    for near, far in ends:
        near.settimeout(0.5)
        far.sendall(b"x" * 1000)
    during = descriptors(ours)

    for near, far in ends:
        near.close()
        far.close()

    assert during >= baseline + 100
    assert ours.eventually(lambda: descriptors(ours) <= baseline)


def descriptors(rig) -> int:
    return len(list(Path(f"/proc/{rig.server.pid}/fd").iterdir()))
