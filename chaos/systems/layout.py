"""Where every role of a reference cluster listens, and which links lie in front of it.

All addresses come from one block of the target; ports are fixed. The proxy of a link
listens on the address of the role that it serves, on a port of its own, so that a
client sees one address a rail, as it would without the harness.
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
_PROBE_HOST = 1
_MASTER_HOST = 2
_FIRST_STORE_HOST = 10
_FIRST_ENGINE_HOST = 200
_LAST_HOST = 254
_RPC, _HEARTBEAT, _ADMIN, _DATA = 7000, 7001, 7002, 7100
_PROXIED_RPC, _PROXIED_HEARTBEAT, _PROXIED_DATA = 17000, 17001, 17100


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The addresses of a cluster of one shape on one block."""

    spec: ClusterSpec
    address: Callable[[int], str]

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
        """Refuses a shape that does not fit into a block.

        Raises:
            UsageError: Too many stores, rails or engines, or none of them.
        """
        spec = self.spec
        if min(spec.stores, spec.rails, spec.stores_per_host) < 1 or spec.engines < 0:
            raise UsageError(
                "a cluster needs one store, one rail and one host at least"
            )
        last_store = _FIRST_STORE_HOST + spec.stores * spec.rails - 1
        last_engine = _FIRST_ENGINE_HOST + spec.engines - 1
        if last_store >= _FIRST_ENGINE_HOST or last_engine > _LAST_HOST:
            problem = f"{spec.stores} stores of {spec.rails} rails and {spec.engines}"
            raise UsageError(f"{problem} engines do not fit into one block")

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
        """Where the gRPC service of a master or an engine really listens."""
        return f"{self._home(role)}:{_RPC}"

    def heartbeat(self) -> str:
        return f"{self._home(MASTER)}:{_HEARTBEAT}"

    def admin(self, role: str) -> str:
        return f"{self._home(role)}:{_ADMIN}"

    def data(self, store: str, rail: int) -> str:
        """Where a rail of a store really listens."""
        return f"{self._rail_address(store, rail)}:{_DATA}"

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
        return Link(
            name=name,
            owner=store,
            user="",
            plane="data",
            rail=f"rail{number}",
            proxy=self._proxy(name),
            listen=f"{self._rail_address(store, number)}:{_PROXIED_DATA}",
            upstream=self.data(store, number),
        )

    def _to_master(self, plane: str, user: str) -> Link:
        name = f"master.{plane}@{user}"
        port = _PROXIED_RPC if plane == "rpc" else _PROXIED_HEARTBEAT
        upstream = self.rpc(MASTER) if plane == "rpc" else self.heartbeat()
        return Link(
            name=name,
            owner=MASTER,
            user=user,
            plane=plane,
            rail="",
            proxy=self._proxy(name),
            listen=f"{self._home(user)}:{port}",
            upstream=upstream,
        )

    def _proxy(self, name: str) -> str:
        """The block is in the name: several runs may share one proxy server."""
        block = self.address(_PROBE_HOST).replace(".", "-")
        return f"mq-{block}-{name.replace('@', '-for-')}"

    def _rail_address(self, store: str, rail: int) -> str:
        number = int(store.partition("-")[2])
        return self.address(_FIRST_STORE_HOST + number * self.spec.rails + rail)

    def _home(self, role: str) -> str:
        """The first address of a role."""
        kind, _, number = role.partition("-")
        if kind == "store":
            return self._rail_address(role, 0)
        if kind == "engine":
            return self.address(_FIRST_ENGINE_HOST + int(number))
        return self.address(_PROBE_HOST if kind == PROBE else _MASTER_HOST)
