from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.systems.base import ClusterSpec
from chaos.systems.layout import Layout
from chaos.targets.numbering import check_block, host_number


def layout(prefix: str = "127.64.0", **spec) -> Layout:
    """A layout of the local target."""
    shape = ClusterSpec(**spec)

    def address(role: str, plane: str, rail: int) -> str:
        return f"{prefix}.{host_number(shape, role, plane, rail)}"

    return Layout(spec=shape, address=address)


def on_hosts(hosts: int = 2, **spec) -> Layout:
    """A layout of a few machines, every one with several roles, and three planes."""

    def address(role: str, plane: str, rail: int) -> str:
        host = 9 if role in ("master", "probe") else int(role[-1]) % hosts
        network = {"control": 0, "management": 1, "data": 2 + rail}[plane]
        return f"10.0.{network}.{host}"

    return Layout(spec=ClusterSpec(**spec), address=address, proxied=False)


def test_every_listener_of_a_cluster_has_an_address_of_its_own() -> None:
    shape = layout(stores=8, engines=8, rails=2)
    shape.check()
    listeners = [link.listen for link in shape.links()]
    listeners += [shape.admin(role) for role in shape.roles]
    listeners += [shape.rpc(role) for role in ("master", *shape.engines)]
    listeners += [shape.data(store, rail) for store in shape.stores for rail in (0, 1)]
    listeners += [shape.heartbeat()]

    assert len(listeners) == len(set(listeners))


def test_two_rails_of_a_store_are_two_addresses() -> None:
    links = {link.name: link for link in layout().links()}
    hosts = {links[f"store-3.rail{n}"].listen.partition(":")[0] for n in (0, 1)}

    assert len(hosts) == 2


def test_every_role_reaches_the_master_through_a_link_of_its_own() -> None:
    links = [
        link for link in layout(stores=2, engines=1).links() if link.owner == "master"
    ]

    assert {(link.plane, link.user) for link in links} == {
        ("rpc", "store-0"),
        ("rpc", "store-1"),
        ("rpc", "engine-0"),
        ("rpc", "probe"),
        ("heartbeat", "store-0"),
        ("heartbeat", "store-1"),
    }


def test_engines_live_on_the_hosts_of_stores() -> None:
    shape = layout(stores=4, engines=6, stores_per_host=2)

    assert [shape.host_of(store) for store in shape.stores] == ["h0", "h0", "h1", "h1"]
    assert [shape.host_of(e) for e in shape.engines] == ["h0", "h1"] * 3


def test_proxies_of_two_blocks_can_share_a_server() -> None:
    other = layout("127.64.1")
    names = {link.proxy for link in layout().links()}

    assert names.isdisjoint(link.proxy for link in other.links())
    assert not any("@" in name for name in names)


@pytest.mark.parametrize("shape", [{"stores": 0}, {"rails": 0}, {"engines": -1}])
def test_a_shape_that_is_no_cluster_is_refused(shape) -> None:
    with pytest.raises(UsageError):
        layout(**shape).check()


@pytest.mark.parametrize("shape", [{"stores": 96}, {"engines": 56}])
def test_a_shape_that_does_not_fit_into_a_block_is_refused(shape) -> None:
    with pytest.raises(UsageError):
        check_block(ClusterSpec(**shape))


def test_roles_that_share_a_host_never_share_a_port() -> None:
    shape = on_hosts(stores=4, engines=4)
    listeners = [shape.data(store, rail) for store in shape.stores for rail in (0, 1)]
    listeners += [shape.admin(role) for role in shape.roles]
    listeners += [shape.rpc(role) for role in ("master", *shape.engines)]
    listeners += [shape.heartbeat(), shape.operator("master"), shape.door()]

    assert len(listeners) == len(set(listeners))


def test_on_hosts_nothing_stands_in_a_link() -> None:
    links = on_hosts(stores=2, engines=1).links()

    assert {link.proxy for link in links} == {""}
    assert all(link.listen == link.upstream for link in links)


def test_on_hosts_the_harness_talks_over_the_management_plane_only() -> None:
    shape = on_hosts(stores=2, engines=2)
    doors = [shape.admin(role) for role in shape.roles]
    doors += [shape.operator(role) for role in ("master", *shape.engines)]
    doors += [shape.door()]

    assert all(door.startswith("10.0.1.") for door in doors)
    assert all(not link.listen.startswith("10.0.1.") for link in shape.links())


def test_on_hosts_every_rail_is_a_network_of_its_own() -> None:
    links = {link.name: link.listen for link in on_hosts(stores=2, engines=1).links()}

    assert links["store-1.rail0"].startswith("10.0.2.")
    assert links["store-1.rail1"].startswith("10.0.3.")
    assert links["master.rpc@engine-0"].startswith("10.0.0.")
