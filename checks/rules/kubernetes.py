"""What rules about Kubernetes share: whether it is there, and its networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, Unread
from checks.parse.cni_conf import cni_directory
from checks.parse.garbled import Garbled
from checks.parse.kubectl import Object, is_asked, items, label_of, part
from checks.rules.declare import NotHere

if TYPE_CHECKING:
    from checks.node import Node
    from checks.rails import Rail

NAD = "network-attachment-definition"
_ABSENT = "no Kubernetes on this node"
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Addresses that the IPAM of a network hands out."""

    network: Network
    first: Address
    last: Address

    def overlaps(self, other: Range) -> bool:
        if self.network.version != other.network.version:
            return False
        return int(self.first) <= int(other.last) and int(other.first) <= int(self.last)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One NetworkAttachmentDefinition, as far as its configuration says."""

    label: str
    types: tuple[str, ...]
    master: str
    mtu: int | None
    ranges: tuple[Range, ...]


def needs_kubernetes(node: Node) -> None:
    """Raises `NotHere` where the node is none of Kubernetes, as somebody saw."""
    expected = node.profile.kubernetes.expected
    if expected is False:
        raise NotHere(f"{_ABSENT} (profile)")
    if expected or is_asked(node.facts) or _has_pods(node.facts):
        return
    if cni_directory(node.facts) is None:
        raise NotHere(_ABSENT)


def _has_pods(facts: Facts) -> bool:
    return any(where.startswith("pod:") for where in facts.places())


def definition(each: Object) -> Definition:
    """Reads the configuration of a NAD, which is JSON as text."""
    return _definition(label_of(each), str(part(each, "spec").get("config", "")))


@lru_cache(maxsize=4096)
def _definition(label: str, text: str) -> Definition:
    """The same for every node of a cluster, so it is read once."""
    if not text.strip():
        return Definition(label=label, types=(), master="", mtu=None, ranges=())
    try:
        config = json.loads(text)
    except ValueError as error:
        raise Garbled(f"NetworkAttachmentDefinition {label}", str(error)) from None
    if not isinstance(config, Mapping):
        raise Garbled(f"NetworkAttachmentDefinition {label}", "no object")
    chain = items(config, "plugins") or [config]
    main = chain[0]
    mtu = next((p["mtu"] for p in chain if isinstance(p.get("mtu"), int)), None)
    return Definition(
        label=label,
        types=tuple(str(plugin.get("type", "")) for plugin in chain),
        master=str(main.get("master", "")),
        mtu=mtu if isinstance(mtu, int) and mtu > 0 else None,
        ranges=tuple(_ranges(part(main, "ipam"), label)),
    )


def _ranges(ipam: Mapping[str, Any], label: str) -> list[Range]:
    """`host-local` (`ranges`, `subnet`) and `whereabouts` (`range`, `ipRanges`)."""
    rows: list[Mapping[str, Any]] = [ipam, *items(ipam, "ipRanges")]
    nested = ipam.get("ranges")
    for group in nested if isinstance(nested, list) else []:
        rows.extend(items({"rows": group}, "rows"))
    return [_range(row, label) for row in rows if row.get("range") or row.get("subnet")]


def _range(row: Mapping[str, Any], label: str) -> Range:
    text = str(row.get("range") or row.get("subnet"))
    first, dash, rest = text.partition("-")
    try:
        network = ip_network(rest if dash else text, strict=False)
        start = row.get("rangeStart") or row.get("range_start")
        end = row.get("rangeEnd") or row.get("range_end")
        start = start or (first if dash else None)
        return Range(
            network=network,
            first=ip_address(str(start)) if start else network.network_address,
            last=ip_address(str(end)) if end else network.broadcast_address,
        )
    except ValueError as error:
        raise Garbled(f"NetworkAttachmentDefinition {label}", str(error)) from None


def known_rails(node: Node) -> tuple[Rail, ...]:
    """The rails with a network device; none where nobody looked for them."""
    try:
        return tuple(rail for rail in node.rails if rail.netdev)
    except Unread as error:
        if error.kind != "missing":
            raise
        return ()


def rail_mtu(node: Node, netdev: str) -> int:
    """The MTU of a network device of the host."""
    for rail in known_rails(node):
        if rail.netdev == netdev and rail.link is not None and rail.link.mtu:
            return rail.link.mtu
    found = node.facts.number(f"/sys/class/net/{netdev}/mtu")
    if found <= 0:
        raise Unread("garbled", netdev, "no MTU")
    return found
