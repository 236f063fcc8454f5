"""Rules that send a rail's packets to a table of its own, on hosts and in pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok, skip
from checks.rules.declare import Judged, NotHere, Subject, fleetwide
from checks.rules.likeness import Vote, ask, by_cohort, of_profile
from checks.rules.rail_policy import active, address_of, rail_rule, rails_in, shown
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from checks.cohort import Baseline
    from checks.node import Node
    from checks.rails import Rail

ID = "route-source-rule"
_OWN, _NONE = "own table", "no rule"


def _rails_and_pods(node: Node) -> list[Subject[tuple[Rail, str]]]:
    """The rails of the host, and those inside of every pod that was looked into."""
    pods = [
        subject
        for where in node.facts.places()
        for subject in _rails_of_place(node.facts, where)
    ]
    try:
        own = each_rail(node)
    except Unread:
        if pods:
            return pods
        raise
    return [
        *[
            Subject(item=(r.item, ""), label=r.label, key=r.key, touches=r.touches)
            for r in own
        ],
        *pods,
    ]


def _rails_of_place(facts: Facts, where: str) -> Iterator[Subject[tuple[Rail, str]]]:
    try:
        found = rails_in(facts, where)
    except Unread:
        return
    for rail in found:
        label = f"{where} {rail.netdev} ({rail.ip})"
        yield Subject(
            item=(rail, where),
            label=label,
            key=f"pod {rail.netdev}",
            touches=frozenset({label}),
        )


@fleetwide(
    ID,
    group="route",
    severity="E",
    why="without a rule, replies and cross-rail packets leave by another NIC",
    fix=(
        "ip rule add from RAIL_IP lookup TABLE",
        "persist it in netplan routing-policy",
    ),
    source=("R18 Mooncake#1026", "R19 Mooncake#166", "R80 k8s-rdma-shared-dev-plugin"),
    needs=("ip -j -4 rule",),
    requires=("route-nic-has-ip",),
)
def source_rule(nodes: Sequence[Node]) -> Iterable[Judged]:
    votes = list(ask(nodes, _held, _rails_and_pods))
    for vote in votes:
        if not vote.is_open:
            yield vote.judged()
    for base, same in by_cohort(nodes, votes):
        for vote in same:
            yield vote.judged(of_profile(ID, vote) or _beside(vote, base))


def _held(node: Node, item: tuple[Rail, str]) -> Outcome | str:
    rail, where = item
    ip = address_of(active(rail))
    rule = rail_rule(node.facts, ip, where)
    if rule is not None:
        return _OWN
    siblings = rails_in(node.facts, where) if where else node.rails
    if len(siblings) < 2:
        raise NotHere("one rail only")
    said = node.profile.routes
    if said.cross_rail or said.source_based:
        return bad(f"no rule from {ip}", f"from {ip} lookup a table of its own")
    return _NONE


def _beside(vote: Vote, base: Baseline) -> Outcome:
    """A rule is good; no rule is bad where like nodes have one."""
    rail, where = vote.subject.item
    rule = rail_rule(vote.node.facts, rail.ip, where)
    if rule is not None:
        return ok(shown(rule), value=_OWN)
    told = f"no rule from {rail.ip}"
    if base.majority == _OWN:
        return bad(told, f"a rule to a table of its own ({base.histogram})")
    if not base.unanimous and base.majority is None:
        return bad(told, f"peers disagree: {base.histogram}", severity="W")
    return skip(f"{told}, and the profile asks for none (routes.cross_rail)")
