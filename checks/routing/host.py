"""The route engine of a node, or of a place inside it, built from its facts."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.ip_addr import links, links_in
from checks.parse.ip_route import Hop, Route, all_tables_read, routes, tables_unread
from checks.parse.ip_rule import rules
from checks.routing.fib import Fib
from checks.routing.table import Table, compiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checks.parse.ip_addr import Link
    from checks.parse.ip_rule import PolicyRule

_CONF = "/proc/sys/net/ipv4/conf"


def fib_of(facts: Facts, version: int = 4, where: str = "") -> Fib:
    """Rules and tables as they were dumped; Unread where either is missing."""
    return _fib(facts, version, where)


@derived
def _fib(facts: Facts, version: int, where: str) -> Fib:
    walk = rules(facts, version, where)
    by_table = routes(facts, version, where)
    whole = all_tables_read(facts, version, where)
    by_link = _links(facts, where)
    own = _own(by_link, version)
    local = by_table.get("local") or _made_local(by_table, own, version)
    every = {**by_table, "local": local}
    tables = {name: compiled(name, rows, version) for name, rows in every.items()}
    return Fib(
        version=version,
        rules=walk,
        tables=tables,
        whole=whole,
        merged=_merged(walk, every, version),
        own=own,
        quiet=_quiet(facts) if version == 4 else frozenset(),
        unread={
            name: Unread("garbled", f"ip -j route show table {name}", "unreadable")
            for name in tables_unread(facts, version, where) - {"all"}
        },
    )


def _links(facts: Facts, where: str) -> Mapping[str, Link]:
    try:
        return links_in(facts, where) if where else links(facts)
    except Unread:
        return {}


def _own(by_link: Mapping[str, Link], version: int) -> frozenset[int] | None:
    if not by_link:
        return None
    return frozenset(
        int(address.interface.ip)
        for link in by_link.values()
        for address in link.addresses
        if address.version == version
    )


def _made_local(
    by_table: Mapping[str, Iterable[Route]], own: frozenset[int] | None, version: int
) -> tuple[Route, ...]:
    """Table local from our own addresses, where it was not dumped."""
    address_of = IPv4Address if version == 4 else IPv6Address
    addresses = {str(address_of(each)) for each in own or ()}
    for rows in by_table.values():
        addresses |= {r.prefsrc for r in rows if r.scope == "link" and r.prefsrc}
    hop = Hop(dev="lo", gateway="", weight=1, flags=frozenset())
    return tuple(
        Route(
            dst=ip_network(address),
            table="local",
            type="local",
            hops=(hop,),
            prefsrc=address,
            source=None,
            scope="host",
            protocol="kernel",
            metric=0,
            tos=0,
            mtu=None,
            flags=frozenset(),
        )
        for address in sorted(addresses)
        if ip_address(address).version == version
    )


def _merged(
    walk: tuple[PolicyRule, ...], every: Mapping[str, Iterable[Route]], version: int
) -> Table | None:
    """Tables local and main in one, as IPv4 keeps them until a rule is added."""
    shape = [(rule.priority, rule.table, rule.src) for rule in walk]
    default = [(0, "local", None), (32766, "main", None), (32767, "default", None)]
    if version == 6 or shape != default or every.get("default"):
        return None
    if any(rule.inverted or rule.mask or rule.dst for rule in walk):
        return None
    return compiled("main", [*every["local"], *every.get("main", ())], version)


def _quiet(facts: Facts) -> frozenset[str]:
    """Devices with `ignore_routes_with_linkdown`, set for them or for all."""
    leaf = "ignore_routes_with_linkdown"
    found = set()
    for path in facts.matching(f"{_CONF}/*/{leaf}"):
        try:
            if facts.number(path):
                found.add(path.split("/")[-2])
        except Unread:
            continue
    if "all" in found:
        return frozenset(_links(facts, "")) | found
    return frozenset(found)
