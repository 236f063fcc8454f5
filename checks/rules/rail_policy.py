"""What routing rules and tables say of one rail; shared by the rules about routes."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.ip_addr import Link, links_in
from checks.parse.ip_route import (
    Network,
    Route,
    all_tables_read,
    routes,
    tables_empty,
    tables_unread,
)
from checks.parse.ip_rule import PolicyRule, rules
from checks.parse.rt_tables import RESERVED
from checks.ports import natural
from checks.rails import Rail
from checks.routing.host import fib_of
from checks.routing.query import Query, number
from checks.routing.table import BITS
from checks.rules.declare import NotHere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.node import Node
    from checks.routing.decision import Decision
    from checks.routing.fib import Fib

_RESERVED = frozenset(RESERVED.values())
_NOBODY = frozenset({"local", "broadcast", "multicast"})
_NOT_RAILS = frozenset({"veth", "bridge", "dummy", "tun", "vxlan", "ipip", "sit"})


def version_of(ip: str) -> int:
    """The IP version of an address."""
    return 6 if ":" in ip else 4


def address_of(rail: Rail) -> str:
    """The address of a rail; Unread where it has none."""
    if not rail.ip:
        raise Unread("missing", rail.netdev or rail.name, "the rail has no address")
    return rail.ip


def active(rail: Rail) -> Rail:
    """The rail itself; a question about traffic does not arise on one that is down."""
    if rail.active is False:
        raise NotHere(f"{rail.netdev} is not an active rail")
    return rail


def restricts(rule: PolicyRule, ip: str) -> bool:
    """The rule is about this source, and not about every source."""
    src = rule.src
    if src is None or src.prefixlen == 0 or rule.inverted:
        return False
    return holds(src, ip)


def is_plain(rule: PolicyRule) -> bool:
    """Nothing but source and destination decides whether it matches."""
    more = (rule.oif, rule.tos, rule.ipproto, rule.ports, rule.uids, rule.mask)
    return not (any(more) or rule.l3mdev or rule.detached) and rule.iif in {"", "lo"}


def names_table(rule: PolicyRule) -> bool:
    """It sends to a table that somebody made, not to main, local or default."""
    return bool(rule.table) and rule.table not in _RESERVED


def rail_rule(facts: Facts, ip: str, where: str = "") -> PolicyRule | None:
    """The rule that sends packets from this address to a table of their own."""
    return _rail_rule(facts, ip, where)


@derived
def _rail_rule(facts: Facts, ip: str, where: str) -> PolicyRule | None:
    for rule in rules(facts, version_of(ip), where):
        everywhere = rule.dst is None or rule.dst.prefixlen == 0
        if everywhere and restricts(rule, ip) and is_plain(rule) and names_table(rule):
            return rule
    return None


def shown(rule: PolicyRule) -> str:
    """`rule 103 'from 13.13.2.13 lookup 103'`."""
    words = ["not"] if rule.inverted else []
    words += ["from", _prefix(rule.src)]
    if rule.dst is not None:
        words += ["to", _prefix(rule.dst)]
    if rule.mask:
        words += ["fwmark", f"{rule.mark:#x}/{rule.mask:#x}"]
    if rule.goto is not None:
        words += ["goto", str(rule.goto)]
    words += ["lookup", rule.table] if rule.table else [rule.action]
    if rule.suppress_prefixlen is not None:
        words += ["suppress_prefixlength", str(rule.suppress_prefixlen)]
    return f"rule {rule.priority} '{' '.join(word for word in words if word)}'"


def _prefix(network: Network | None) -> str:
    if network is None or network.prefixlen == 0:
        return "all"
    host = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if host else str(network)


def emptiness(facts: Facts, table: str, version: int) -> str:
    """ "does not exist", "is empty", or "" where it has routes; Unread if unknown."""
    own = tables_empty(facts, version).get(table)
    if own is not None:
        return "is empty" if own[1] else "does not exist"
    if routes(facts, version).get(table):
        return ""
    if table in tables_unread(facts, version):
        raise Unread("garbled", f"ip -j route show table {table}", "unreadable")
    if all_tables_read(facts, version):
        return "does not exist or is empty"
    raise Unread("missing", f"ip -j route show table {table}", "not collected")


def all_routes(facts: Facts, version: int) -> dict[str, tuple[Route, ...]]:
    """The routes of every table; Unread where one that exists was not seen.

    A check that says "no such route anywhere" rests on all of them: on a whole dump of
    all tables, else on main and on each table that a rule names.
    """
    found = routes(facts, version)
    if all_tables_read(facts, version):
        return found
    unread = sorted(tables_unread(facts, version) - {"all"})
    if unread:
        raise Unread("garbled", f"ip -j route show table {unread[0]}", "unreadable")
    missing = sorted({"main", *_named_tables(facts, version)} - set(found))
    if missing:
        what = f"ip -j route show table {missing[0]}"
        raise Unread("missing", what, "not collected")
    return found


def _named_tables(facts: Facts, version: int) -> set[str]:
    try:
        return {rule.table for rule in rules(facts, version) if names_table(rule)}
    except Unread:
        return set()


def rows_of(facts: Facts, rail: Rail) -> tuple[Route, ...]:
    """The routes of the table that a rail's own rule names."""
    ip = address_of(rail)
    rule = rail_rule(facts, ip)
    if rule is None:
        raise NotHere(f"no rule sends packets from {ip} to a table of their own")
    told = emptiness(facts, rule.table, version_of(ip))
    if told:
        raise Unread("empty", f"table {rule.table}", told)
    return routes(facts, version_of(ip))[rule.table]


def decisions(
    fib: Fib, source: str, network: Network
) -> Iterator[tuple[Example, Decision]]:
    """(example, decision) for every part of a network that is routed alike.

    Our own addresses and the broadcast address are left out: nothing is sent there.
    """
    first = int(network.network_address)
    after = first + (1 << (network.max_prefixlen - network.prefixlen))
    src, at = number(source), first
    while at < after:
        end = min(fib.interval_end(at), after)
        decision = fib.lookup(Query(src=src, dst=at))
        if decision.type not in _NOBODY:
            # the network's own address stands for itself alone where it must
            yield Example(at + (at == first and end - at > 1), network), decision
        at = end


class Example:
    """A destination among many; written out only where somebody reads it."""

    __slots__ = ("_at", "_network")

    def __init__(self, at: int, network: Network) -> None:
        self._at = at
        self._network = network

    def __str__(self) -> str:
        size = BITS[self._network.version] // 8
        return str(ip_address(self._at.to_bytes(size, "big")))


def astray(decision: Decision, rail: Rail) -> str:
    """How a packet of this rail goes wrong; "" where it leaves by its own rail."""
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    if decision.error or decision.devices != {rail.netdev}:
        more = "" if decision.error else f", not {rail.netdev}"
        return f"{decision.leaves()}{more}"
    return ""


def engine(node: Node, rail: Rail) -> Fib:
    """The route engine of a node for the family of a rail."""
    return fib_of(node.facts, version_of(address_of(rail)))


def holds(network: Network, ip: str) -> bool:
    """Whether an address is inside of a network."""
    if network.version != version_of(ip):
        return False
    shift = network.max_prefixlen - network.prefixlen
    return int(network.network_address) >> shift == number(ip) >> shift


def within(inner: Network, outer: Network) -> bool:
    """Whether a network is inside of another, or the same."""
    return (
        inner.version == outer.version
        and inner.prefixlen >= outer.prefixlen
        and holds(outer, str(inner.network_address))
    )


def networks_of(rail: Rail) -> tuple[Network, ...]:
    """Its networks, of the family of its address, which hold anybody else."""
    if not rail.ip:
        return ()
    version = version_of(rail.ip)
    return tuple(
        net
        for net in rail.networks
        if net.version == version and net.prefixlen < net.max_prefixlen
    )


def other_networks(node: Node, rail: Rail) -> tuple[tuple[Rail, Network], ...]:
    """The networks of the node's other rails, as far as they are not its own."""
    own = set(networks_of(rail))
    return tuple(
        (other, network)
        for other in node.rails
        if other is not rail and other.active is not False
        for network in networks_of(other)
        if network not in own and rail.ip and network.version == version_of(rail.ip)
    )


def rails_in(facts: Facts, where: str) -> tuple[Rail, ...]:
    """The rails inside a pod or a namespace: what has an address and no default."""
    by_link = links_in(facts, where)
    try:
        main = routes(facts, 4, where).get("main", ())
    except Unread:
        main = ()
    default = {hop.dev for route in main if route.is_default for hop in route.hops}
    found = [
        link
        for link in by_link.values()
        if link.kind not in _NOT_RAILS
        and link.link_type in {"ether", ""}
        and link.name not in default | {"lo"}
        and (link.global_addresses(4) or link.global_addresses(6))
    ]
    return tuple(_inside(link) for link in sorted(found, key=_by_name))


def _by_name(link: Link) -> tuple[tuple[int, str], ...]:
    return natural(link.name)


def _inside(link: Link) -> Rail:
    every = (*link.global_addresses(4), *link.global_addresses(6))
    return Rail(
        name=link.name,
        netdev=link.name,
        port=None,
        link=link,
        ips=tuple(each.ip for each in every),
        networks=tuple(ip_network(each.interface.network) for each in every),
    )
