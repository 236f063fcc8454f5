"""One routing table, made for longest-prefix matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from checks.parse.ip_route import Route

BITS = {4: 32, 6: 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Routes by length and prefix, longest first; of one prefix in kernel order."""

    name: str
    by_length: tuple[tuple[int, Mapping[int, tuple[Route, ...]]], ...]
    """(how far an address is shifted to be a key of this length, routes by key)."""

    def matches(self, dst: int) -> Iterator[tuple[Route, ...]]:
        """The routes of every prefix that covers an address, longest prefix first."""
        for shift, found in self.by_length:
            routes = found.get(dst >> shift)
            if routes is not None:
                yield routes

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(first address, first address after) of every prefix."""
        for shift, found in self.by_length:
            for key in found:
                yield key << shift, (key + 1) << shift

    @property
    def is_empty(self) -> bool:
        return not self.by_length


def compiled(name: str, routes: Iterable[Route], version: int) -> Table:
    """A table of these routes.

    Among routes of one prefix the kernel asks those with the greater TOS first, then
    those with the smaller metric, then in the order in which they were added. Routes of
    table local come before those of main where both are one (see `Fib`).
    """
    found: dict[int, dict[int, list[Route]]] = {}
    bits = BITS[version]
    for route in routes:
        shift = bits - route.dst.prefixlen
        key = int(route.dst.network_address) >> shift
        found.setdefault(shift, {}).setdefault(key, []).append(route)
    return Table(
        name=name,
        by_length=tuple(
            (shift, {key: _in_order(same) for key, same in found[shift].items()})
            for shift in sorted(found)
        ),
    )


def _in_order(routes: list[Route]) -> tuple[Route, ...]:
    if len(routes) == 1:
        return tuple(routes)
    return tuple(sorted(routes, key=lambda r: (r.table != "local", -r.tos, r.metric)))
