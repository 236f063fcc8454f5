"""Pairs of nodes that answer each other over another rail than they are asked over.

Transfers of RDMA leave from the address of their rail, and other checks predict them.
A TCP connection begins without one: the kernel looks for a route first, takes the
address of its device for the source, and looks again. The answer comes from the address
that was asked for, and its own rules decide where it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ip_addr import links
from checks.routing.query import Query, number
from checks.rules.declare import Judged, NotHere, fleetwide
from checks.rules.likeness import ask
from checks.rules.rail_pairs import UNPAIRED
from checks.rules.rail_policy import (
    active,
    address_of,
    engine,
    networks_of,
    version_of,
)
from checks.rules.rail_view import View, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.rails import Rail
    from checks.routing.decision import Decision
    from checks.rules.rail_view import Group

_MOST_ANSWERS = 256
"""So many answers are predicted one by one for a rail; more are not guessed."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """What was found of one rail; `left` is how many answers may still be predicted.

    `doubt` is why a peer could not be judged: it counts where no other peer is wrong.
    """

    pairs: int = 0
    left: int
    wrong: str = ""
    doubt: Unread | None = None


@fleetwide(
    "route-asymmetric",
    group="route",
    severity="W",
    why="a connection goes out by one rail and its answer comes in by another: strict"
    " rp_filter drops it, and one of both carries the load of two",
    fix=(
        "ip route get PEER, without `from`: take out the route that names another NIC",
        "or bind services to the address of their rail",
    ),
    source=("R27 projectcalico/felix#2082, ovn-kubernetes PR#3006", "RFC 3704"),
    needs=("ip -j -4 rule", "ip -j -4 route show table all", "ip -j -d addr"),
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-blackhole",
        "route-linkdown-flag",
        "route-source-rule",
        "route-table-empty",
        "route-table-default",
        "route-rule-order",
        "route-get-consistent",
        "route-peer-same-rail",
        "route-same-subnet-multi-nic",
    ),
)
def asymmetric(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = view(nodes)
    for vote in ask(nodes, partial(_asymmetric, nodes, seen)):
        yield vote.judged()


def _asymmetric(nodes: Sequence[Node], seen: View, node: Node, rail: Rail) -> Outcome:
    address_of(active(rail))
    if len(node.rails) < 2:
        raise NotHere("one rail only")
    name = seen.name(node, rail)
    group = seen.groups.get((version_of(rail.ip), name))
    if group is None or not seen.peers(node, rail, (name,)):
        raise NotHere("no peer is known")
    if name == UNPAIRED:
        reason = "its like on each peer is not known"
        raise Unread("missing", rail.name, reason)
    wanted = "connections and their answers take the same rail"
    found = _Search(left=_MOST_ANSWERS)
    for decision, first, after in engine(node, rail).spread(
        Query(dst=0), group.numbers
    ):
        _compare(nodes, seen, node, rail, group, decision, range(first, after), found)
        if found.wrong:
            return bad(found.wrong, wanted)
    if found.doubt is not None:
        raise found.doubt
    return ok(f"{found.pairs} peers without a detour", wanted)


def _compare(
    nodes: Sequence[Node],
    seen: View,
    node: Node,
    rail: Rail,
    group: Group,
    decision: Decision,
    run: range,
    found: _Search,
) -> None:
    """Peers that are routed alike: by their rail, or by which else and back by which.

    What is refused, or leaves by no rail, takes no other rail: other checks tell of it.
    """
    me = seen.index[id(node)]
    found.pairs += len(run) - group.mine(me, run.start, run.stop)
    if decision.is_local or _is_home(rail, decision):
        return
    if decision.route is not None and decision.route.dst in networks_of(rail):
        return  # rails in one subnet: `route-same-subnet-multi-nic` judges those
    for at in run:
        if group.owners[at] == me:
            continue
        peer = nodes[group.owners[at]]
        try:
            taken, source = _taken(node, rail, decision, group.numbers[at])
            if taken is None:
                continue
            _spend(rail, found)
            back = _answer(peer, group.texts[at], source)
        except Unread as error:
            found.doubt = found.doubt or error
            continue
        if back is None or seen.name(peer, back) != seen.name(node, taken):
            told = "no rail" if back is None else f"{back.name} ({back.netdev})"
            found.wrong = (
                f"{group.texts[at]} is reached over {taken.name} ({taken.netdev}),"
                f" {peer.name} answers over {told}"
            )
            return


def _is_home(rail: Rail, decision: Decision) -> bool:
    """It leaves by the rail itself, and with an address of the rail."""
    route = decision.route
    source = route.prefsrc if route is not None else ""
    return decision.devices == {rail.netdev} and (not source or source in rail.ips)


def _spend(rail: Rail, found: _Search) -> None:
    if not found.left:
        reason = f"more than {_MOST_ANSWERS} peers are reached by other rails"
        raise Unread("missing", rail.name, reason)
    found.left -= 1


def _taken(
    node: Node, rail: Rail, decision: Decision, dst: int
) -> tuple[Rail | None, int]:
    """The other rail by which a connection without a source leaves, and its source."""
    first = _rail_of(node, decision)
    if first is None:
        return None, 0
    source = _source(node, rail, decision)
    again = engine(node, rail).lookup(Query(src=source, dst=dst))
    taken = _rail_of(node, again)
    return (None if taken is rail else taken), source


def _source(node: Node, rail: Rail, decision: Decision) -> int:
    """The address that the kernel takes: that of the route, or of its device."""
    if decision.route is not None and decision.route.prefsrc:
        return number(decision.route.prefsrc)
    (device,) = decision.devices
    link = links(node.facts).get(device)
    own = link.global_addresses(version_of(rail.ip)) if link is not None else ()
    if not own:
        raise Unread("missing", "ip -j -d addr", f"no address of {device}")
    return number(own[0].ip)


def _answer(peer: Node, ip: str, dst: int) -> Rail | None:
    """The rail by which a peer answers from its address; None where it is no rail."""
    asked = next((rail for rail in peer.rails if rail.ip == ip), None)
    if asked is None:
        raise Unread("missing", ip, "its rail is not known")
    return _rail_of(peer, engine(peer, asked).lookup(Query(src=number(ip), dst=dst)))


def _rail_of(node: Node, decision: Decision) -> Rail | None:
    """The one rail by which it leaves; None where that is another device, or none.

    Unread where the kernel chooses among several devices, and a rail is one of them.
    """
    for rail in node.rails:
        if not decision.error and rail.netdev in decision.devices:
            if len(decision.devices) > 1:
                reason = f"a packet {decision.leaves()}, as the kernel chooses"
                raise Unread("missing", rail.name, reason)
            return rail
    return None
