"""Rails: a selected NIC with its network device and addresses.

A rail is named by the profile or the inventory, else by its place (`rail0` is the NIC
with the lowest PCI address); never by the name of its RDMA device, which differs from
node to node and from boot to boot (nccl#1277, Mooncake PR#2790).

A document may lack everything about RDMA. Then rails are what the IP side shows: up to
date hardware links with a global address that do not carry the default route; without
links, connected routes with a source; without routes, sources named by routing rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.parse.ip_addr import Address, Link, links
from checks.parse.ip_route import Network, routes
from checks.parse.ip_rule import rules
from checks.ports import Port, bdf_of_netdev, natural
from checks.selector import Selection, default_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VIRTUAL = ("lo", "docker", "cni", "flannel", "cali", "veth", "virbr", "tun", "wg")
_VIRTUAL_KINDS = frozenset(
    {"bridge", "veth", "vxlan", "geneve", "dummy", "tun", "openvswitch", "ipip"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One rail. `link` is None where `ip addr` was not read or has no such device."""

    name: str
    netdev: str
    port: Port | None
    link: Link | None
    ips: tuple[str, ...]
    networks: tuple[Network, ...]

    @property
    def ip(self) -> str:
        """Its first address (IPv4 before IPv6); "" without one."""
        return self.ips[0] if self.ips else ""

    @property
    def label(self) -> str:
        """`rail3 (eth3, 13.13.2.13)`."""
        inside = ", ".join(part for part in (self.netdev, self.ip) if part)
        return f"{self.name} ({inside})" if inside else self.name

    @property
    def active(self) -> bool | None:
        """Up with a carrier; None where it is not known."""
        return None if self.link is None else self.link.up

    @property
    def touches(self) -> frozenset[str]:
        names = {self.netdev, *self.ips} - {""}
        return frozenset(names | (self.port.touches if self.port else set()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RailName:
    """What the profile or the inventory says of a rail; empty fields match nothing."""

    name: str
    device: str = ""
    netdev: str = ""
    bdf: str = ""
    mac: str = ""
    address: str = ""


def rails(
    facts: Facts,
    selection: Selection | None,
    names: Sequence[RailName] = (),
    nics: Sequence[str] = (),
) -> tuple[Rail, ...]:
    """The rails of a node, ordered by name; Unread where none can be told."""
    by_link = _links(facts)
    if selection is not None and (selection.chosen or selection.excluded):
        found = [_of_port(port, by_link) for port in selection.chosen]
    else:
        found = _without_rdma(facts, by_link, frozenset(nics))
    named = [_renamed(rail, at, names) for at, rail in enumerate(found)]
    return tuple(sorted(named, key=lambda rail: natural(rail.name)))


def _links(facts: Facts) -> Mapping[str, Link]:
    try:
        return links(facts)
    except Unread:
        return {}


def _of_port(port: Port, by_link: Mapping[str, Link]) -> Rail:
    try:
        netdev = port.netdev()
    except Unread:
        netdev = ""
    return _rail(netdev, port, by_link.get(netdev))


def _rail(netdev: str, port: Port | None, link: Link | None) -> Rail:
    every = (*link.global_addresses(4), *link.global_addresses(6)) if link else ()
    return Rail(
        name="",
        netdev=netdev,
        port=port,
        link=link,
        ips=tuple(each.ip for each in every),
        networks=tuple(_network(each) for each in every),
    )


def _network(address: Address) -> Network:
    return address.interface.network


def _without_rdma(
    facts: Facts, by_link: Mapping[str, Link], nics: frozenset[str]
) -> list[Rail]:
    if by_link:
        avoid = default_devices(facts) - nics
        chosen = [
            link
            for link in by_link.values()
            if (link.name in nics if nics else _may_be_rail(link, avoid))
        ]
        ordered = sorted(chosen, key=lambda link: _place(facts, link))
        return [_rail(link.name, None, link) for link in ordered]
    found = _of_routes(facts) or _of_rules(facts)
    if not found:
        raise Unread("missing", "ip -j -d addr", "not collected: no rail is known")
    return found


def _may_be_rail(link: Link, avoid: frozenset[str]) -> bool:
    hardware = link.kind not in _VIRTUAL_KINDS and link.link_type in {"ether", ""}
    named = not link.name.startswith(_VIRTUAL)
    addressed = bool(link.global_addresses(4) or link.global_addresses(6))
    return hardware and named and addressed and link.name not in avoid


def _place(facts: Facts, link: Link) -> tuple[str, tuple[tuple[int, str], ...]]:
    try:
        return bdf_of_netdev(facts, link.name), natural(link.name)
    except Unread:
        return "", natural(link.name)


def _of_routes(facts: Facts) -> list[Rail]:
    """Connected routes with a preferred source tell device, address and network."""
    try:
        main = routes(facts, 4).get("main", ())
    except Unread:
        return []
    avoid = default_devices(facts)
    connected = [
        route
        for route in main
        if route.scope == "link"
        and route.prefsrc
        and route.dev not in avoid
        and not route.dev.startswith(_VIRTUAL)
    ]
    return [
        Rail(
            name="",
            netdev=route.dev,
            port=None,
            link=None,
            ips=(route.prefsrc,),
            networks=(route.dst,),
        )
        for route in sorted(connected, key=lambda route: natural(route.dev))
    ]


def _of_rules(facts: Facts) -> list[Rail]:
    try:
        every = rules(facts, 4)
    except Unread:
        return []
    hosts = [
        str(rule.src.network_address)
        for rule in every
        if rule.src is not None and rule.src.prefixlen == 32 and not rule.inverted
    ]
    return [
        Rail(name="", netdev="", port=None, link=None, ips=(ip,), networks=())
        for ip in dict.fromkeys(hosts)
    ]


def _renamed(rail: Rail, at: int, names: Sequence[RailName]) -> Rail:
    found = next((each.name for each in names if _is(rail, each)), f"rail{at}")
    return Rail(
        name=found,
        netdev=rail.netdev,
        port=rail.port,
        link=rail.link,
        ips=rail.ips,
        networks=rail.networks,
    )


def _is(rail: Rail, named: RailName) -> bool:
    known = rail.touches | ({rail.link.mac} if rail.link else set())
    said = {named.device, named.netdev, named.bdf, named.mac.lower(), named.address}
    return bool((said - {""}) & known)
