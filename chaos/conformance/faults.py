"""The faults that systems are held against, by name; each is one that can be undone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.errors import NotHere
from chaos.systems.layout import MASTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.faults.injector import Injection, Injector
    from chaos.systems.base import Cluster

SLOW_KB_PER_S: Final = 64
"""512 kbit/s: a store that answers, and is of no use."""
LOST_PERCENT: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFault:
    """A fault of one store, the victim, or of the master.

    `gone` says that what the victim held is lost for good, `replicas` how many copies
    every object has; `on_hosts`: it acts on the network of hosts.
    """

    name: str
    what: str
    make: Callable[[Cluster, Injector, str], Injection]
    of_master: bool = False
    gone: bool = False
    replicas: int = 1
    on_hosts: bool = False


def _one_way(cluster: Cluster, inject: Injector, store: str) -> Injection:
    """What is sent to a store is lost, what it sends itself arrives.

    Raises:
        NotHere: The cluster has no hosts.
    """
    if cluster.hosts is None:
        reason = "it acts on hosts of their own; try --target netns"
        raise NotHere(capability="one_way", target="local", reason=reason)
    from chaos.conformance.one_way import HostOneWay

    return inject(HostOneWay(cluster, store))


def _links(cluster: Cluster, store: str) -> list[str]:
    return [link.name for link in cluster.links if link.owner == store and link.rail]


FAULTS: Final = (
    NamedFault(
        name="store-killed",
        what="SIGKILL of a store",
        make=lambda _c, inject, store: inject.kill(store),
        gone=True,
    ),
    NamedFault(
        name="store-paused",
        what="SIGSTOP of a store",
        make=lambda _c, inject, store: inject.pause(store),
    ),
    NamedFault(
        name="store-silent",
        what="everything to and from a store is dropped",
        make=lambda _c, inject, store: inject.partition(store),
        on_hosts=True,
    ),
    NamedFault(
        name="store-deaf",
        what="what is sent to a store's data plane is dropped; it goes on to ping",
        make=_one_way,
        on_hosts=True,
    ),
    NamedFault(
        name="store-resets",
        what="connections of a store's data plane end with a RST",
        make=lambda c, inject, store: inject.reset(_links(c, store)),
        on_hosts=True,
    ),
    NamedFault(
        name="store-link-down",
        what="a store's link is down",
        make=lambda _c, inject, store: inject.nic_down(store),
        on_hosts=True,
    ),
    NamedFault(
        name="store-slow",
        what="a store's link carries 512 kbit/s",
        make=lambda c, inject, store: inject.bandwidth(_links(c, store), SLOW_KB_PER_S),
        on_hosts=True,
    ),
    NamedFault(
        name="store-lossy",
        what="a fifth of what reaches a store is lost",
        make=lambda c, inject, store: inject.loss(_links(c, store), LOST_PERCENT),
        on_hosts=True,
    ),
    NamedFault(
        name="store-killed-of-two",
        what="SIGKILL of a store, every object on two",
        make=lambda _c, inject, store: inject.kill(store),
        replicas=2,
    ),
    NamedFault(
        name="store-restarted",
        what="SIGKILL of a store, started again at once under its name",
        make=lambda _c, inject, store: inject.restart(store),
        gone=True,
    ),
    NamedFault(
        name="master-killed",
        what="SIGKILL of the master",
        make=lambda _c, inject, _store: inject.kill(MASTER),
        of_master=True,
    ),
    NamedFault(
        name="master-paused",
        what="SIGSTOP of the master",
        make=lambda _c, inject, _store: inject.pause(MASTER),
        of_master=True,
    ),
)
HERE: Final = tuple(fault.name for fault in FAULTS if not fault.on_hosts)
"""Faults that every target has: those of processes."""


def fault_of(name: str) -> NamedFault:
    """The fault of that name.

    Raises:
        KeyError: There is none.
    """
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise KeyError(name)
