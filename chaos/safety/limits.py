"""Blast radius: how much of a system may be broken at one time. Pure.

Rules, and whose idea they are: never more hosts down than asked for (Chaos Mesh modes),
never more than a minority of the masters (quorum guard), one fault a host unless faults
were composed on purpose (the node allocator of Scylla's SCT), hosts only that opted in
and environments that nobody protects (tag gating of AWS FIS).
A schedule is judged before anything is injected: what breaks a rule does not start.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

H = TypeVar("H")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastLimits:
    """What may be broken at once; the defaults are the careful ones."""

    max_nodes_down: int = 1
    allow_quorum_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWindow:
    """One fault as planned: where it acts, and from when to when.

    `down` has the roles that nobody can use while it is active; a role that is only
    slow is in `roles` alone. Faults of one `group` were composed on purpose. The end
    does not belong to the window: a fault is undone before the next one begins.
    """

    name: str
    roles: frozenset[str]
    down: frozenset[str] = frozenset()
    begin_s: float
    end_s: float
    group: str = ""

    def overlaps(self, other: FaultWindow) -> bool:
        """Whether one of them begins while the other is active."""
        return self.begin_s < other.end_s and other.begin_s < self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What the rules must know of a system: its masters, and where roles live."""

    masters: frozenset[str]
    host_of: Callable[[str], str]

    def hosts(self, roles: Iterable[str]) -> frozenset[str]:
        return frozenset(self.host_of(role) for role in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a plan does not start, and what would make it start."""

    problem: str
    fix: str
    faults: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return f"{self.problem}; {self.fix}"


def refusals(
    windows: Sequence[FaultWindow], limits: BlastLimits, topology: Topology
) -> list[Refusal]:
    """Everything about a schedule that is too much; empty when it may start."""
    return [
        *_too_many_down(windows, limits, topology),
        *_quorum_lost(windows, limits, topology),
        *_not_composed(windows, topology),
    ]


def host_refusals(hosts: Iterable[H], why_not: Callable[[H], str]) -> list[Refusal]:
    """Hosts that nobody offered, or whose environment is protected.

    `why_not` is the inventory's own word on a host, "" where faults are let in.
    """
    reasons = [reason for host in hosts if (reason := why_not(host))]
    return [
        Refusal(problem=reason, fix="only hosts that opted in are broken")
        for reason in reasons
    ]


def _moments(
    windows: Sequence[FaultWindow],
) -> Iterator[tuple[float, list[FaultWindow]]]:
    """Every instant at which a fault begins, with all that are active then.

    What is broken only grows when something begins, so no other instant is worse.
    """
    for at_s in sorted({window.begin_s for window in windows}):
        active = [
            window
            for window in windows
            if window.begin_s <= at_s < window.end_s or window.begin_s == at_s
        ]
        yield at_s, active


def _too_many_down(
    windows: Sequence[FaultWindow], limits: BlastLimits, topology: Topology
) -> list[Refusal]:
    for at_s, active in _moments(windows):
        hosts = frozenset[str]().union(
            *(topology.hosts(window.down) for window in active)
        )
        if len(hosts) > limits.max_nodes_down:
            problem = (
                f"{len(hosts)} hosts are down at {at_s:g} s ({_named(hosts)}),"
                f" max_nodes_down is {limits.max_nodes_down}"
            )
            fix = f"raise max_nodes_down to {len(hosts)}, or let the faults take turns"
            return [Refusal(problem=problem, fix=fix, faults=_names(active))]
    return []


def _quorum_lost(
    windows: Sequence[FaultWindow], limits: BlastLimits, topology: Topology
) -> list[Refusal]:
    """A minority of masters may be down: the rest must be more than half of all."""
    masters = topology.masters
    if limits.allow_quorum_loss or not masters:
        return []
    for at_s, active in _moments(windows):
        down = masters.intersection(
            itertools.chain.from_iterable(window.down for window in active)
        )
        if len(masters) - len(down) <= len(masters) // 2 and down:
            problem = (
                f"{len(down)} of {len(masters)} masters are down at {at_s:g} s"
                f" ({_named(down)}): the quorum is lost"
            )
            fix = "say `allow_quorum_loss: true` if that is what is tested"
            return [Refusal(problem=problem, fix=fix, faults=_names(active))]
    return []


def _not_composed(windows: Sequence[FaultWindow], topology: Topology) -> list[Refusal]:
    for one, other in itertools.combinations(windows, 2):
        if one.group and one.group == other.group:
            continue
        shared = topology.hosts(one.roles) & topology.hosts(other.roles)
        if shared and one.overlaps(other):
            problem = (
                f"{one.name} and {other.name} are on {_named(shared)} at the same time"
            )
            fix = "put them under one `together`, or let the one end before the other"
            return [Refusal(problem=problem, fix=fix, faults=(one.name, other.name))]
    return []


def _names(windows: Iterable[FaultWindow]) -> tuple[str, ...]:
    return tuple(window.name for window in windows)


def _named(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
