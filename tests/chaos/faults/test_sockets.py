"""Where the links of a cluster are met on its hosts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.errors import UsageError
from chaos.faults.nft import Match
from chaos.faults.sockets import at_receivers, of_links, of_partition
from chaos.hosts.host import Host
from chaos.systems.base import Link

DEVICES = {"management": "mgmt0", "control": "ctl0", "rail0": "rail0", "rail1": "rail1"}


def host(name: str, number: int, *roles: str) -> Host:
    planes = {"management": 0, "control": 1, "rail0": 2, "rail1": 3}
    return Host(
        name=name,
        roles=roles,
        agent=None,
        devices=DEVICES,
        addresses={plane: f"10.0.{n}.{number}" for plane, n in planes.items()},
    )


def link(name, owner, address, *, user="", plane="data", rail="") -> Link:
    return Link(
        name=name,
        owner=owner,
        user=user,
        plane=plane,
        rail=rail,
        proxy="",
        listen=address,
        upstream=address,
    )


RAIL = link("store-0.rail0", "store-0", "10.0.2.10:7100", rail="rail0")
OTHER_RAIL = link("store-0.rail1", "store-0", "10.0.3.10:7100", rail="rail1")
RPC = link("master.rpc@store-0", "master", "10.0.1.2:7000", user="store-0", plane="rpc")
ENGINE_RPC = link(
    "master.rpc@engine-0", "master", "10.0.1.2:7000", user="engine-0", plane="rpc"
)


def cluster(*, stores=("store-0",)):
    hosts = (
        host("master", 2, "master"),
        host("h0", 10, *stores),
        host("e0", 20, "engine-0"),
    )

    def of(role):
        return next(one for one in hosts if role in one.roles)

    return SimpleNamespace(
        hosts=SimpleNamespace(all=hosts, of=of),
        links=(RAIL, OTHER_RAIL, RPC, ENGINE_RPC),
    )


def test_a_rail_is_met_where_it_listens() -> None:
    assert of_links(cluster(), [RAIL]) == {
        "h0": [Match(device="rail0", local="10.0.2.10", local_port=7100)]
    }


def test_the_way_of_one_role_to_the_master_is_met_on_its_own_host() -> None:
    assert of_links(cluster(), [RPC]) == {
        "h0": [Match(device="ctl0", remote="10.0.1.2", remote_port=7000)]
    }


def test_loss_is_met_where_packets_arrive() -> None:
    found = at_receivers(cluster(), [RAIL])

    assert found["h0"] == [Match(device="rail0", local="10.0.2.10", local_port=7100)]
    assert found["e0"] == [Match(device="rail0", remote="10.0.2.10", remote_port=7100)]


def test_loss_on_the_way_of_one_role_spares_the_others() -> None:
    found = at_receivers(cluster(), [RPC])

    assert set(found) == {"h0", "master"}
    assert found["master"][0].remote == "10.0.1.10"


def test_a_partition_from_everybody_silences_rails_and_the_way_to_the_master() -> None:
    found = of_partition(cluster(), "store-0")

    assert set(found) == {"h0"}
    assert Match(device="rail0") in found["h0"]
    assert Match(device="ctl0", remote="10.0.1.2", remote_port=7000) in found["h0"]
    assert not any(match.device == "mgmt0" for match in found["h0"])


def test_a_partition_on_a_shared_host_leaves_the_rails_of_the_others() -> None:
    found = of_partition(cluster(stores=("store-0", "store-1")), "store-0")

    assert Match(device="rail0") not in found["h0"]
    assert Match(device="rail0", local="10.0.2.10", local_port=7100) in found["h0"]


def test_a_partition_of_one_plane_leaves_the_other() -> None:
    found = of_partition(cluster(), "store-0", plane="rpc")

    assert [match.device for match in found["h0"]] == ["ctl0"]


def test_a_partition_from_one_role_names_its_addresses() -> None:
    found = of_partition(cluster(), "store-0", from_="engine-0")

    assert {match.remote for match in found["h0"]} == {"10.0.2.20", "10.0.3.20"}
    assert all(match.local_port == 7100 for match in found["h0"])


def test_a_partition_from_one_role_works_from_the_other_end() -> None:
    found = of_partition(cluster(), "engine-0", from_="store-0")

    assert set(found) == {"e0"}
    assert {match.remote for match in found["e0"]} == {"10.0.2.10", "10.0.3.10"}


def test_a_partition_of_the_master_from_a_store_leaves_the_engine() -> None:
    found = of_partition(cluster(), "master", from_="store-0")

    assert set(found) == {"master"}
    remotes = {match.remote for match in found["master"]}
    assert "10.0.1.10" in remotes
    assert not any(remote.endswith(".20") for remote in remotes)


def test_a_device_that_nobody_knows_is_an_error() -> None:
    stray = link("store-0.rail7", "store-0", "10.9.9.9:1", rail="rail7")

    with pytest.raises(UsageError, match=r"no device of h0 has 10\.9\.9\.9"):
        of_links(cluster(), [stray])
