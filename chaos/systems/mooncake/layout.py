"""Where every role of a Mooncake cluster listens, and how each is started.

On the local target a proxy stands in every way to a plain master. Nothing can stand
before a store: it tells its peers the address that it binds. So faults of its network
need hosts; here a store is killed, paused or restarted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.errors import UsageError
from chaos.systems.base import Link
from chaos.systems.layout import MASTER, PROBE
from chaos.systems.mooncake.plan import P2P, ClientPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.systems.mooncake.package import Package
    from chaos.systems.mooncake.ports import Wanted
    from chaos.systems.mooncake.shape import Shape

ETCD: Final = "etcd"
_EVERYWHERE: Final = "0.0.0.0"
RAIL: Final = "rail0"
"""Mooncake has one address a segment over TCP, whatever a host has."""
_PROXIED_RPC: Final = 17000
_PROXIED_ADMIN: Final = 17001


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses and ports of roles. `local`: all of them on this machine's loopback."""

    shape: Shape
    address: Callable[[str, str, int], str]
    ports: Mapping[Wanted, int]
    local: bool

    @property
    def proxied(self) -> bool:
        """Whether a proxy stands in the ways to a master.

        Elected ones are found by the address that they told etcd.
        """
        return self.local and not self.shape.elected

    @property
    def masters(self) -> tuple[str, ...]:
        more = range(1, self.shape.masters)
        return (MASTER, *(f"{MASTER}-{number}" for number in more))

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(f"store-{number}" for number in range(self.shape.spec.stores))

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(f"engine-{number}" for number in range(self.shape.spec.engines))

    @property
    def roles(self) -> tuple[str, ...]:
        etcd = (ETCD,) if self.shape.elected else ()
        return (*etcd, *self.masters, *self.stores, *self.engines)

    def host_of(self, role: str) -> str:
        """The failure domain of a role: engine i lives on the i-th host of stores."""
        kind, _, text = role.partition("-")
        if kind not in ("store", "engine"):
            return role
        spec = self.shape.spec
        number = int(text)
        if kind == "store":
            return f"h{number // spec.stores_per_host}"
        return f"h{number % -(-spec.stores // spec.stores_per_host)}"

    def rpc(self, master: str) -> str:
        return self._at(master, "control", "rpc")

    def admin(self, master: str) -> str:
        """Where the harness asks a master, whatever happens to the links."""
        return self._at(master, "management", "admin")

    def etcd(self, what: str = "etcd") -> str:
        return self._at(ETCD, "control", what)

    def etcd_door(self) -> str:
        """Where the harness asks etcd; on one machine where everybody does."""
        return self._at(ETCD, "management", "etcd")

    def master_of(self, user: str) -> str:
        """What a store, a client or an engine is told as the master's address."""
        if self.shape.elected:
            return f"etcd://{self.etcd()}"
        return self._link_to(MASTER, user).listen

    def admin_of(self, user: str) -> str:
        """Where an engine asks the first master for segments."""
        return self._admin_link(user).listen

    def service(self, engine: str) -> str:
        """An engine's gRPC service, for the harness."""
        return self._at(engine, "management", "service")

    def door(self, engine: str) -> str:
        """An engine's admin door."""
        return self._at(engine, "management", "door")

    def probe(self) -> str:
        """Where the harness reaches its own client, on targets where that is a role."""
        return self._at(PROBE, "management", "probe")

    def own(self, user: str) -> str:
        """The address by which a client calls itself."""
        return self.address(user, "data", 0)

    def near(self, engine: str) -> str:
        """The address of a store beside an engine: its pages go there first."""
        host = self.host_of(engine)
        beside = [store for store in self.stores if self.host_of(store) == host]
        return self.own(beside[0] if beside else engine)

    @property
    def metadata(self) -> str:
        if not self.shape.http_metadata:
            return P2P
        return f"http://{self._at(MASTER, 'control', 'metadata')}/metadata"

    def client(self, user: str = PROBE) -> ClientPlan:
        """How the harness's own client joins, and where it finds the stores."""
        return ClientPlan(
            address=self.address(user, "data", 0),
            master=self.master_of(user),
            metadata=self.metadata,
            stores={store: self.own(store) for store in self.stores},
            hosts={store: self.host_of(store) for store in self.stores},
            admins=tuple(self._at(one, "control", "admin") for one in self.masters),
            env={
                **self.shape.profile.env,
                **self.shape.client_env,
                "MC_TCP_BIND_ADDRESS": self.address(user, "data", 0),
            },
        )

    def links(self) -> tuple[Link, ...]:
        """The data link of every store, then the ways of all to their masters."""
        data = [self._data(store) for store in self.stores]
        users = (*self.stores, *self.engines, PROBE)
        ways = [self._link_to(one, user) for one in self.masters for user in users]
        return (*data, *ways, *(self._admin_link(engine) for engine in self.engines))

    def _data(self, store: str) -> Link:
        """Port 0 is any: the ports that carry data are Mooncake's own choice."""
        anywhere = f"{self.address(store, 'data', 0)}:0"
        return Link(
            name=f"{store}.{RAIL}",
            owner=store,
            user="",
            plane="data",
            rail=RAIL,
            proxy="",
            listen=anywhere,
            upstream=anywhere,
        )

    def _link_to(self, master: str, user: str) -> Link:
        return self._way(master, user, "rpc", _PROXIED_RPC)

    def _admin_link(self, user: str) -> Link:
        """Engines ask the first master for segments; whatever cuts it off cuts this."""
        return self._way(MASTER, user, "admin", _PROXIED_ADMIN)

    def _way(self, master: str, user: str, what: str, port: int) -> Link:
        upstream = self._at(master, "control", what)
        block = self.address(PROBE, "control", 0).replace(".", "-")
        before = f"{self.address(user, 'control', 0)}:{port}"
        return Link(
            name=f"{master}.{what}@{user}",
            owner=master,
            user=user,
            plane="rpc",
            rail="",
            proxy=f"mq-{block}-{master}.{what}-for-{user}" if self.proxied else "",
            listen=before if self.proxied else upstream,
            upstream=upstream,
        )

    def _at(self, role: str, plane: str, what: str) -> str:
        return f"{self.address(role, plane, 0)}:{self.ports[role, what]}"


def wanted(shape: Shape) -> list[Wanted]:
    """Every port that a cluster of this shape needs."""
    bare = Addresses(shape=shape, address=lambda *_: "", ports={}, local=True)
    ports = [(one, what) for one in bare.masters for what in ("rpc", "admin")]
    ports += [(store, "store") for store in bare.stores]
    if shape.http_metadata:  # a store that comes back has the name it had
        ports += [(store, "segment") for store in bare.stores]
    ports += [(one, what) for one in bare.engines for what in ("service", "door")]
    ports += [(MASTER, "metadata"), (PROBE, "probe")]
    if shape.elected:
        ports += [(ETCD, "etcd"), (ETCD, "etcd-peer")]
    return ports


def more_roles(shape: Shape) -> tuple[str, ...]:
    """Roles beyond one master, stores and engines: they need addresses as well."""
    more = tuple(f"{MASTER}-{number}" for number in range(1, shape.masters))
    return (*more, ETCD) if shape.elected else more


def check(shape: Shape) -> None:
    """Refuses a shape without a store or a host.

    Raises:
        UsageError: One of them is missing.
    """
    spec = shape.spec
    if min(spec.stores, spec.rails, spec.stores_per_host) < 1 or spec.engines < 0:
        raise UsageError("a cluster needs one store, one rail and one host at least")


def master_argv(package: Package, here: Addresses, role: str) -> list[str]:
    """The command line of a master."""
    shape = here.shape
    address, port = here.rpc(role).rsplit(":", 1)
    door, door_port = here.admin(role).rsplit(":", 1)
    if not here.local:  # on hosts the harness asks on one plane, engines on another
        door = _EVERYWHERE
    argv = [
        package.master,
        f"--rpc_address={address}",
        f"--rpc_port={port}",
        f"--metrics_host={door}",
        f"--metrics_port={door_port}",
        "--logtostderr=true",
        *shape.master_flags,
    ]
    if shape.elected:
        argv += ["--enable_ha=true", f"--etcd_endpoints=http://{here.etcd()}"]
        argv += ["--enable_oplog=true"] if shape.oplog else []
    if shape.http_metadata:
        argv += [
            "--enable_http_metadata_server=true",
            f"--http_metadata_server_host={address}",
            f"--http_metadata_server_port={here.ports[MASTER, 'metadata']}",
        ]
    return argv


def store_argv(package: Package, here: Addresses, role: str) -> list[str]:
    """The command line of a store: Mooncake's stand-alone client, with a segment."""
    return [
        package.client,
        f"--host={here.own(role)}",
        f"--port={here.ports[role, 'store']}",
        f"--global_segment_size={here.shape.spec.store_bytes}",
        f"--master_server_address={here.master_of(role)}",
        f"--metadata_server={here.metadata}",
        "--protocol=tcp",
        "--logtostderr=true",
    ]


def node_words(here: Addresses, role: str) -> list[str]:
    """What a store that keeps its name is told (`node.py`)."""
    name = f"{here.own(role)}:{here.ports[role, 'store']}"
    size = str(here.shape.spec.store_bytes)
    return [name, size, here.master_of(role), here.metadata]


def etcd_argv(program: str, here: Addresses, directory: str) -> list[str]:
    """The command line of a single etcd that forgets everything with its directory."""
    client, peer = (f"http://{here.etcd(what)}" for what in ("etcd", "etcd-peer"))
    door = here.etcd_door()
    if not here.local:  # the harness asks on another plane than masters and stores
        door = f"{_EVERYWHERE}:{door.rpartition(':')[2]}"
    return [
        program,
        "--name=etcd",
        f"--data-dir={directory}",
        f"--listen-client-urls=http://{door}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=etcd={peer}",
        "--unsafe-no-fsync",
    ]
