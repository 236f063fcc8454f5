"""Which form of a fault is built: the local one, or the one that agents carry out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import chaos.faults as build
from chaos.errors import NotHere

ARGUMENTS = {
    "kill": ("store-0",),
    "pause": ("store-0",),
    "restart": ("store-0",),
    "nic_down": ("store-0",),
    "flap": ("store-0",),
    "partition": ("store-0",),
    "latency": ("store-0", 5),
    "bandwidth": ("store-0", 5),
    "loss": ("store-0", 1.0),
    "corrupt": ("store-0", 1.0),
    "reset": ("store-0",),
    "blackhole": ("store-0",),
    "tap": ("store-0",),
    "reorder": ("store-0", 1.0),
    "memory": ("store-0", 1),
    "memory_limit": ("store-0", 1),
    "cpu": ("store-0",),
    "disk_full": ("store-0",),
    "slow_disk": ("store-0", 5),
    "port_taken": ("store-0",),
}
ANYWHERE = {"clock_step", "failpoint"}
OF_HOSTS_ONLY = (
    "corrupt",
    "cpu",
    "disk_full",
    "flap",
    "loss",
    "memory",
    "memory_limit",
    "port_taken",
    "reorder",
    "slow_disk",
)


@pytest.fixture
def asked(monkeypatch):
    """A module in place of the real forms, which notes what was asked of it."""
    calls = []

    def form(kind):
        def make(cluster, *args, **named):
            calls.append((kind, args))
            return SimpleNamespace(kind=kind)

        return make

    fake = SimpleNamespace(**{kind: form(kind) for kind in ARGUMENTS})
    monkeypatch.setitem(sys.modules, "chaos.faults.on_hosts", fake)
    monkeypatch.setattr(build, "on_hosts", fake, raising=False)
    return calls


def hosts(*observed):
    """Hosts of which these roles are somebody else's."""
    return SimpleNamespace(of=lambda _: SimpleNamespace(observed=frozenset(observed)))


def test_every_fault_is_dispatched() -> None:
    assert set(ARGUMENTS) == set(build.__all__) - ANYWHERE - {"links_of"}


@pytest.mark.parametrize("kind", sorted(ARGUMENTS))
def test_a_cluster_with_hosts_gets_the_form_of_hosts(kind, cluster, asked) -> None:
    cluster.hosts = hosts()

    fault = getattr(build, kind)(cluster, None, *ARGUMENTS[kind])

    assert fault.kind == kind
    assert [call[0] for call in asked] == [kind]


def test_links_are_found_before_the_form_of_hosts_is_asked(cluster, asked) -> None:
    cluster.hosts = hosts()
    build.blackhole(cluster, None, "store-1")

    ((_, (links,)),) = asked
    assert [link.name for link in links] == ["store-1.rail0", "store-1.rail1"]


@pytest.mark.parametrize("kind", OF_HOSTS_ONLY)
def test_what_needs_a_host_is_not_here_on_the_local_target(kind, cluster) -> None:
    with pytest.raises(NotHere, match=f"the local target has no '{kind}'") as raised:
        getattr(build, kind)(cluster, None, *ARGUMENTS[kind])
    assert raised.value.capability == kind


@pytest.mark.parametrize("kind", sorted(set(ARGUMENTS) - set(OF_HOSTS_ONLY)))
def test_the_other_faults_have_a_local_form(kind, cluster, control) -> None:
    assert getattr(build, kind)(cluster, control, *ARGUMENTS[kind]).kind == kind


@pytest.mark.parametrize(
    ("kind", "given"),
    [("failpoint", ("store-0", "store.read", "on")), ("clock_step", ("store-0", 1.0))],
)
def test_what_a_role_of_somebody_else_would_keep_is_not_told_it(
    kind, given, cluster, asked
) -> None:
    """A failpoint has no lease but the life of its process, and that one stays."""
    cluster.hosts = hosts("store-0")

    with pytest.raises(NotHere, match="store-0 is not ours: it would keep it"):
        getattr(build, kind)(cluster, None, *given)
    assert asked == []


def test_a_role_of_ours_may_be_told(cluster) -> None:
    cluster.hosts = hosts("store-1")

    fault = build.failpoint(cluster, None, "store-0", "store.read", "on")

    assert fault.kind == "failpoint"
