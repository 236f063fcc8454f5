from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.systems.base import ClusterSpec
from chaos.systems.layout import Layout


def layout(**spec) -> Layout:
    return Layout(spec=ClusterSpec(**spec), address=lambda host: f"127.64.0.{host}")


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
    other = Layout(spec=ClusterSpec(), address=lambda host: f"127.64.1.{host}")
    names = {link.proxy for link in layout().links()}

    assert names.isdisjoint(link.proxy for link in other.links())
    assert not any("@" in name for name in names)


@pytest.mark.parametrize(
    "shape", [{"stores": 0}, {"rails": 0}, {"stores": 96}, {"engines": 56}]
)
def test_a_shape_that_does_not_fit_is_refused(shape) -> None:
    with pytest.raises(UsageError):
        layout(**shape).check()
