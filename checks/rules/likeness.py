"""Comparing with like nodes inside a fleet-wide rule.

For rules whose verdict needs the peers and something else besides: `compared` rules are
simpler and come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from checks.cohort import Baseline, baseline, cohorts
from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip, unknown
from checks.profile import matches
from checks.rules.declare import Judged, NotHere, Subject
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from checks.node import Node
    from checks.rules.declare import Over


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one subject of one node holds; an Outcome where it is decided already."""

    node: Node
    subject: Subject[Any]
    held: str | Outcome
    source: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """It is a value, to be compared with those of like nodes."""
        return isinstance(self.held, str)

    def judged(self, outcome: Outcome | None = None) -> Judged:
        """The verdict on this subject; by default what it holds."""
        if outcome is None:
            assert isinstance(self.held, Outcome)
            outcome = self.held
        return Judged(
            node=self.node,
            outcome=outcome,
            subject=self.subject.label,
            key=self.subject.key,
            touches=self.subject.touches,
            source=self.source,
        )


def ask(
    nodes: Sequence[Node],
    decide: Callable[[Node, Any], str | Outcome],
    over: Over = each_rail,
) -> Iterator[Vote]:
    """Asks for every subject of every node; what cannot be read is UNKNOWN there."""
    for node in nodes:
        listed = partial(_listed, over, node)
        subjects, reads = node.facts.credited(partial(_safely, listed))
        if isinstance(subjects, Outcome):
            none = Subject(item=None)
            yield Vote(node=node, subject=none, held=subjects, source=reads)
            continue
        for subject in subjects:
            decided = partial(decide, node, subject.item)
            held, read = node.facts.credited(partial(_safely, decided))
            yield Vote(node=node, subject=subject, held=held, source=read)


def _listed(over: Over, node: Node) -> list[Subject[Any]]:
    return list(over(node))


def _safely(ask_: Callable[[], Any]) -> Any:
    try:
        return ask_()
    except NotHere as error:
        return skip(error)
    except Unread as error:
        return unknown(error)


def by_cohort(
    nodes: Sequence[Node], votes: Iterable[Vote]
) -> Iterator[tuple[Baseline, list[Vote]]]:
    """Open votes, one cohort and key at a time, with what most of them hold."""
    of = {id(n): c.name for c in cohorts(nodes) for n in c.nodes}
    grouped: dict[tuple[str, str], list[Vote]] = {}
    for vote in votes:
        if vote.is_open:
            key = (of[id(vote.node)], vote.subject.key)
            grouped.setdefault(key, []).append(vote)
    for _, same in sorted(grouped.items(), key=lambda one: one[0]):
        yield baseline([(v.node.name, str(v.held)) for v in same]), same


def of_profile(check: str, vote: Vote) -> Outcome | None:
    """What `expect` of the profile says of a value; None where it is silent."""
    allowed = vote.node.profile.allowed(check, vote.subject.key)
    if allowed is None:
        return None
    wanted = f"{' or '.join(allowed)} (profile)"
    value = str(vote.held)
    if matches(value, allowed):
        return ok(value, wanted, value=value)
    return bad(value, wanted)


def of_peers(value: str, base: Baseline) -> Outcome:
    """A value beside those of like nodes, as `compared` rules are judged."""
    if base.nodes < 2:
        return skip(f"{value}: no like node to compare with")
    if base.unanimous:
        return ok(value, f"as on {base.nodes} like nodes", value=value)
    if base.majority is None:
        return bad(value, f"peers disagree: {base.histogram}", severity="W")
    told = f"{base.majority} ({base.histogram})"
    return ok(value, told, value=value) if value == base.majority else bad(value, told)
