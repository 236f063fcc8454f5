"""The walk over rules and tables of one network namespace and address family.

Follows `fib_rules_lookup`, `fib_table_lookup` and `ip_route_output_key_hash` of Linux.
Where something that decides was not collected it raises `Unread`: no guess is a route.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.parse.ip_route import Hop
from checks.routing.decision import ERRORS, FOREIGN, RULE_ERRORS, UNREACHABLE, Decision
from checks.routing.match import Matcher
from checks.routing.query import LOOPBACK, Query
from checks.routing.table import BITS, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from checks.parse.ip_route import Route
    from checks.parse.ip_rule import PolicyRule

_LOCAL_HOP = Hop(dev=LOOPBACK, gateway="", weight=1, flags=frozenset())
_SOURCES = 1024
_DEAD = frozenset({"dead"})
_DOWN = frozenset({"dead", "linkdown"})


@dataclass(frozen=True, kw_only=True)
class Fib:
    """Rules and tables; `tables` has `local` always, others as far as they were read.

    `whole`: all tables were dumped, so that one which is not here does not exist.
    `own`: our own addresses; None where they are not known.
    `quiet`: devices whose routes are passed over while they have no carrier.
    """

    version: int
    rules: tuple[PolicyRule, ...]
    tables: Mapping[str, Table]
    whole: bool
    merged: Table | None = None
    own: frozenset[int] | None = None
    quiet: frozenset[str] = frozenset()
    unread: Mapping[str, Unread] = field(default_factory=dict)
    _by_source: dict[int, Sequence[tuple[int, Matcher]]] = field(default_factory=dict)

    @cached_property
    def matchers(self) -> tuple[Matcher, ...]:
        """The rules, ready to be matched."""
        return tuple(Matcher.of(rule, BITS[self.version]) for rule in self.rules)

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where decisions may change: between two cuts all destinations are alike."""
        tables = [*self.tables.values(), *([self.merged] if self.merged else [])]
        ends = {end for table in tables for both in table.ranges() for end in both}
        for matcher in self.matchers:
            ends.update(matcher.dst_range())
        return tuple(sorted(ends))

    def interval_end(self, dst: int) -> int:
        """The first address after `dst` whose decision may differ."""
        at = bisect_right(self.cuts, dst)
        return self.cuts[at] if at < len(self.cuts) else 1 << BITS[self.version]

    def lookup(self, query: Query) -> Decision:
        """What `ip route get` would say; Unread where a table it needs is unknown."""
        if self._is_foreign(query.src):
            return Decision(error=FOREIGN)
        found = self._walk(query)
        if found.error and query.oif and self.version == 4:
            hop = Hop(dev=query.oif, gateway="", weight=1, flags=frozenset())
            return Decision(hops=(hop,))
        return found

    def _is_foreign(self, src: int) -> bool:
        """A source that is not ours: the kernel of IPv4 refuses to send from it."""
        if self.version == 6 or not src or self.own is None or src in self.own:
            return False
        table = self.merged or self.tables["local"]
        found = _search(table, Query(dst=src), self.quiet)
        return found is None or not found.is_local

    def _walk(self, query: Query) -> Decision:
        if self.merged is not None:
            found = _search(self.merged, query, self.quiet)
            missing = Decision(error=UNREACHABLE)
            return replace(found, table=self.merged.name) if found else missing
        least = 0
        for at, matcher in self._about(query.src):
            if at < least or not matcher.matches(query):
                continue
            if matcher.rule.goto is not None:
                least = self._target(at, matcher.rule.goto)
                continue
            decided = self._act(matcher.rule, query)
            if decided is not None:
                return decided
        return Decision(error=UNREACHABLE)

    def _about(self, src: int) -> Sequence[tuple[int, Matcher]]:
        """(place, matcher) of the rules that may match packets of this source."""
        found = self._by_source.get(src)
        if found is None:
            every = enumerate(self.matchers)
            found = tuple((at, each) for at, each in every if not each.excludes(src))
            if len(self._by_source) < _SOURCES:
                self._by_source[src] = found
        return found

    def _target(self, at: int, priority: int) -> int:
        """Where a goto leads; past the rule itself where its target is missing."""
        for later in range(at + 1, len(self.rules)):
            if self.rules[later].priority == priority:
                return later
        return at + 1

    def _act(self, rule: PolicyRule, query: Query) -> Decision | None:
        """The decision of a rule that matches; None lets the walk go on."""
        if rule.action in RULE_ERRORS:
            return Decision(error=RULE_ERRORS[rule.action], rule=rule)
        if rule.action == "nop" or not rule.table:
            return None
        table = self._table(rule.table)
        found = None if table is None else _search(table, query, self.quiet)
        if found is None or (not found.error and _suppressed(found, rule)):
            return None
        return Decision(
            hops=found.hops,
            type=found.type,
            error=found.error,
            table=rule.table,
            rule=rule,
            route=found.route,
        )

    def _table(self, name: str) -> Table | None:
        """A table; None where it does not exist."""
        found = self.tables.get(name)
        if found is not None:
            return found
        if name in self.unread:
            raise self.unread[name]
        if self.whole or name == "default":
            return None
        raise Unread("missing", f"ip -j route show table {name}", "not collected")

    def spread(
        self, query: Query, targets: Sequence[int]
    ) -> Iterator[tuple[Decision, int, int]]:
        """Decisions for sorted destinations: (decision, first index, index after).

        Destinations between two neighbouring prefixes of any table or rule cannot be
        told apart by the kernel, so that one lookup speaks for all of them.
        """
        at = 0
        while at < len(targets):
            dst = targets[at]
            end = self.interval_end(dst)
            after = bisect_left(targets, end, at)
            asked = Query(dst=dst, src=query.src, oif=query.oif, mark=query.mark)
            yield self.lookup(asked), at, after
            at = after


def _search(table: Table, query: Query, quiet: frozenset[str]) -> Decision | None:
    """The longest prefix with a route that may be used; None where there is none."""
    for routes in table.matches(query.dst):
        for route in routes:
            if route.tos and route.tos != query.tos:
                continue
            if route.source is not None and not _from(route, query.src):
                continue
            if route.type == "throw":
                return None
            if route.type in ERRORS:
                return Decision(error=ERRORS[route.type], type=route.type, route=route)
            hops = _usable(route, query.oif, quiet)
            if route.type == "local" and (hops or not route.hops):
                return Decision(hops=(_LOCAL_HOP,), type="local", route=route)
            if hops:
                hops = _equals(route, routes, hops, query, quiet)
                return Decision(hops=hops, type=route.type, route=route)
    return None


def _from(route: Route, src: int) -> bool:
    source = route.source
    assert source is not None
    shift = BITS[source.version] - source.prefixlen
    return int(source.network_address) >> shift == src >> shift


def _usable(route: Route, oif: str, quiet: frozenset[str]) -> tuple[Hop, ...]:
    return tuple(
        hop
        for hop in route.hops
        if (not oif or hop.dev == oif)
        and not hop.flags & _DEAD
        and not (hop.dev in quiet and hop.flags & _DOWN)
    )


def _equals(
    route: Route,
    routes: Sequence[Route],
    hops: tuple[Hop, ...],
    query: Query,
    quiet: frozenset[str],
) -> tuple[Hop, ...]:
    """All hops that the kernel may choose instead.

    Equal default routes through gateways are used by turns as their neighbours live
    (`fib_select_default`); equal routes of IPv6 are one multipath route.
    """
    if len(routes) == 1 or query.oif:
        return hops
    if route.dst.version == 4 and (route.dst.prefixlen or not hops[0].gateway):
        return hops
    equal = [
        hop
        for other in routes
        if (other.tos, other.metric, other.table, other.type)
        == (route.tos, route.metric, route.table, route.type)
        and (other.source is None or _from(other, query.src))
        for hop in _usable(other, query.oif, quiet)
    ]
    return tuple(dict.fromkeys((*hops, *equal)))


def _suppressed(found: Decision, rule: PolicyRule) -> bool:
    if rule.suppress_ifgroup:
        raise Unread("missing", "ip -j -d addr", "groups of devices are not read")
    length = rule.suppress_prefixlen
    route = found.route
    return length is not None and route is not None and route.dst.prefixlen <= length
