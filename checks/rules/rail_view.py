"""Every rail of the fleet by name and address, so that N squared pairs cost N.

For one source, all destinations between two neighbouring prefixes of its tables are
routed alike (`Fib.spread`). The addresses of a rail on all nodes are kept sorted, so
that one lookup decides for each run of them: every pair is predicted, none one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.routing.query import Query, number
from checks.rules.rail_pairs import UNPAIRED, Names, pair_names
from checks.rules.rail_policy import astray, engine, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.node import Node
    from checks.rails import Rail
    from checks.routing.decision import Decision
    from checks.routing.fib import Fib


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One rail name on all nodes: addresses in order, and which node has each."""

    numbers: tuple[int, ...]
    texts: tuple[str, ...]
    owners: tuple[int, ...]
    places: dict[int, list[int]]

    def mine(self, node: int, first: int, after: int) -> int:
        """How many of the addresses from `first` on, before `after`, a node owns."""
        return sum(first <= at < after for at in self.places.get(node, ()))


@dataclass(slots=True, kw_only=True)
class Reach:
    """How the addresses of peers are reached from one rail."""

    pairs: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)
    refusal: tuple[str, Decision] | None = None
    """The first peer that a route or rule refuses on purpose, and how."""
    refused: Unread | None = None

    def told(self) -> str:
        """The first pairs that go wrong, and how many more there are."""
        shown = "; ".join(self.examples[:3])
        return f"{shown} ({self.wrong} of {self.pairs} pairs)"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The rails of all nodes by (IP version, rail name)."""

    groups: dict[tuple[int, str], Group]
    index: dict[int, int]
    dark: int
    """How many nodes do not tell their rails."""
    pairs: Names = field(default_factory=dict)

    def name(self, node: Node, rail: Rail) -> str:
        """What the rail is called on other nodes; "" where nobody knows."""
        return self.pairs.get((self.index[id(node)], rail.name), rail.name)

    def names(self, node: Node, rail: Rail) -> tuple[str, ...]:
        """The names under which its like may be found on other nodes."""
        name = self.name(node, rail)
        if name != UNPAIRED:
            return (name,)
        return tuple(sorted({name for _, name in self.groups}))

    def same(self, node: Node, rail: Rail) -> Reach:
        """Predicts every pair from a rail to the same rail elsewhere."""
        return self.reach(node, rail, self.names(node, rail))

    def reach(self, node: Node, rail: Rail, names: Sequence[str]) -> Reach:
        """Predicts every pair from a rail to the rails of these names elsewhere."""
        found = Reach()
        try:
            fib = engine(node, rail)
            for name in names:
                group = self.groups.get((version_of(rail.ip), name))
                if group is not None:
                    self._spread(node, rail, group, fib, found)
        except Unread as error:
            found.refused = error
        return found

    def _spread(
        self, node: Node, rail: Rail, group: Group, fib: Fib, found: Reach
    ) -> None:
        me = self.index[id(node)]
        query = Query(src=number(rail.ip), dst=0)
        for decision, first, after in fib.spread(query, group.numbers):
            if decision.is_local:
                continue
            count = after - first - group.mine(me, first, after)
            if not count:
                continue
            found.pairs += count
            wrong = astray(decision, rail)
            if wrong:
                found.wrong += count
                there = group.texts[first if group.owners[first] != me else after - 1]
                if found.refusal is None and decision.is_refused:
                    found.refusal = (there, decision)
                found.examples.append(f"{rail.ip} → {there} {wrong}")

    def peers(self, node: Node, rail: Rail, names: Sequence[str]) -> int:
        """How many addresses of other nodes these rails have."""
        me = self.index[id(node)]
        groups = [self.groups.get((version_of(rail.ip), name)) for name in names]
        return sum(
            len(group.numbers) - group.mine(me, 0, len(group.numbers))
            for group in groups
            if group is not None
        )


def view(nodes: Sequence[Node]) -> View:
    """The view of these nodes. It is of a fleet, so no node's facts may keep it."""
    found: dict[tuple[int, str], list[tuple[int, str, int]]] = {}
    pairs = pair_names(nodes)
    dark = 0
    for at, node in enumerate(nodes):
        try:
            rails = node.rails
        except Unread:
            dark += 1
            continue
        for rail in rails:
            if rail.ip and rail.active is not False:
                key = (version_of(rail.ip), pairs.get((at, rail.name), rail.name))
                found.setdefault(key, []).append((number(rail.ip), rail.ip, at))
    return View(
        groups={key: _group(rows) for key, rows in found.items()},
        index={id(node): at for at, node in enumerate(nodes)},
        dark=dark,
        pairs=pairs,
    )


def _group(rows: list[tuple[int, str, int]]) -> Group:
    rows.sort()
    places: dict[int, list[int]] = {}
    for at, (_, _, owner) in enumerate(rows):
        places.setdefault(owner, []).append(at)
    return Group(
        places=places,
        numbers=tuple(row[0] for row in rows),
        texts=tuple(row[1] for row in rows),
        owners=tuple(row[2] for row in rows),
    )
