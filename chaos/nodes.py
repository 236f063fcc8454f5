"""`--max-nodes-down`: how many hosts the faults of a test may take down at one time.

The rule of a scenario's schedule (`chaos.safety.limits`) for faults that a suite orders
as it goes: judged when a fault is about to start, with what is active then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import NotHere
from chaos.scenario.kinds import Effect, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from chaos.faults.base import Fault
    from chaos.systems.base import Cluster

CAPABILITY = "max_nodes_down"


def hosts_down(faults: Iterable[Fault], cluster: Cluster) -> frozenset[str]:
    """The hosts on which something cannot be used while these faults are active."""
    known = kinds()
    found: set[str] = set()
    for fault in faults:
        kind = known.get(fault.kind)
        if kind is None or kind.effect is Effect.DOWN:
            found |= _domain(fault, cluster)
    return frozenset(found)


def node_limit(
    most: int, cluster: Callable[[], Cluster], target: str
) -> Callable[[Fault, Iterable[Fault]], None]:
    """A guard for `Injector`: refuses a fault that would take too many hosts down."""

    def guard(fault: Fault, active: Iterable[Fault]) -> None:
        """Judges one more fault beside the active ones.

        Raises:
            NotHere: More than `most` hosts would be down; nothing was done.
        """
        down = hosts_down([*active, fault], cluster())
        if len(down) > most:
            names = ", ".join(sorted(down))
            reason = f"{len(down)} hosts would be down ({names}), {most} may be"
            raise NotHere(capability=CAPABILITY, target=target, reason=reason)

    return guard


def _domain(fault: Fault, cluster: Cluster) -> set[str]:
    """A fault's own word, else the hosts of the roles that it is on."""
    told: Iterable[str] | None = getattr(fault, "domain", None)
    if told is not None:
        return set(told)
    owners = {link.owner for link in getattr(fault, "links", ())}
    roles = owners or {fault.target.partition(".")[0].partition(" ")[0]}
    known = {*cluster.masters, *cluster.stores, *cluster.engines}
    return {cluster.host_of(role) for role in roles & known}
