"""The name under which a node tells its peers that it can be reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip, unknown
from checks.parse.hosts import in_hosts, resolved
from checks.parse.ip_addr import links
from checks.parse.ip_route import routes
from checks.parse.listeners import is_loopback
from checks.parse.rdma_link import core_is_absent
from checks.parse.services import services
from checks.rules.declare import Judged, NotHere, fleetwide
from checks.rules.service import service_env
from checks.selector import default_devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    from checks.node import Node

VARIABLES = (
    "MOONCAKE_LOCAL_HOSTNAME",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_HOST_IP",
    "SGLANG_HOST_IP",
)
_REQUIRED = ("MOONCAKE_LOCAL_HOSTNAME", "VLLM_NIXL_SIDE_CHANNEL_HOST")
"""Without these the default is `localhost`."""
_FLAGS = ("--local_hostname", "--local-hostname")
_ANY = frozenset({"0.0.0.0", "::", ""})
_EXPECTED = "an address of the node that every peer can connect to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node says of itself in one variable, and whose address that is."""

    variable: str
    text: str
    address: IPv4Address | IPv6Address | None = None
    network: IPv4Network | IPv6Network | None = None
    netdev: str = ""
    on_rail: bool = False
    is_settled: bool = True
    """Whether it is known that the link is an RDMA rail, or that it is none."""


@fleetwide(
    "mc-local-hostname",
    group="mooncake",
    severity="C",
    why="peers connect to what a node tells: received packet mismatch, empty fields",
    fix=("MOONCAKE_LOCAL_HOSTNAME=<management address of this node>",),
    source=("R26 Mooncake#2270", "R86 vllm#27083", "Mooncake: troubleshooting"),
    needs=("/proc/<pid>/environ", "ip -j -d addr", "getent hosts HOSTNAME"),
    follows=("k8s-dns-hosts", "route-nic-has-ip"),
)
def local_hostname(nodes: Sequence[Node]) -> Iterator[Judged]:
    told: dict[str, dict[str, Told | Outcome]] = {n.name: _all(n) for n in nodes}
    view = _View(nodes, told)
    for node in nodes:
        every = told[node.name]
        if not every:
            yield Judged(node=node, outcome=_silent(node))
        for variable, each in sorted(every.items()):
            outcome = each if isinstance(each, Outcome) else view.judged(node, each)
            yield Judged(node=node, outcome=outcome, subject=variable)
        for variable in view.missing(node):
            yield Judged(node=node, outcome=_unset(), subject=variable)


def _silent(node: Node) -> Outcome:
    try:
        service_env(node)
    except (Unread, NotHere) as error:
        return unknown(error) if isinstance(error, Unread) else skip(error)
    return skip("no name is set: the service looks for one itself")


def _unset() -> Outcome:
    return bad("unset here and set on peers: the default is localhost", _EXPECTED)


def _all(node: Node) -> dict[str, Told | Outcome]:
    """What the node tells, by variable; an Outcome where that is bad by itself."""
    found: dict[str, Told | Outcome] = {}
    for variable in VARIABLES:
        if variable in node.env:
            found[variable] = _read(node, variable, node.env[variable])
    for service in services(node.facts):
        for flag in _FLAGS:
            text = service.option(flag)
            if text is not None:
                found.setdefault(flag, _read(node, flag, text))
    return found


def _read(node: Node, variable: str, text: str) -> Told | Outcome:
    host = _host(text)
    if host in _ANY:
        return bad(f"{text or 'empty'}: no address to connect to", _EXPECTED)
    if host.lower() == "localhost" or is_loopback(host):
        return bad(f"{text}: loopback", _EXPECTED)
    try:
        addresses = _addresses_of(node, host)
        return _owned(node, variable, text, addresses)
    except Unread as error:
        return Told(variable=variable, text=f"{host} ({error.reason})")


def _host(text: str) -> str:
    """HOST of `HOST`, `HOST:PORT`, `[V6]:PORT`, a bare IPv6 address."""
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def _addresses_of(node: Node, host: str) -> tuple[str, ...]:
    try:
        return (str(ip_address(host)),)
    except ValueError:
        pass
    try:
        return resolved(node.facts, host)
    except Unread as error:
        by_file = _by_file(node, host)
        if error.kind not in {"missing", "no tool"} or not by_file:
            raise
        return by_file


def _by_file(node: Node, host: str) -> tuple[str, ...]:
    try:
        return in_hosts(node.facts, host)
    except Unread:
        return ()


def _owned(
    node: Node, variable: str, text: str, addresses: tuple[str, ...]
) -> Told | Outcome:
    """The link of the node that has the address."""
    looped = [each for each in addresses if is_loopback(each)]
    if looped:
        return bad(f"{text} is {looped[0]}: loopback", _EXPECTED)
    if not addresses:
        return bad(f"{text} does not resolve", _EXPECTED)
    rails = {rail.netdev for rail in node.rails if rail.port is not None}
    for link in links(node.facts).values():
        for each in link.addresses:
            if each.ip in addresses:
                return Told(
                    variable=variable,
                    text=text,
                    address=each.interface.ip,
                    network=each.interface.network,
                    netdev=link.name,
                    on_rail=link.name in rails,
                    is_settled=link.name in rails or _is_no_rail(node, link.name),
                )
    return bad(f"{text} is no address of this node", _EXPECTED)


def _is_no_rail(node: Node, netdev: str) -> bool:
    """It carries the default route, or every RDMA port tells another device."""
    if netdev in default_devices(node.facts):
        return True
    try:
        return all(port.netdev() != netdev for port in node.ports)
    except Unread:
        return core_is_absent(node.facts)


class _View:
    """All nodes at once: duplicates, and who can reach whom."""

    def __init__(
        self,
        nodes: Sequence[Node],
        told: Mapping[str, Mapping[str, Told | Outcome]],
    ) -> None:
        self.nodes = nodes
        self.told = told
        self.users: dict[tuple[str, str], list[str]] = {}
        self.places: Counter[tuple[str, bool]] = Counter()
        self.networks: Counter[tuple[str, object]] = Counter()
        self._ways: dict[object, dict[str, bool | None]] = {}
        for name, every in told.items():
            for each in every.values():
                if isinstance(each, Told):
                    key = (each.variable, each.text)
                    self.users.setdefault(key, []).append(name)
                    if each.address is not None:
                        self.places[each.variable, each.on_rail] += 1
                        self.networks[each.variable, each.network] += 1

    def judged(self, node: Node, each: Told) -> Outcome:
        twins = [n for n in self.users[each.variable, each.text] if n != node.name]
        if twins:
            return bad(f"{each.text}, and so tells {sorted(twins)[0]}", _EXPECTED)
        if each.address is None:
            return unknown(f"{each.text}: not known whose address it is", _EXPECTED)
        where = f"{each.text} on {each.netdev}"
        if each.on_rail and self._is_odd(each.variable):
            return bad(f"{where}: an RDMA rail; peers tell other networks", _EXPECTED)
        ways = {n: w for n, w in self._ways_to(each).items() if n != node.name}
        deaf = sorted(n for n, way in ways.items() if way is False)
        if deaf:
            more = f" and {len(deaf) - 1} more" if len(deaf) > 1 else ""
            return bad(f"{where}: no route from {deaf[0]}{more}", _EXPECTED)
        if ways and not any(ways.values()):
            return unknown(f"{where}: routes of its peers are not known", _EXPECTED)
        if not each.is_settled and self._stands_apart(node, each):
            told = "peers tell another network of this node; no word of RDMA ports"
            return unknown(f"{where}: {told}", _EXPECTED)
        return ok(where, _EXPECTED)

    def _is_odd(self, variable: str) -> bool:
        """At least as many nodes tell an address that is on no rail."""
        beside = self.places[variable, False]
        return beside > 0 and beside >= self.places[variable, True]

    def _stands_apart(self, node: Node, each: Told) -> bool:
        """At least as many nodes tell one other network that this node has too."""
        mine = self.networks[each.variable, each.network]
        return any(
            count >= mine and network != each.network and _is_on(node, network)
            for (variable, network), count in self.networks.items()
            if variable == each.variable
        )

    def missing(self, node: Node) -> list[str]:
        """Variables that peers set, that this node does not, and that need a value."""
        env = [each.env for each in services(node.facts) if each.env is not None]
        if not env:
            return []
        set_by_peers = {v for v, _ in self.users}
        return [
            variable
            for variable in _REQUIRED
            if variable in set_by_peers
            and variable not in self.told[node.name]
            and _uses(node, variable)
        ]

    def _ways_to(self, each: Told) -> dict[str, bool | None]:
        """Which nodes have a way to the network of an address; once for each."""
        key = (each.network, each.on_rail)
        if key not in self._ways:
            ways = {n.name: _has_way(n, each) for n in self.nodes}
            self._ways[key] = self._without_strangers(each, ways)
        return self._ways[key]

    def _without_strangers(
        self, each: Told, ways: dict[str, bool | None]
    ) -> dict[str, bool | None]:
        """A network that no peer has, told by a node that shares one with them."""
        mine = [n for n in self.nodes if _is_on(n, each.network)]
        for name, every in self.told.items():
            if ways[name] is not None:
                continue
            for other in every.values():
                if not isinstance(other, Told) or other.network is None:
                    continue
                if all(_is_on(n, other.network) for n in mine):
                    ways[name] = False
        return ways


def _is_on(node: Node, network: object) -> bool:
    return network in _networks(node)


def _networks(node: Node) -> frozenset[object]:
    """Networks that the node is connected to, of links that are up."""
    return node.once("networks it is connected to", lambda: _connected(node))


def _connected(node: Node) -> frozenset[object]:
    try:
        every = links(node.facts)
    except Unread:
        return frozenset()
    return frozenset(
        a.interface.network
        for link in every.values()
        if link.up
        for a in link.addresses
    )


def _uses(node: Node, variable: str) -> bool:
    """A process that reads the variable: a vLLM for its own, else any."""
    if not variable.startswith("VLLM_"):
        return bool(services(node.facts))
    lines = [each.argv for each in services(node.facts)]
    known = [" ".join(argv) for argv in lines if argv]
    return not known or any("vllm" in line for line in known)


def _has_way(node: Node, each: Told) -> bool | None:
    """Whether a node has the network itself or a route to it; None: not known.

    A default route leads to what is on no rail; it leads to no rail of another node.
    """
    network = each.network
    assert network is not None
    if not _networks(node):
        return None
    if _is_on(node, network):
        return True
    try:
        main = routes(node.facts, network.version).get("main", ())
    except Unread:
        return False if each.on_rail else None
    through = [r.dst for r in main if not r.is_default]
    if any(_holds(destination, network) for destination in through):
        return True
    return not each.on_rail and any(route.is_default for route in main)


def _holds(wide: IPv4Network | IPv6Network, narrow: IPv4Network | IPv6Network) -> bool:
    return (
        wide.version == narrow.version
        and wide.prefixlen <= narrow.prefixlen
        and wide.overlaps(narrow)
    )
