"""`ip -j neigh`: who answers for an address on a link.

`state` is a list (`["REACHABLE"]`); there is no `lladdr` where it is FAILED or
INCOMPLETE. An address that was not spoken to lately has no entry: absence proves
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "ip -j neigh"
DEAD = frozenset({"FAILED", "INCOMPLETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One entry of the ARP or neighbour table; `mac` is "" where nobody answered."""

    ip: str
    dev: str
    mac: str
    states: frozenset[str]

    @property
    def is_dead(self) -> bool:
        """It was asked for and did not answer."""
        return bool(self.states & DEAD) or not (self.mac or self.states)


def parse_neigh(rows: Any) -> tuple[Neighbour, ...]:
    """Entries in the order of the kernel."""
    if not isinstance(rows, list):
        raise Garbled(SOURCE, "no list of neighbours")
    return tuple(_neighbour(row) for row in rows if row)


@derived
def neighbours(facts: Facts) -> tuple[Neighbour, ...]:
    """The neighbours of the host, of every dump there is."""
    dumps = [r for r in facts.find("ip", "neigh") if not r.reading.words[1:]]
    if not dumps:
        raise Unread("missing", SOURCE, "not collected")
    found: dict[Neighbour, None] = {}
    for result in dumps:
        found.update(dict.fromkeys(parse_neigh(result.json())))
    return tuple(found)


def _neighbour(row: Any) -> Neighbour:
    if not isinstance(row, Mapping) or not isinstance(row.get("dst"), str):
        raise Garbled(SOURCE, "a neighbour without an address")
    state = row.get("state", ())
    return Neighbour(
        ip=row["dst"],
        dev=str(row.get("dev", "")),
        mac=str(row.get("lladdr", "")).lower(),
        states=frozenset([state] if isinstance(state, str) else state),
    )
