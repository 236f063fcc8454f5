"""What can be set for a store."""

from __future__ import annotations

from dataclasses import dataclass

from refimpl.errors import shown
from refimpl.names import NAME_RULE, is_name
from refimpl.role import parse_address
from refimpl.security.options import (
    data_secret_file,
    tls_file,
    tls_server_name,
    token_file,
)
from refimpl.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Flags, environment and file of `refimpl store`; durations at factor 1."""

    name: str = setting("store-0", "stable name of this store in the pool", named=True)
    host_id: str = setting(
        "", "failure domain; empty takes the store's name", named=True
    )
    size: int = setting(64 << 20, "bytes contributed, e.g. 64MiB", at_least=4096)
    rail: tuple[str, ...] = setting(
        ("rail0=127.0.0.1:0",),
        "a listener, NAME=LISTEN[,ADVERTISE]; once per rail",
        repeatable=True,
    )
    master: str = setting("127.0.0.1:50051", "HOST:PORT of the master's RPC")
    heartbeat: str = setting("127.0.0.1:50052", "HOST:PORT of the master's heartbeat")
    admin_listen: str = setting(
        "127.0.0.1:0", "HOST:PORT of the admin HTTP; loopback or a token"
    )
    token_file: str = token_file()
    tls_cert: str = tls_file("this store's certificate")
    tls_key: str = tls_file("its private key")
    tls_ca: str = tls_file("the CA that signs the master")
    tls_server_name: str = tls_server_name()
    data_secret_file: str = data_secret_file()
    numa_node: int = setting(-1, "NUMA node to bind and pin to, -1 none", at_least=-1)
    hugepages: str = setting(
        "auto", "huge pages of the host", choices=("auto", "on", "off")
    )
    prefault: str = setting(
        "on", "fault all memory in before joining", choices=("on", "off")
    )
    time_scale: float = setting(1.0, "factor on every duration", at_least=0.001)
    ping_interval_s: float = setting(
        1.0, "seconds between heartbeats", scales=True, at_least=0.001
    )
    rpc_timeout_s: float = setting(
        2.0, "seconds a call to the master may take", at_least=0.001
    )
    grace_s: float = setting(
        5.0, "seconds that reads are served after SIGTERM", scales=True, at_least=0
    )
    idle_s: float = setting(
        300.0,
        "seconds after which an idle connection is closed",
        scales=True,
        at_least=0.001,
    )
    max_connections: int = setting(
        512, "data connections served at once, a thread each", at_least=1
    )

    def __post_init__(self) -> None:
        """Refuses what could not be listened on, dialled or told apart.

        Raises:
            UsageError: an address is not HOST:PORT.
            ValueError: a rail is malformed or named twice, or the store has no name.
        """
        if not self.name:
            raise ValueError("a store needs a name: --name store-0")
        parse_address(self.master, "the master (--master)")
        parse_address(self.heartbeat, "the master's heartbeats (--heartbeat)")
        if not self.rail:
            raise ValueError("a store needs one rail at least: --rail NAME=HOST:PORT")
        names = [rail.name for rail in self.rails]
        if len(set(names)) != len(names):
            raise ValueError(f"rails are named twice in {', '.join(names)}")

    @property
    def rails(self) -> tuple[RailSpec, ...]:
        """The rails, parsed."""
        return tuple(RailSpec.parse(text) for text in self.rail)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailSpec:
    """One rail: where to listen, and what to tell clients (a proxy may stand there)."""

    name: str
    listen: str
    advertise: str = ""

    @classmethod
    def parse(cls, text: str) -> RailSpec:
        """Reads `NAME=LISTEN[,ADVERTISE]`.

        Raises:
            ValueError: it is not that.
        """
        name, equals, rest = text.partition("=")
        listen, _, advertise = rest.partition(",")
        if not equals or not name:
            raise ValueError(f"rail {shown(text)} is not NAME=LISTEN[,ADVERTISE]")
        if not is_name(name):
            raise ValueError(f"rail {shown(name)}: a name is {NAME_RULE}")
        for address in filter(None, (listen, advertise)):
            parse_address(address, f"rail {name}")
        if not listen:
            raise ValueError(f"rail {shown(text)} has no address to listen on")
        return cls(name=name, listen=listen, advertise=advertise)
