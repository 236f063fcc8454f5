"""What a system promises of single values, and what it may lose: the checker's input.

A pool is a cache: a miss is legal when the value was removed, evicted, or lost with the
store that held it; and with the master, where nobody else knows the metadata. Which
faults may lose what differs by system and mode, so it is data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chaos.systems.base import Limits

PRESSURE: Final = "pressure"
EXPIRED: Final = "expired"
"""Of a store that nobody broke: its heartbeats were late, and it was taken for dead."""
_PINGS: Final = 3
_LOSES_A_STORE: Final = frozenset({"kill", "restart", "pause", "partition", EXPIRED})
_LOSES_THE_MASTER: Final = frozenset({"kill", "restart"})
_RUNS_FOR_LEADER: Final = frozenset({"kill", "restart", "pause", "partition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """The promises of one system in one mode; `lease_s` in real seconds, 0: no leases.

    `keeps_old`: a write of a key that is there is acknowledged, and changes nothing
    (Mooncake; the reference system answers -705). `store_faults` and `master_faults`
    are the kinds of faults on such roles with which a value may be lost, and `tail_s`
    how long after a fault a role may still be taken for dead: until it is heard again.
    `lingers`: one that came back is another, and what the former held "is there", also
    to a writer, until that is taken for dead (Mooncake).
    `logs_removals`: one takes effect when it is logged, after its answer (Mooncake).
    `open_s`: so long a write without an answer may hold its key (`keeps_old` only).
    """

    keeps_old: bool = False
    lingers: bool = False
    logs_removals: bool = False
    lease_s: float = 0.0
    tail_s: float = 0.0
    open_s: float = 60.0
    store_faults: frozenset[str] = _LOSES_A_STORE
    master_faults: frozenset[str] = _LOSES_THE_MASTER

    def may_lose(self, kind: str, role: str) -> bool:
        """Whether such a fault on such a role may lose values."""
        if kind == PRESSURE:
            return True
        is_store = role.startswith("store")
        faults = self.store_faults if is_store else self.master_faults
        return kind in faults and (is_store or role.startswith("master"))


REFIMPL: Final = Laws()
"""Metadata is in one master's memory. A paused master defers expiry (Mooncake#3937)."""
MOONCAKE: Final = Laws(keeps_old=True, lingers=True)
"""One master (Mooncake 0.3.13)."""
MOONCAKE_HA: Final = Laws(keeps_old=True, lingers=True, master_faults=_RUNS_FOR_LEADER)
"""A new leader without an oplog knows no metadata: whatever makes one loses all."""
MOONCAKE_OPLOG: Final = Laws(
    keeps_old=True, lingers=True, logs_removals=True, master_faults=frozenset()
)
"""A new leader has read the oplog: no fault of one master may lose anything."""

_BY_MODE: Final = {
    ("refimpl", ""): REFIMPL,
    ("mooncake", ""): MOONCAKE,
    ("mooncake", "ha"): MOONCAKE_HA,
    ("mooncake", "oplog"): MOONCAKE_OPLOG,
}


def laws_of(system: str, mode: str, limits: Limits) -> Laws:
    """The laws of a system in a mode, with the times of a running cluster.

    A system that is not known is held to the laws of the reference system.
    """
    laws = _BY_MODE.get((system, mode), REFIMPL)
    # Who is silent is looked for once in a ping interval, and its last one is so old.
    lingers_s = limits.client_ttl_s + 2 * limits.ping_interval_s
    tail_s = lingers_s if laws.lingers else _PINGS * limits.ping_interval_s
    return dataclasses.replace(laws, lease_s=limits.lease_ttl_s, tail_s=tail_s)
