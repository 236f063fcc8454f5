"""Faults made of toxics: what they place where, what counts as effect, how they go."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from chaos.errors import FaultNotInjected, UsageError
from chaos.faults import (
    bandwidth,
    blackhole,
    latency,
    links_of,
    nic_down,
    partition,
    reset,
    tap,
)
from chaos.faults.touch import Touch, touch


def test_nic_down_silences_both_ways_of_one_rail_only(cluster, control) -> None:
    nic_down(cluster, control, "store-1", "rail1").inject()

    assert control.kinds() == {
        ("proxy-store-1.rail1", "timeout", "upstream"),
        ("proxy-store-1.rail1", "timeout", "downstream"),
    }
    toxics = control.toxics("proxy-store-1.rail1").values()
    assert all(toxic["attributes"] == {"timeout": 0} for toxic in toxics)


def test_a_tap_cuts_nothing_and_counts_both_ways(cluster, control) -> None:
    fault = tap(cluster, control, "store-0.rail0")
    fault.inject()

    name = "proxy-store-0.rail0"
    assert control.kinds() == {
        (name, "slicer", "upstream"),
        (name, "slicer", "downstream"),
    }
    for toxic in control.toxics(name).values():
        assert toxic["attributes"]["average_size"] == 64 << 20
        assert toxic["attributes"]["delay"] == 0
    fault.revert()
    assert fault.verify_reverted() == ""


def test_a_partition_cuts_every_link_of_a_role(cluster, control) -> None:
    fault = partition(cluster, control, "store-0")

    assert {link.name for link in fault.links} == {
        "store-0.rail0",
        "store-0.rail1",
        "master.rpc@store-0",
        "master.heartbeat@store-0",
    }


def test_a_partition_from_one_role_leaves_the_others_connected(
    cluster, control
) -> None:
    fault = partition(cluster, control, "master", from_="store-0")

    assert {link.name for link in fault.links} == {
        "master.rpc@store-0",
        "master.heartbeat@store-0",
    }


def test_a_partition_of_one_plane_leaves_the_other_planes(cluster, control) -> None:
    fault = partition(cluster, control, "master", plane="heartbeat")

    assert [link.name for link in fault.links] == ["master.heartbeat@store-0"]


def test_a_partition_that_matches_no_link_is_refused(cluster, control) -> None:
    with pytest.raises(UsageError, match="no link"):
        partition(cluster, control, "store-0", from_="engine-0")


def test_latency_delays_the_way_back(cluster, control) -> None:
    latency(cluster, control, "store-0.rail0", 40, 10).inject()

    (toxic,) = control.toxics("proxy-store-0.rail0").values()
    assert (toxic["type"], toxic["stream"]) == ("latency", "downstream")
    assert toxic["attributes"] == {"latency": 40, "jitter": 10}


def test_bandwidth_and_reset_act_both_ways(cluster, control) -> None:
    bandwidth(cluster, control, "store-0.rail0", 64).inject()
    reset(cluster, control, "store-0.rail1").inject()

    assert control.kinds() == {
        (f"proxy-store-0.rail{rail}", kind, stream)
        for rail, kind in ((0, "bandwidth"), (1, "reset_peer"))
        for stream in ("upstream", "downstream")
    }


def test_links_are_named_by_themselves_or_by_a_role(cluster) -> None:
    data = links_of(cluster, "store-0")
    mixed = links_of(cluster, ["master.rpc@store-0", data[0], "store-0.rail0"])

    assert [link.name for link in data] == ["store-0.rail0", "store-0.rail1"]
    assert [link.name for link in mixed] == ["master.rpc@store-0", "store-0.rail0"]
    assert len(links_of(cluster, "master")) == 3


def test_a_name_that_nothing_has_is_refused(cluster, control) -> None:
    with pytest.raises(UsageError, match="store-7"):
        blackhole(cluster, control, "store-7")


def test_without_traffic_there_is_no_effect(cluster, control) -> None:
    fault = blackhole(cluster, control, "store-0")
    fault.inject()

    assert fault.probe().effect == 0


def test_swallowed_bytes_are_the_effect_of_silence(cluster, control) -> None:
    fault = blackhole(cluster, control, "store-0")
    fault.inject()
    control.count_everything(bytes=100, chunks=2, connections=1)

    evidence = fault.probe()

    assert evidence.effect == 400
    assert "4 connections on 2 links" in evidence.detail


def test_reset_counts_connections_not_bytes(cluster, control) -> None:
    fault = reset(cluster, control, "store-0.rail0")
    fault.inject()
    control.count_everything(bytes=0, chunks=0, connections=3)

    assert fault.probe().effect == 6


def test_counters_of_another_fault_are_not_ours(cluster, control) -> None:
    first = blackhole(cluster, control, "store-0.rail0")
    first.inject()
    control.count_everything(bytes=100, chunks=1, connections=1)
    second = blackhole(cluster, control, "store-0.rail0")
    second.inject()

    assert second.probe().effect == 0


def test_two_faults_on_one_link_are_undone_apart(cluster, control) -> None:
    slow = latency(cluster, control, "store-0.rail0", 10)
    silent = blackhole(cluster, control, "store-0.rail0")
    slow.inject()
    silent.inject()

    slow.revert()

    assert slow.verify_reverted() == ""
    assert {kind for _, kind, _ in control.kinds()} == {"timeout"}


def test_toxics_go_newest_first_and_once(cluster, control) -> None:
    fault = nic_down(cluster, control, "store-0")
    fault.inject()
    added = [entry[1:] for entry in control.log]
    fault.revert()
    fault.revert()

    removed = [entry[1:] for entry in control.log[len(added) :]]
    assert removed == added[::-1]


def test_a_toxic_that_stays_is_named(cluster, control) -> None:
    fault = nic_down(cluster, control, "store-0")
    control.sticky = True
    fault.inject()
    fault.revert()

    assert "on store-0.rail0" in fault.verify_reverted()


def test_an_injection_that_is_refused_half_way_can_be_undone(cluster, control) -> None:
    control.refuse_after = 1
    fault = nic_down(cluster, control, "store-0")

    with pytest.raises(FaultNotInjected):
        fault.inject()
    fault.revert()

    assert fault.verify_reverted() == ""
    assert control.kinds() == set()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answering(server: socket.socket, act) -> threading.Thread:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            act(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_touch_tells_silence_from_an_answer(listener) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert touch(address, timeout_s=0.05).outcome == "silent"

    listener.accept()[0].close()
    thread = answering(listener, lambda connection: connection.recv(1024))
    assert touch(address, timeout_s=5).outcome == "answered"
    thread.join()


def test_a_touch_tells_a_reset_and_a_refusal(listener) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    def reset_it(connection: socket.socket) -> None:
        linger = b"\x01\0\0\0\0\0\0\0"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    thread = answering(listener, reset_it)
    assert touch(address, timeout_s=5).outcome == "reset"
    thread.join()

    listener.close()
    assert touch(address, timeout_s=5).outcome == "refused"


def test_a_proxy_without_counters_is_probed_by_a_bare_connection(
    cluster, control, listener
) -> None:
    control.counted = None
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    link = replace(cluster.links[0], listen=address)

    assert blackhole(cluster, control, link).probe().effect == 1
    assert latency(cluster, control, link, 10_000).probe().effect == 1


def test_a_delay_shows_by_the_time_of_the_answer(cluster, control, listener) -> None:
    fault = latency(cluster, control, cluster.links[0], 100, 20)

    assert fault.touched(Touch(outcome="answered", elapsed_s=0.08))
    assert not fault.touched(Touch(outcome="answered", elapsed_s=0.07))


def test_a_rate_shows_by_how_late_nonsense_of_its_size_is_answered(
    cluster, control
) -> None:
    slow = bandwidth(cluster, control, cluster.links[0], 50)
    fast = bandwidth(cluster, control, cluster.links[0], 100_000)

    assert slow.words(cluster.links[0]) == bytes(5000)
    assert slow.touched(Touch(outcome="reset", elapsed_s=0.1))
    assert not slow.touched(Touch(outcome="reset", elapsed_s=0.01))
    assert not slow.touched(Touch(outcome="silent", elapsed_s=0.5))
    assert not fast.touched(Touch(outcome="reset", elapsed_s=0.3))


def test_a_fault_tells_how_it_was_undone(cluster, control) -> None:
    fault = nic_down(cluster, control, "store-0")
    control.how = "removed by restarting the proxy server"
    fault.inject()

    fault.revert()

    assert fault.undone == "removed by restarting the proxy server"


def test_a_link_is_greeted_as_its_owner_answers(cluster, control, listener) -> None:
    heard: list[bytes] = []
    control.counted = None
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    link = replace(cluster.links[0], listen=address, greeting=b"hello")
    thread = answering(listener, lambda peer: heard.append(peer.recv(1024)))

    assert blackhole(cluster, control, link).probe().effect == 0
    thread.join()
    assert heard == [b"hello"]
