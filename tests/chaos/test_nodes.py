"""Which faults take hosts down, and how many may."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.errors import NotHere
from chaos.faults.base import Evidence
from chaos.faults.injector import Injector
from chaos.nodes import hosts_down, node_limit
from chaos.safety.ledger import Ledger


class Cluster:
    masters, engines = ("master",), ("engine-0", "engine-1")
    stores = ("store-0", "store-1", "store-2")

    def host_of(self, role):
        return "m" if role == "master" else f"h{role[-1]}"


def fault(kind, target="store-0", **more):
    return SimpleNamespace(
        kind=kind,
        target=target,
        plan=list,
        inject=lambda: None,
        probe=lambda: Evidence(measure="fake", effect=1.0),
        revert=lambda: None,
        verify_reverted=lambda: "",
        **more,
    )


@pytest.fixture
def cluster():
    return Cluster()


def test_a_fault_is_down_where_its_roles_live(cluster) -> None:
    links = [SimpleNamespace(owner="store-1"), SimpleNamespace(owner="store-2")]
    faults = [fault("kill"), fault("blackhole", "many", links=links)]

    assert hosts_down(faults, cluster) == {"h0", "h1", "h2"}


def test_a_fault_that_knows_its_hosts_is_believed(cluster) -> None:
    assert hosts_down([fault("kill", domain={"rack-7"})], cluster) == {"rack-7"}


def test_what_is_only_slow_or_watched_is_not_down(cluster) -> None:
    links = [SimpleNamespace(owner="store-1")]

    assert hosts_down([fault("latency", "x", links=links)], cluster) == set()
    assert hosts_down([fault("tap", "x", links=links)], cluster) == set()


def test_roles_of_one_host_count_once(cluster) -> None:
    assert hosts_down([fault("kill"), fault("pause", "engine-0")], cluster) == {"h0"}


def test_one_too_many_is_refused_before_anything_happens(cluster, tmp_path) -> None:
    ledger = Ledger.create(tmp_path)
    guard = node_limit(1, lambda: cluster, "ssh")
    inject = Injector(lambda: cluster, lambda: None, ledger, guard=guard)
    first, second = inject(fault("kill")), inject(fault("kill", "store-1"))

    with first, pytest.raises(NotHere, match=r"2 hosts would be down \(h0, h1\)"):
        second.start()
    assert second.receipt.injected_at_s is None
    with second as receipt:
        assert receipt.injected_at_s is not None
    ledger.close()
