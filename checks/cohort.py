"""Cohorts: which nodes are alike enough to be compared, and what their majority holds.

Key: the inventory's `node.cohort` where it is given; else role, board (PSID) of most of
its NICs and virtualisation. The present speed of a port is no part of it: a port that
came up slow would leave its peers instead of standing out. What a node does not tell
matches everything, if exactly one cohort fits.

An outlier is named only where more than half of the values agree and at least three
nodes are alike; with fewer, peers that differ all disagree, and none of them is blamed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from checks.facts import Unread

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from checks.node import Node

QUORUM = 3
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Nodes that are compared with each other, ordered by name."""

    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What like nodes hold for one thing."""

    majority: str | None
    """The value of most; None where there is no quorum or no majority."""
    counts: Mapping[str, int]
    nodes: int

    @property
    def unanimous(self) -> bool:
        return len(self.counts) == 1

    @property
    def histogram(self) -> str:
        """`28.43.2566 x47, 28.39.1002 x1`, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda one: (-one[1], one[0]))
        return ", ".join(f"{value} x{count}" for value, count in ordered)


def cohorts(nodes: Sequence[Node]) -> tuple[Cohort, ...]:
    """Every node in exactly one cohort; ordered by name."""
    grouped: dict[Hashable, list[Node]] = {}
    for node in nodes:
        named = node.facts.said("cohort")
        key = named or node.once("cohort", partial(_key, node))
        grouped.setdefault(key, []).append(node)
    _settle_incomplete(grouped)
    found = [
        Cohort(name=_name(key), nodes=tuple(sorted(members, key=lambda n: n.name)))
        for key, members in grouped.items()
    ]
    return tuple(sorted(found, key=lambda cohort: cohort.name))


def baseline(votes: Sequence[tuple[str, str]]) -> Baseline:
    """What is held by most, from (node, value) votes."""
    counts = Counter(value for _, value in votes)
    nodes = len({node for node, _ in votes})
    best = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:1]
    majority = None
    if nodes >= QUORUM and best and best[0][1] * 2 > len(votes):
        majority = best[0][0]
    return Baseline(majority=majority, counts=counts, nodes=nodes)


def _key(node: Node) -> _Key:
    return (node.facts.said("role"), _board(node), _virt(node))


def _board(node: Node) -> str:
    counts: Counter[str] = Counter()
    try:
        selected = node.ports
    except Unread:
        return ""
    for port in selected:
        try:
            counts[port.psid()] += 1
        except Unread:
            continue
    return min(counts, key=lambda psid: (-counts[psid], psid)) if counts else ""


def _virt(node: Node) -> str:
    try:
        return node.virt
    except Unread:
        return ""


def _settle_incomplete(grouped: dict[Hashable, list[Node]]) -> None:
    """Moves nodes that do not tell something to the one cohort that fits them."""
    keys = [key for key in grouped if isinstance(key, tuple)]
    for key in sorted(keys, key=str):
        if all(key):
            continue
        fitting = [
            other
            for other in keys
            if other != key and other in grouped and _fits(key, other)
        ]
        if len(fitting) == 1:
            grouped[fitting[0]].extend(grouped.pop(key))


def _fits(told: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Everything told is equal, and the other tells strictly more."""
    pairs = list(zip(told, other, strict=True))
    equal = all(mine in {"", theirs} for mine, theirs in pairs)
    return equal and sum(map(bool, other)) > sum(map(bool, told))


def _name(key: Hashable) -> str:
    if isinstance(key, tuple):
        return "/".join(part or "?" for part in key)
    return str(key)
