"""Whether a policy rule matches a query (`fib_rule_match`, `fib4_rule_match`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.routing.query import UDP

if TYPE_CHECKING:
    from checks.parse.ip_route import Network
    from checks.parse.ip_rule import PolicyRule
    from checks.routing.query import Query

_PROTOCOLS = {
    "icmp": 1,
    "igmp": 2,
    "tcp": 6,
    "udp": 17,
    "dccp": 33,
    "gre": 47,
    "esp": 50,
    "ah": 51,
    "ipv6-icmp": 58,
    "sctp": 132,
}
_IPV4_BITS = 32
_Prefix = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """A rule with its selectors as numbers; None selects everything."""

    rule: PolicyRule
    src: _Prefix | None
    dst: _Prefix | None
    protocol: int | None
    sport: tuple[int, int] | None
    dport: tuple[int, int] | None
    uids: tuple[int, int] | None
    default_protocol: int
    is_plain: bool
    """Only source, destination and mark select: the common case."""

    @classmethod
    def of(cls, rule: PolicyRule, bits: int) -> Matcher:
        ports = dict(text.split("=", 1) for text in rule.ports)
        rest = (rule.iif, rule.oif, rule.tos, rule.ipproto, rule.ports, rule.uids)
        return cls(
            rule=rule,
            src=_prefix(rule.src, bits),
            dst=_prefix(rule.dst, bits),
            protocol=_protocol(rule.ipproto),
            sport=_span(ports, "sport"),
            dport=_span(ports, "dport"),
            uids=_uids(rule.uids),
            default_protocol=UDP if bits == _IPV4_BITS else 0,
            is_plain=not (any(rest) or rule.l3mdev or rule.detached),
        )

    def matches(self, query: Query) -> bool:
        """Whether the rule takes part; a rule with `not` turns all of it around."""
        return self._selects(query) != self.rule.inverted

    def excludes(self, src: int) -> bool:
        """Whether it matches no packet of this source, whatever else is in it."""
        if self.src is None or self.rule.inverted:
            return False
        return src >> self.src[1] != self.src[0]

    def dst_range(self) -> tuple[int, ...]:
        """(first address, first address after) of its destinations, if it has any."""
        if self.dst is None:
            return ()
        key, shift = self.dst
        return key << shift, (key + 1) << shift

    def _selects(self, query: Query) -> bool:
        src, dst, rule = self.src, self.dst, self.rule
        if src is not None and query.src >> src[1] != src[0]:
            return False
        if dst is not None and query.dst >> dst[1] != dst[0]:
            return False
        if (rule.mark ^ query.mark) & rule.mask:
            return False
        return self.is_plain or self._selects_more(query)

    def _selects_more(self, query: Query) -> bool:
        rule = self.rule
        if rule.detached or (rule.iif and rule.iif != query.iif):
            return False
        if rule.oif and rule.oif != query.oif:
            return False
        if rule.l3mdev:
            return _in_vrf(query)
        return (
            (not rule.tos or rule.tos == query.tos)
            and self._carries(query.protocol)
            and _within(query.sport, self.sport)
            and _within(query.dport, self.dport)
            and _within(query.uid, self.uids)
        )

    def _carries(self, protocol: int | None) -> bool:
        if self.protocol is None:
            return True
        return self.protocol == (
            self.default_protocol if protocol is None else protocol
        )


def _in_vrf(query: Query) -> bool:
    """Packets bound to no device are in no VRF."""
    if query.oif:
        raise Unread("missing", "ip -j -d link", "VRFs of devices are not read")
    return False


def _within(value: int, span: tuple[int, int] | None) -> bool:
    return span is None or span[0] <= value <= span[1]


def _prefix(network: Network | None, bits: int) -> _Prefix | None:
    if network is None or network.prefixlen == 0:
        return None
    shift = bits - network.prefixlen
    return int(network.network_address) >> shift, shift


def _protocol(name: str) -> int | None:
    if not name:
        return None
    if name.isdigit():
        return int(name)
    return _PROTOCOLS.get(name, -1)


def _span(ports: dict[str, str], end: str) -> tuple[int, int] | None:
    if end in ports:
        return int(ports[end]), int(ports[end])
    if f"{end}_start" not in ports:
        return None
    first = int(ports[f"{end}_start"])
    return first, int(ports.get(f"{end}_end", first))


def _uids(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, _, last = text.partition("-")
    return int(first or 0), int(last or first)
