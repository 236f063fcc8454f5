"""Network faults in real namespaces: they bite, are counted, and leave nothing."""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from chaos.errors import NotHere
from chaos.faults import on_hosts
from chaos.hosts.facts import why_not
from chaos.safety.identity import wait_until
from chaos.safety.management import Refused


def links(pair, rail="rail0"):
    return [link for link in pair.links if link.rail == rail]


def undo(pair, fault, before):
    fault.revert()

    assert fault.verify_reverted() == ""
    assert pair.settle(before) == []
    assert pair.read().end == "ok"


def test_a_healthy_pair_talks_and_is_its_own_baseline(pair) -> None:
    before = pair.states()

    assert pair.read().end == "ok"
    assert pair.settle(before) == []
    assert pair.children() == []


_AT = ("lladdr", "02:00:00:00:00:09")


def test_nic_down_silences_a_rail_and_gives_back_addresses_and_routes(pair) -> None:
    agent = pair.of("store-0").agent
    neighbours = ["ip", "neigh", "show", "dev", "rail0", "nud", "permanent"]
    agent.run(["ip", "neigh", "add", "10.77.2.9", *_AT, *neighbours[3:]])
    written = agent.run(neighbours).stdout
    before = pair.states()
    fault = on_hosts.nic_down(pair, "store-0", "rail0")
    fault.inject()

    assert "10.77.2.9" in written
    assert agent.run(neighbours).stdout == ""
    assert pair.read().end != "ok"
    assert pair.read(plane="rail1").end == "ok"
    assert "10.99.0.0" not in pair.state("a")["routes"]
    assert "table 101" not in pair.state("a")["routes"]
    assert fault.probe().effect == 1
    undo(pair, fault, before)
    assert fault.probe().effect == 0
    assert agent.run(neighbours).stdout == written


def test_a_flapping_rail_changes_its_carrier_again_and_again(pair) -> None:
    before = pair.states()
    fault = on_hosts.flap(pair, "store-0", "rail0", down_s=0.05, up_s=0.05)
    fault.inject()

    assert wait_until(lambda: fault.probe().effect >= 4, timeout_s=5)
    undo(pair, fault, before)
    assert pair.children() == []


@pytest.mark.parametrize(
    ("kind", "end"),
    [("blackhole", "silent"), ("reset", "ConnectionRefusedError"), ("tap", "ok")],
)
def test_a_cut_of_links_ends_reads_its_own_way(pair, kind, end) -> None:
    before = pair.states()
    fault = getattr(on_hosts, kind)(pair, links(pair))
    fault.inject()

    assert fault.probe().effect == 0
    assert pair.read().end == end
    assert fault.probe().effect > 0
    undo(pair, fault, before)
    assert fault.probe().effect == 0


@pytest.mark.parametrize(
    "given",
    [
        {},
        pytest.param({"from_": "engine-0"}, marks=pytest.mark.slow),
        pytest.param({"plane": "data"}, marks=pytest.mark.slow),
    ],
)
def test_a_partition_is_silent(pair, given) -> None:
    before = pair.states()
    fault = on_hosts.partition(pair, "store-0", **given)
    fault.inject()

    assert pair.read().end == "silent"
    assert fault.probe().effect > 0
    undo(pair, fault, before)


@pytest.mark.slow
def test_a_partition_from_the_other_end_is_silent_as_well(pair) -> None:
    before = pair.states()
    fault = on_hosts.partition(pair, "engine-0", from_="store-0")
    fault.inject()

    assert fault.domain == ("b",)
    assert pair.read().end == "silent"
    assert fault.probe().effect > 0
    undo(pair, fault, before)


@pytest.mark.slow
def test_a_live_connection_is_silent_under_a_blackhole_and_goes_on_afterwards(
    pair,
) -> None:
    fault = on_hosts.blackhole(pair, links(pair))
    fault.inject()
    fault.revert()

    assert pair.read(100_000).end == "ok"


@pytest.mark.slow
def test_loss_loses_at_both_ends_and_traffic_gets_through_all_the_same(pair) -> None:
    before = pair.states()
    fault = on_hosts.loss(pair, links(pair), 20)
    fault.inject()

    for _ in range(20):
        pair.read(100_000, timeout_s=0.5)
        if fault.probe().effect > 0:
            break
    assert fault.domain == ("a", "b")
    assert fault.probe().effect > 0
    undo(pair, fault, before)


def test_bandwidth_holds_reads_to_the_rate(pair) -> None:
    before = pair.states()
    fault = on_hosts.bandwidth(pair, links(pair), 1000)
    fault.inject()
    slow = pair.read(1_000_000, timeout_s=5)

    assert slow.end == "ok"
    assert 0.5 < slow.took_s < 3
    assert fault.probe().effect > 0
    assert "tbf" in fault.probe().detail
    undo(pair, fault, before)


@pytest.mark.slow
def test_bandwidth_without_tbf_drops_what_is_over_the_rate(pair, monkeypatch) -> None:
    before = pair.states()
    monkeypatch.setattr("chaos.faults.rate.why_not", lambda host, kind: "no tbf")
    fault = on_hosts.bandwidth(pair, links(pair), 500)
    fault.inject()
    pair.read(3_000_000, timeout_s=2)

    assert "tc" not in "".join(fault.plan()).split()
    assert fault.probe().effect > 0
    undo(pair, fault, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "given"), [("latency", (40,)), ("corrupt", (1,)), ("reorder", (25,))]
)
def test_netem_faults_work_or_say_why_not(pair, kind, given) -> None:
    before = pair.states()
    fault = getattr(on_hosts, kind)(pair, links(pair), *given)
    reason = why_not(pair.of("store-0"), kind)
    if reason:
        with pytest.raises(NotHere, match="netem"):
            fault.inject()
        assert pair.settle(before) == []
        pytest.skip(reason)
    fault.inject()
    pair.read(timeout_s=2)

    assert fault.probe().effect > 0
    undo(pair, fault, before)


@pytest.mark.slow
def test_two_faults_on_one_device_are_undone_in_any_order(pair) -> None:
    """A partition does its work while a rate is in place (chaosd#213)."""
    before = pair.states()
    rate = on_hosts.bandwidth(pair, links(pair), 1000)
    cut = on_hosts.blackhole(pair, links(pair))
    rate.inject()
    cut.inject()

    assert pair.read().end == "silent"
    rate.revert()
    assert rate.verify_reverted() == ""
    assert pair.read().end == "silent"
    assert cut.probe().effect > 0
    undo(pair, cut, before)


@pytest.mark.slow
def test_a_second_shaper_on_a_device_is_refused_and_the_first_one_stays(pair) -> None:
    first = on_hosts.bandwidth(pair, links(pair), 1000)
    first.inject()

    with pytest.raises(Refused, match="root qdisc tbf"):
        on_hosts.bandwidth(pair, links(pair), 2000).inject()
    assert pair.read(100_000, timeout_s=2).end == "ok"
    assert first.probe().effect >= 0
    first.revert()
    assert first.verify_reverted() == ""


@pytest.mark.slow
def test_arming_and_undoing_one_rail_costs_the_other_not_a_single_packet(pair) -> None:
    """Pumba#166: taking down a targeted fault touched everybody."""
    before = pair.sent_again()
    said = pair.chatter(5000, "rail1")
    rounds = 0
    while not said.done() and rounds < 50:
        for kind, *given in (("bandwidth", 1000), ("blackhole",), ("loss", 50)):
            fault = getattr(on_hosts, kind)(pair, links(pair), *given)
            fault.inject()
            fault.revert()
            assert fault.verify_reverted() == ""
        rounds += 1

    assert said.result(60) == "done"
    assert rounds >= 1
    assert pair.sent_again() == before


@pytest.mark.slow
def test_a_rail_that_is_the_management_device_is_never_taken_down(pair) -> None:
    """An inventory that calls the same device a rail and the way to the controller."""
    host = pair.of("store-0")
    wrong = dataclasses.replace(
        host,
        controller=host.addresses["management"].replace(".1", ".2"),
        devices={**host.devices, "rail0": "mgmt0"},
    )
    pair.all = (wrong, pair.all[1])

    with pytest.raises(Refused, match="mgmt0 carries the management plane"):
        on_hosts.nic_down(pair, "store-0", "rail0").inject()
    with pytest.raises(Refused, match="mgmt0 carries the management plane"):
        on_hosts.flap(pair, "store-0", "rail0", down_s=1, up_s=1).inject()


KINDS = {
    "nic_down": lambda pair: on_hosts.nic_down(pair, "store-0", "rail0"),
    "flap": lambda pair: on_hosts.flap(
        pair, "store-0", "rail0", down_s=0.05, up_s=0.05
    ),
    "partition": lambda pair: on_hosts.partition(pair, "store-0"),
    "blackhole": lambda pair: on_hosts.blackhole(pair, links(pair)),
    "reset": lambda pair: on_hosts.reset(pair, links(pair)),
    "tap": lambda pair: on_hosts.tap(pair, links(pair)),
    "loss": lambda pair: on_hosts.loss(pair, links(pair), 20),
    "bandwidth": lambda pair: on_hosts.bandwidth(pair, links(pair), 1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_heals_itself_when_nobody_renews_its_lease(make_pair, kind) -> None:
    pair = make_pair(ttl_s=2.0)
    before = pair.states()
    fault = KINDS[kind](pair)
    fault.inject()

    assert wait_until(lambda: pair.states() != before, timeout_s=5)
    pair.lose()
    assert pair.settle(before, timeout_s=2.0 + 5.0) == []
    assert pair.children() == []


@pytest.mark.slow
def test_a_renewed_fault_outlives_its_lease(make_pair) -> None:
    pair = make_pair(ttl_s=1.0)
    fault = on_hosts.blackhole(pair, links(pair))
    fault.inject()

    assert pair.read(timeout_s=2.5).end == "silent"
    assert pair.read(timeout_s=0.3).end == "silent"
    fault.revert()
    assert pair.read().end == "ok"


@pytest.mark.slow
def test_a_cut_ends_by_the_kernels_own_timeout_when_the_agent_is_killed(
    make_pair,
) -> None:
    pair = make_pair(ttl_s=3.0)
    before = pair.states()
    fault = on_hosts.blackhole(pair, links(pair))
    fault.inject()
    connector = pair.of("store-0").agent.connector
    for pid in (connector.warden, connector.pid):
        os.kill(pid, signal.SIGKILL)

    hit = [line for line in pair.state("a")["nft"].splitlines() if "expires" in line]
    assert len(hit) == 1
    assert wait_until(lambda: "expires" not in pair.state("a")["nft"], timeout_s=6)
    assert connector.recover()[-1]["state"] == "healed"
    assert pair.settle(before) == []
