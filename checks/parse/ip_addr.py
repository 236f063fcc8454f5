"""`ip -j -d addr`: links with their addresses.

Some versions print `{}` for filtered links; `addr_info` may be missing. The flags
`tentative`, `dadfailed`, `deprecated` are keys that are present only when true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "ip -j -d addr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One address of a link."""

    interface: IPv4Interface | IPv6Interface
    scope: str
    flags: frozenset[str]

    @property
    def ip(self) -> str:
        return str(self.interface.ip)

    @property
    def version(self) -> int:
        return self.interface.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One network device; `kind` is its virtual type ("" for hardware)."""

    name: str
    index: int
    flags: frozenset[str]
    mtu: int
    operstate: str
    link_type: str
    mac: str
    master: str
    lower: str
    kind: str
    slave_kind: str
    parent: str
    addresses: tuple[Address, ...]
    vfs: tuple[Mapping[str, Any], ...]
    calls: frozenset[str]
    """Of a bridge: `nf_call_iptables`, ... that are on for it alone."""

    @property
    def up(self) -> bool:
        """Administratively up and with a carrier."""
        if not {"UP", "LOWER_UP"} <= self.flags:
            return False
        return self.operstate in {"UP", "UNKNOWN", ""}

    def global_addresses(self, version: int = 4) -> tuple[Address, ...]:
        return tuple(
            each
            for each in self.addresses
            if each.version == version and each.scope == "global"
        )


def parse_addr(rows: Any) -> dict[str, Link]:
    """Links by name, in the order of the kernel."""
    if not isinstance(rows, list):
        raise Garbled(SOURCE, "no list of links")
    links = [_link(row) for row in rows if row]
    return {link.name: link for link in links}


@derived
def links(facts: Facts) -> dict[str, Link]:
    """The links of the host's own network namespace."""
    return _links(facts, "")


@derived
def links_in(facts: Facts, where: str) -> dict[str, Link]:
    """The links inside another place, see `Reading.where`."""
    return _links(facts, where)


def _links(facts: Facts, where: str) -> dict[str, Link]:
    every = [
        r for r in facts.find("ip", "addr", where=where) if not r.reading.words[1:]
    ]
    if not every:
        raise Unread("missing", SOURCE, "not collected")
    family = [r for r in every if r.reading.family is None] or every
    merged: dict[str, Link] = {}
    for result in family:
        for name, link in parse_addr(result.json()).items():
            known = merged.get(name)
            merged[name] = link if known is None else _joined(known, link)
    return merged


def _joined(one: Link, other: Link) -> Link:
    """The same link from `ip -4 addr` and `ip -6 addr`."""
    addresses = tuple(dict.fromkeys((*one.addresses, *other.addresses)))
    return Link(
        **{name: getattr(one, name) for name in Link.__slots__ if name != "addresses"},
        addresses=addresses,
    )


_CALLS = ("nf_call_iptables", "nf_call_ip6tables")


def _link(row: Any) -> Link:
    if not isinstance(row, Mapping) or not isinstance(row.get("ifname"), str):
        raise Garbled(SOURCE, "a link without a name")
    details = row.get("linkinfo") or {}
    return Link(
        name=row["ifname"],
        index=int(row.get("ifindex", 0)),
        flags=frozenset(row.get("flags", ())),
        mtu=int(row.get("mtu", 0)),
        operstate=str(row.get("operstate", "")),
        link_type=str(row.get("link_type", "")),
        mac=str(row.get("address", "")).lower(),
        master=str(row.get("master", "")),
        lower=str(row.get("link", "")),
        kind=str(details.get("info_kind", "")),
        slave_kind=str(details.get("info_slave_kind", "")),
        parent=str(row.get("parentdev", "")),
        addresses=tuple(_addresses(row.get("addr_info") or ())),
        vfs=tuple(row.get("vfinfo_list") or ()),
        calls=frozenset(n for n in _CALLS if (details.get("info_data") or {}).get(n)),
    )


def _addresses(rows: Any) -> list[Address]:
    found = []
    for row in rows:
        if not row or row.get("family") not in {"inet", "inet6"}:
            continue
        try:
            interface = ip_interface(f"{row['local']}/{row['prefixlen']}")
        except (KeyError, ValueError) as error:
            raise Garbled(SOURCE, f"an address that is none: {error}") from None
        flags = frozenset(key for key, value in row.items() if value is True)
        scope = str(row.get("scope") or _scope_of(interface))
        found.append(Address(interface=interface, scope=scope, flags=flags))
    return found


def _scope_of(interface: IPv4Interface | IPv6Interface) -> str:
    """What the kernel gives an address of which nobody said a scope."""
    if interface.ip.is_loopback:
        return "host"
    return "link" if interface.version == 6 and interface.ip.is_link_local else "global"
