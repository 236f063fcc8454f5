"""Where every role of a reference cluster listens, and which links lie in front of it.

Ports are fixed. On the local target a proxy stands in each link: it listens on the
address of the role that it serves, on a port of its own, so that a client sees one
address a rail, as it would without the harness. On hosts nothing stands between the
roles: the control plane, the rails and what the harness talks to (the management
plane) are networks of their own, and faults act on the networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.systems.base import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.systems.base import ClusterSpec

MASTER = "master"
PROBE = "probe"
_RPC, _HEARTBEAT, _ADMIN, _DATA = 7000, 7001, 7002, 7100
_OPERATOR, _DOOR = 7003, 7004
_PROXIED_RPC, _PROXIED_HEARTBEAT, _PROXIED_DATA = 17000, 17001, 17100
_STEP = 200
"""Between the ports of two roles that share a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The addresses of a cluster of one shape on one target.

    `address` is asked for (role, plane, rail). `proxied` says that a fault proxy
    stands in every link.
    """

    spec: ClusterSpec
    address: Callable[[str, str, int], str]
    proxied: bool = True

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(f"store-{number}" for number in range(self.spec.stores))

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(f"engine-{number}" for number in range(self.spec.engines))

    @property
    def roles(self) -> tuple[str, ...]:
        return (MASTER, *self.stores, *self.engines)

    @property
    def rails(self) -> tuple[str, ...]:
        return tuple(f"rail{number}" for number in range(self.spec.rails))

    def check(self) -> None:
        """Refuses a shape without a store, a rail or a host.

        Raises:
            UsageError: One of them is missing.
        """
        spec = self.spec
        if min(spec.stores, spec.rails, spec.stores_per_host) < 1 or spec.engines < 0:
            raise UsageError(
                "a cluster needs one store, one rail and one host at least"
            )

    def host_of(self, role: str) -> str:
        """The failure domain of a role: engine i lives on the i-th host of stores."""
        kind, _, text = role.partition("-")
        if kind == MASTER:
            return MASTER
        hosts = -(-self.spec.stores // self.spec.stores_per_host)
        number = int(text)
        if kind == "store":
            return f"h{number // self.spec.stores_per_host}"
        return f"h{number % hosts}"

    def rpc(self, role: str) -> str:
        """Where the gRPC service of a master or an engine really listens.

        On hosts an engine serves on the management plane: only the harness asks it.
        """
        plane = "control" if role == MASTER else "management"
        return self._at(role, plane, _RPC)

    def operator(self, role: str) -> str:
        """Where the harness reaches that service, whatever happens to the links."""
        if self.proxied or role != MASTER:
            return self.rpc(role)
        return self._at(role, "management", _OPERATOR)

    def door(self) -> str:
        """Where the harness reaches its own client, on targets where that is a role."""
        return self._at(PROBE, "management", _DOOR)

    def heartbeat(self) -> str:
        return self._at(MASTER, "control", _HEARTBEAT)

    def admin(self, role: str) -> str:
        return self._at(role, "management", _ADMIN)

    def data(self, store: str, rail: int) -> str:
        """Where a rail of a store really listens."""
        return f"{self.address(store, 'data', rail)}:{self._port(store, _DATA)}"

    def links(self) -> tuple[Link, ...]:
        """Every link of the cluster: data rails, then the ways to the master."""
        links = [self._rail(store, n) for store in self.stores for n in self._numbers()]
        users = (*self.stores, *self.engines, PROBE)
        links += [self._to_master("rpc", user) for user in users]
        links += [self._to_master("heartbeat", store) for store in self.stores]
        return tuple(links)

    def _numbers(self) -> range:
        return range(self.spec.rails)

    def _rail(self, store: str, number: int) -> Link:
        name = f"{store}.rail{number}"
        upstream = self.data(store, number)
        proxied = f"{self.address(store, 'data', number)}:{_PROXIED_DATA}"
        return Link(
            name=name,
            owner=store,
            user="",
            plane="data",
            rail=f"rail{number}",
            proxy=self._proxy(name),
            listen=proxied if self.proxied else upstream,
            upstream=upstream,
        )

    def _to_master(self, plane: str, user: str) -> Link:
        name = f"master.{plane}@{user}"
        port = _PROXIED_RPC if plane == "rpc" else _PROXIED_HEARTBEAT
        upstream = self.rpc(MASTER) if plane == "rpc" else self.heartbeat()
        proxied = f"{self.address(user, 'control', 0)}:{port}"
        return Link(
            name=name,
            owner=MASTER,
            user=user,
            plane=plane,
            rail="",
            proxy=self._proxy(name),
            listen=proxied if self.proxied else upstream,
            upstream=upstream,
        )

    def _proxy(self, name: str) -> str:
        """The block is in the name: several runs may share one proxy server."""
        if not self.proxied:
            return ""
        block = self.address(PROBE, "control", 0).replace(".", "-")
        return f"mq-{block}-{name.replace('@', '-for-')}"

    def _at(self, role: str, plane: str, port: int) -> str:
        return f"{self.address(role, plane, 0)}:{self._port(role, port)}"

    def _port(self, role: str, base: int) -> int:
        """Roles that share a host listen on ports of their own."""
        if self.proxied:
            return base
        here = self.address(role, "management", 0)
        all_ = (*self.roles, PROBE)
        before = all_[: all_.index(role)]
        shared = sum(self.address(one, "management", 0) == here for one in before)
        return base + _STEP * shared
