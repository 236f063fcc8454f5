"""How a rule is declared: what it asks, of whom, how bad a bad answer is, and why.

A rule is pure: it reads the facts of a node (or of several) and answers. Three scopes:

`check`      one node at a time. `over(node)` lists the subjects (ports, rails, tables),
             the decorated `decide(node, item) -> Outcome` judges one of them.
`compared`   a cohort of like nodes. `decide(node, item)` returns the value (text) that
             must agree with the profile or the peers, or an Outcome where the profile
             or an invariant has decided already. Values are compared by `Subject.key`.
`fleetwide`  all nodes at once. `decide(nodes)` yields `Judged(node, subject, outcome)`.

Whatever raises `Unread` becomes UNKNOWN for that subject, `NotHere` becomes SKIP. A
rule that saw no subject at all is UNKNOWN. No other outcome is invented for anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NotRequired,
    TypedDict,
    TypeVar,
    Unpack,
)

from checks.finding import SEVERITIES, Outcome, Severity

if TYPE_CHECKING:
    from checks.node import Node

T = TypeVar("T")


class NotHere(Exception):
    """The whole question does not arise on this node (no OVS, no GPU): SKIP, why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[T]):
    """One thing that a rule judges.

    `label` is shown; `key` is the same for like things on other nodes (a rail's name, a
    PSID), by default the label; `touches` names devices, so that a failed requirement
    about one port blocks only what concerns that port (empty: the whole node).
    """

    item: T
    label: str = ""
    key: str = ""
    touches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a fleet-wide rule says of one subject of one node; `key` as in `Subject`."""

    node: Node
    outcome: Outcome
    subject: str = ""
    key: str = ""
    touches: frozenset[str] = frozenset()
    source: tuple[str, ...] = ()


Over = Callable[["Node"], Iterable[Subject[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A declared check; `id` is its name in the catalogue."""

    id: str
    group: str
    scope: str
    severity: Severity
    why: str
    fix: tuple[str, ...]
    source: tuple[str, ...]
    needs: tuple[str, ...]
    requires: tuple[str, ...]
    follows: tuple[str, ...]
    over: Over = field(repr=False)
    decide: Callable[..., Any] = field(repr=False)

    def __hash__(self) -> int:
        return hash(self.id)


def whole_node(node: Node) -> list[Subject[None]]:
    """The one subject of a rule about the node as such."""
    return [Subject(item=None)]


class Declared(TypedDict):
    """What every rule says of itself.

    Keys:
        group: the part of the node that it belongs to.
        severity: C, E, W or I; a bad outcome FAILs for C and E, WARNs for W.
        source: what it rests on: reports ("R71"), upstream names, kernel documents.
        needs: commands and paths it reads, as the collector spells them.
        requires: checks without which its answer means nothing: where one of them
            FAILs, this one is SKIP, blocked by it.
        follows: checks whose failure explains its own: it stays bad, but collapsed
            under them instead of being a root cause.
    """

    group: str
    severity: str
    why: str
    fix: Sequence[str]
    source: Sequence[str]
    needs: Sequence[str]
    requires: NotRequired[Sequence[str]]
    follows: NotRequired[Sequence[str]]


def check(
    id: str,  # noqa: A002 - the word of the catalogue
    *,
    over: Over = whole_node,
    **declared: Unpack[Declared],
) -> Callable[[Callable[[Node, Any], Outcome]], Rule]:
    """Declares a rule about one node. See the module, `Declared` and `Rule`.

    Args:
        id: its name in the catalogue, kebab-case, group first.
        over: lists the subjects.
    """
    return lambda decide: _rule(id, "node", over, decide, declared)


def compared(
    id: str,  # noqa: A002 - the word of the catalogue
    *,
    over: Over = whole_node,
    **declared: Unpack[Declared],
) -> Callable[[Callable[[Node, Any], Outcome | str]], Rule]:
    """Declares a rule about likeness: `decide` returns the value to be compared.

    An Outcome returned instead stands as it is. Arguments as for `check`.
    """
    return lambda decide: _rule(id, "cohort", over, decide, declared)


def fleetwide(
    id: str,  # noqa: A002 - the word of the catalogue
    **declared: Unpack[Declared],
) -> Callable[[Callable[[Sequence[Node]], Iterable[Judged]]], Rule]:
    """Declares a rule about all nodes together. Arguments as for `check`.

    A node of which it says nothing is UNKNOWN, so it should speak of every node.
    """
    return lambda decide: _rule(id, "fleet", whole_node, decide, declared)


def _rule(
    id: str,  # noqa: A002 - the word of the catalogue
    scope: str,
    over: Over,
    decide: Callable[..., Any],
    declared: Declared,
) -> Rule:
    return Rule(
        id=id,
        group=declared["group"],
        scope=scope,
        severity=SEVERITIES[declared["severity"]],
        why=declared["why"],
        fix=tuple(declared["fix"]),
        source=tuple(declared["source"]),
        needs=tuple(declared["needs"]),
        requires=tuple(declared.get("requires", ())),
        follows=tuple(declared.get("follows", ())),
        over=over,
        decide=decide,
    )
