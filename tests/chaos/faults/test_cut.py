"""What a partition of a host leaves alone, and a rail that was down before."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from chaos.errors import FaultNotInjected, HostUnreachable
from chaos.faults.cut import HostPartition
from chaos.faults.host_fault import Part
from chaos.faults.link_down import HostFlap, HostNicDown
from chaos.faults.nft import Match
from chaos.faults.port import HostPortTaken
from chaos.hosts.host import Host
from chaos.hosts.link import CommandResult
from chaos.safety.management import Device, HostFacts
from chaos.systems.base import Link


def cluster_on(rail: str, agent=None):
    """A store whose rail is this device."""
    host = Host(
        name="h0",
        roles=("store-0",),
        agent=agent,
        devices={"control": "ctl0", "rail0": rail},
        addresses={"control": "10.0.1.1", "rail0": "10.0.2.1"},
    )
    link = Link(
        name="store-0.rail0",
        owner="store-0",
        user="",
        plane="data",
        rail="rail0",
        proxy="",
        listen="10.0.2.1:7100",
        upstream="10.0.2.1:7100",
    )
    hosts = SimpleNamespace(all=(host,), of=lambda role: host)
    return SimpleNamespace(hosts=hosts, links=(link,))


def facts_of(carrier: str) -> HostFacts:
    return HostFacts(
        host="h0",
        devices=(Device(name="eth0", other_names=("lan",)), Device(name="rail0")),
        carriers=frozenset({carrier}),
        controllers=("192.0.2.9",),
    )


SOCKET = Match(device="eth0", local="10.0.2.1", local_port=7100)


@pytest.mark.parametrize("called", ["eth0", "lan"])
def test_a_device_that_carries_management_is_never_silent_as_a_whole(called) -> None:
    fault = HostPartition(cluster_on(called), "store-0")
    (host,) = fault.hosts()

    (only,) = fault.table(host, facts_of("eth0")).matches
    assert (only.local, only.local_port) == (SOCKET.local, SOCKET.local_port)


def test_a_rail_of_its_own_is_silent_as_a_whole() -> None:
    fault = HostPartition(cluster_on("rail0"), "store-0")
    (host,) = fault.hosts()

    assert Match(device="rail0") in fault.table(host, facts_of("eth0")).matches


@pytest.mark.parametrize("kind", [HostNicDown, HostFlap])
def test_a_device_that_was_down_before_is_no_fault_of_ours(kind) -> None:
    row = {"ifname": "rail0", "flags": ["BROADCAST"], "operstate": "DOWN"}

    def run(argv, *, stdin="", timeout_s=5.0):
        text = json.dumps([row])
        return CommandResult(rc=0, stdout=text, stderr="", timed_out=False)

    cluster = cluster_on("rail0", agent=SimpleNamespace(run=run))
    times = {"down_s": 1.0, "up_s": 1.0} if kind is HostFlap else {}
    fault = kind(cluster, "store-0", "rail0", **times)
    part = Part(host=fault.hosts()[0], facts=facts_of("eth0"), steps=())

    with pytest.raises(FaultNotInjected, match="rail0 of h0 is down already"):
        fault.prepare(part)
    row["flags"].append("UP")
    fault.prepare(part)


def test_a_host_that_is_not_reached_is_no_evidence_of_a_taken_port() -> None:
    cluster = cluster_on("rail0", agent=SimpleNamespace(arm=None))
    error = HostUnreachable(host="h0", op="spawn", reason="no answer within 20 s")

    def start_role(role):
        raise error

    cluster.process = lambda role: None
    cluster.start_role = start_role
    fault = HostPortTaken(cluster, "store-0")
    fault._planned = [Part(host=fault.hosts()[0], facts=facts_of("eth0"), steps=())]
    fault._arm = lambda part: None

    with pytest.raises(HostUnreachable):
        fault.inject()
    assert fault.probe().effect == 0.0
