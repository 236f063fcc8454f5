"""What a filter does with the first packet of a TCP connection, as far as it is known.

Every rule and chain has a set of outcomes that are possible: accept, drop, go on. A
match that is not understood may hold or not, so both are possible. Only where one
outcome is left it is told; that nothing drops a packet needs every chain to be sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from checks.parse.nft import Chain, Key, Ruleset

ACCEPT, DROP, ON = "accept", "drop", "on"
_ANY = frozenset({ACCEPT, DROP, ON})
INWARD = frozenset({"ingress", "prerouting", "input"})
"""Hooks on the way to a process of the node."""
THROUGH = frozenset({"forward"})
"""The hook of what is routed, or bridged with br_netfilter, from one NIC to another."""
_SILENT = frozenset({"counter", "log", "comment", "mangle", "notrack", "meter"})
_DEPTH = 16
Outcomes = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A new connection to a rail of this node, from its own network.

    Of one that passes through, `out` is the device it leaves by, and `target` may be a
    network: whoever it is for is inside of it.
    """

    netdev: str
    target: str
    network: IPv4Network | IPv6Network
    port: int
    out: str = ""

    @property
    def family(self) -> str:
        return "ip6" if ":" in self.target else "ip"


def outcomes(
    rules: Ruleset, packet: Packet, hooks: frozenset[str] = INWARD
) -> dict[str, Outcomes]:
    """What each chain on the way may do, by its name."""
    found = {}
    for key, chain in sorted(rules.chains.items()):
        if chain.kind == "filter" and chain.hook in hooks and _sees(chain, packet):
            found[chain.label] = _Walk(rules, packet).through(key, _DEPTH)
    return found


def ports_named(rules: Ruleset, span: range) -> tuple[int, ...]:
    """Ports of a range that stand for all of it: its ends, and all near a number."""
    found = {span.start, span.stop - 1}
    for number in _numbers([list(rules.rules.values()), list(rules.sets.values())]):
        found |= {number - 1, number, number + 1}
    return tuple(sorted(port for port in found if port in span))


def _numbers(value: Any) -> set[int]:
    if isinstance(value, int):
        return {value}
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return set().union(*(_numbers(each) for each in value))
    return set()


def _sees(chain: Chain, packet: Packet) -> bool:
    family = chain.key[0]
    if family == "netdev":
        return chain.device == packet.netdev
    return family in {"inet", packet.family}


class _Walk:
    """One packet on its way through one base chain."""

    def __init__(self, rules: Ruleset, packet: Packet) -> None:
        self.rules = rules
        self.packet = packet

    def through(self, key: Key, depth: int) -> Outcomes:
        """A chain; a regular one without a verdict goes on where it was called."""
        chain = self.rules.chains.get(key)
        if chain is None or depth == 0:
            return _ANY
        found: set[str] = set()
        for rule in self.rules.rules.get(key, ()):
            here = self._rule(key, rule, depth)
            found |= here - {ON}
            if "return" in here:
                found.discard("return")
                found.add(chain.policy or ON)
            if ON not in here:
                return frozenset(found)
        return frozenset(found | {chain.policy or ON})

    def _rule(
        self, key: Key, rule: Sequence[Mapping[str, Any]], depth: int
    ) -> set[str]:
        sure = True
        for each in rule:
            ((name, told),) = each.items() if len(each) == 1 else (("?", None),)
            if name == "match":
                holds = self._holds(key, told)
                if holds is False:
                    return {ON}
                sure = sure and holds is True
            elif name not in _SILENT:
                here = self._verdict(key, name, told, depth)
                if here is None:
                    sure = False
                    continue
                return here if sure else here | {ON}
        return {ON}

    def _verdict(self, key: Key, name: str, told: Any, depth: int) -> set[str] | None:
        """The outcomes of a verdict; None for what is none but may end the rule."""
        if name in {ACCEPT, DROP, "return"}:
            return {name}
        if name == "reject":
            return {DROP}
        if name in {"jump", "goto"} and isinstance(told, Mapping):
            there = self.through((*key[:2], str(told.get("target"))), depth - 1)
            if name == "goto" and ON in there:
                return set(there - {ON}) | {"return"}
            return set(there)
        if name == "limit":
            return None
        if name == "xt" and isinstance(told, Mapping):
            if told.get("type") == "match":
                return None
            if told.get("name") == "REJECT":
                return {DROP}
        return set(_ANY)

    # Matches: True, False, or None where it may be either

    def _holds(self, key: Key, told: Any) -> bool | None:
        if not isinstance(told, Mapping):
            return None
        holds = self._equals(key, told.get("left"), told.get("right"))
        operator = told.get("op")
        if operator in {"==", "in"} or holds is None:
            return holds
        return not holds if operator == "!=" else None

    def _equals(self, key: Key, left: Any, right: Any) -> bool | None:
        if not isinstance(left, Mapping):
            return None
        values = self._values(key, right)
        if values is None:
            return None
        payload, meta, ct = (left.get(each) for each in ("payload", "meta", "ct"))
        if isinstance(payload, Mapping):
            return self._payload(payload, values)
        if isinstance(meta, Mapping):
            return self._meta(str(meta.get("key")), values)
        if isinstance(ct, Mapping) and ct.get("key") == "state":
            return "new" in values
        return None

    def _values(self, key: Key, right: Any) -> Sequence[Any] | None:
        """What is compared with, as alternatives; None where that is not known."""
        if isinstance(right, str) and right.startswith("@"):
            return self.rules.sets.get((*key[:2], right[1:]))
        if isinstance(right, Mapping) and isinstance(right.get("set"), list):
            return list(right["set"])
        return right if isinstance(right, list) else [right]

    def _payload(
        self, payload: Mapping[str, Any], values: Sequence[Any]
    ) -> bool | None:
        protocol, field = payload.get("protocol"), payload.get("field")
        if protocol in {"tcp", "th"} and field == "dport":
            return _some(_has_port(each, self.packet.port) for each in values)
        if protocol in {"udp", "icmp", "icmpv6", "sctp", "udplite", "arp"}:
            return False
        if protocol in {"ip", "ip6"} and protocol != self.packet.family:
            return False
        if field in {"protocol", "nexthdr"}:
            return _some(_is_tcp(each) for each in values)
        if field == "daddr":
            target = ip_network(self.packet.target)
            return _some(_covers(each, target) for each in values)
        if field == "saddr":
            return _some(_comes_from(each, self.packet.network) for each in values)
        return None

    def _meta(self, name: str, values: Sequence[Any]) -> bool | None:
        if name in {"iifname", "iif"}:
            return _some(_is_device(each, self.packet.netdev) for each in values)
        if name in {"oifname", "oif"} and self.packet.out:
            return _some(_is_device(each, self.packet.out) for each in values)
        if name == "l4proto":
            return _some(_is_tcp(each) for each in values)
        if name in {"nfproto", "protocol"}:
            mine = {"ip": ("ipv4", "ip"), "ip6": ("ipv6", "ip6")}[self.packet.family]
            return _some(
                each in mine if isinstance(each, str) else None for each in values
            )
        return None


def _some(each: Any) -> bool | None:
    """Whether one of several alternatives holds."""
    every = list(each)
    if True in every:
        return True
    return None if None in every else False


def _has_port(value: Any, port: int) -> bool | None:
    if isinstance(value, int):
        return value == port
    span = value.get("range") if isinstance(value, Mapping) else None
    if isinstance(span, list) and all(isinstance(end, int) for end in span):
        return bool(span[0] <= port <= span[-1])
    return None


def _is_tcp(value: Any) -> bool | None:
    return value in {"tcp", 6} if isinstance(value, str | int) else None


def _is_device(value: Any, netdev: str) -> bool | None:
    if not isinstance(value, str):
        return None
    if value.endswith("*"):
        return netdev.startswith(value[:-1])
    return value == netdev


def _comes_from(value: Any, network: IPv4Network | IPv6Network) -> bool | None:
    """Peers of a network of two or four addresses are behind a router, anywhere."""
    if network.prefixlen < network.max_prefixlen - 2:
        return _covers(value, network)
    everywhere = network.supernet(new_prefix=0)
    return _covers(value, everywhere)


def _covers(value: Any, network: IPv4Network | IPv6Network) -> bool | None:
    """Whether all of a network is meant; None where it is a part of it."""
    try:
        if isinstance(value, str):
            named = ip_network(ip_address(value))
        else:
            prefix = value["prefix"]
            named = ip_network(f"{prefix['addr']}/{prefix['len']}", strict=False)
    except (ValueError, KeyError, TypeError):
        return None
    if named.version != network.version or not named.overlaps(network):
        return False
    return True if named.prefixlen <= network.prefixlen else None
