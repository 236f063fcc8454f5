"""Instants of other machines, told on ours.

Monotonic clocks count from the boot of a machine, so the instants in an engine's state
log mean nothing here until the distance of the two clocks is known: measured by asking
for the time, the quickest answer of several, good to half of its round trip. Roles on
this kernel read our own clock; there nothing is shifted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ASKED = 5
_SAME_S = 0.05
"""Nearer than this is one clock: no two machines booted so close together."""


@dataclass(slots=True)
class Clocks:
    """How far the clocks of roles are ahead of ours, measured once a process of theirs.

    `key` is what tells one process of a role from its next one.
    """

    clock: Callable[[], float] = time.monotonic
    _ahead_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def ahead_s(self, role: str, key: int, ask: Callable[[], float]) -> float:
        """Seconds by which the clock of a role is ahead; `ask` reads it."""
        known = self._ahead_s.get((role, key))
        if known is None:
            known = self._measured(ask)
            self._ahead_s[role, key] = known
        return known

    def _measured(self, ask: Callable[[], float]) -> float:
        rounds: list[tuple[float, float]] = []
        for _ in range(_ASKED):
            begin = self.clock()
            theirs = ask()
            end = self.clock()
            rounds.append((end - begin, theirs - (begin + end) / 2))
        trip_s, ahead_s = min(rounds)
        return 0.0 if abs(ahead_s) <= max(_SAME_S, trip_s) else ahead_s


def in_our_time(cache: dict[str, Any], ahead_s: float) -> None:
    """Rewrites the instants in the state of an engine's cache, in place."""
    if not ahead_s:
        return
    logs: Sequence[list[dict[str, Any]]] = (
        cache.get("breaker", {}).get("transitions", []),
        cache.get("quarantine", {}).get("events", []),
    )
    for row in (row for log in logs for row in log):
        row["at"] = float(row["at"]) - ahead_s
    if "now" in cache:
        cache["now"] = float(cache["now"]) - ahead_s
