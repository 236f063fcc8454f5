"""Routes between nodes: every rail to every rail of every peer, predicted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip
from checks.rules.declare import Judged, NotHere, fleetwide
from checks.rules.likeness import ask
from checks.rules.rail_pairs import UNPAIRED
from checks.rules.rail_policy import (
    active,
    address_of,
    astray,
    decisions,
    engine,
    holds,
    networks_of,
    other_networks,
    rows_of,
    version_of,
)
from checks.rules.rail_view import View, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.rails import Rail
    from checks.routing.decision import Decision

_RULE = "ip -j -4 rule"
_ROUTE = "ip -j -4 route show table all"
_FACTS = (_RULE, _ROUTE, "ip -j -d addr")


@fleetwide(
    "route-peer-same-rail",
    group="route",
    severity="C",
    why="this rail cannot reach the same rail of a peer: transfers over it fail",
    fix=("ip route get PEER from RAIL_IP; add the connected or the gateway route",),
    source=("R18 Mooncake#1026",),
    needs=_FACTS,
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-blackhole",
        "route-table-empty",
        "route-table-default",
        "route-rule-order",
        "route-get-consistent",
    ),
)
def peer_same_rail(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = view(nodes)
    for vote in ask(nodes, partial(_same_rail, seen)):
        yield vote.judged()


def _same_rail(seen: View, node: Node, rail: Rail) -> Outcome:
    address_of(active(rail))
    wanted = f"{rail.ip} reaches {rail.name} of every peer over {rail.netdev}"
    if not seen.peers(node, rail, (*seen.names(node, rail), UNPAIRED)):
        return _own_networks(node, rail, wanted)
    found = seen.same(node, rail)
    if found.wrong and seen.name(node, rail) == UNPAIRED:
        raise _unpaired(rail)
    if found.wrong:
        return bad(found.told(), wanted)
    if found.refused is not None:
        raise found.refused
    if seen.reach(node, rail, (UNPAIRED,)).wrong:
        raise _unpaired(rail)
    return ok(f"{found.pairs} peers over {rail.netdev}", wanted)


def _unpaired(rail: Rail) -> Unread:
    """The nodes have not the same rails, and networks do not tell which is which."""
    reason = "the nodes have different rails: its like on each peer is not known"
    return Unread("missing", rail.name, reason)


def _own_networks(node: Node, rail: Rail, wanted: str) -> Outcome:
    """Without a peer that is known: whoever is in the rail's own subnet."""
    fib = engine(node, rail)
    seen = []
    for network in networks_of(rail):
        for dst, decision in decisions(fib, rail.ip, network):
            told = astray(decision, rail)
            if told:
                return bad(f"{rail.ip} → {dst} {told}", wanted)
        seen.append(str(network))
    if not seen:
        return skip("no peer is known, and the rail has no subnet")
    return ok(f"no peer is known; {', '.join(seen)} leaves {rail.netdev}", wanted)


@fleetwide(
    "route-cross-rail",
    group="route",
    severity="W",
    why="the engine pairs any NIC with any: `transport retry counter exceeded` or RTR"
    " timeout 110 where a rail does not reach another",
    fix=(
        "a rule, a table and a gateway per rail",
        "or keep pairs on their rail: MC_ENABLE_DEST_DEVICE_AFFINITY=1, device filters",
    ),
    source=("R16 Mooncake#35, #82", "R18 Mooncake#1026", "R23 rccl#1303"),
    needs=_FACTS,
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-blackhole",
        "route-source-rule",
        "route-table-empty",
        "route-table-default",
        "route-rule-order",
        "route-get-consistent",
        "route-peer-same-rail",
        "route-same-subnet-multi-nic",
    ),
)
def cross_rail(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = view(nodes)
    for vote in ask(nodes, partial(_cross_rail, seen)):
        yield vote.judged()


def _cross_rail(seen: View, node: Node, rail: Rail) -> Outcome:
    said = node.profile.routes.cross_rail
    others = _others(seen, node, rail)
    if said is False:
        raise NotHere("the profile keeps pairs on their rail")
    if len(node.rails) < 2:
        raise NotHere("one rail only")
    if said is None and _keeps_to_rail(node):
        raise NotHere("MC_ENABLE_DEST_DEVICE_AFFINITY keeps pairs on their rail")
    address_of(active(rail))
    severity = "E" if said else "W"
    wanted = f"{rail.ip} reaches every other rail over {rail.netdev}"
    if not seen.peers(node, rail, others):
        return _other_networks(node, rail, wanted, severity)
    found = seen.reach(node, rail, others)
    if found.wrong and seen.name(node, rail) == UNPAIRED:
        raise _unpaired(rail)
    if found.wrong:
        return bad(found.told(), wanted, severity=severity)
    if found.refused is not None:
        raise found.refused
    return ok(f"{found.pairs} rails of peers over {rail.netdev}", wanted)


def _others(seen: View, node: Node, rail: Rail) -> list[str]:
    """Names of the node's other rails, as other nodes call them."""
    mine = seen.name(node, rail)
    if mine == UNPAIRED:
        return list(seen.names(node, rail))
    names = (seen.name(node, other) for other in node.rails if other is not rail)
    return [name for name in dict.fromkeys(names) if name not in {mine, UNPAIRED}]


def _keeps_to_rail(node: Node) -> bool:
    value = node.env.get("MC_ENABLE_DEST_DEVICE_AFFINITY", "").strip().lower()
    return value in {"1", "true", "on", "yes"}


def _other_networks(node: Node, rail: Rail, wanted: str, severity: str) -> Outcome:
    """Without a peer that is known: the subnets of the node's own other rails."""
    fib = engine(node, rail)
    others = other_networks(node, rail)
    wrong = []
    for _, network in others:
        told = [
            told
            for _, decision in decisions(fib, rail.ip, network)
            if (told := astray(decision, rail))
        ]
        wrong += [f"{rail.ip} → {network} {each}" for each in told[:1]]
    if wrong:
        return bad("; ".join(wrong[:3]), wanted, severity=severity)
    if not others:
        return skip("no peer is known, and no other subnet")
    return ok(f"{len(others)} subnets of other rails over {rail.netdev}", wanted)


@fleetwide(
    "route-blackhole",
    group="route",
    severity="C",
    why="a blackhole, unreachable or prohibit route (a CNI's leftover) covers a peer",
    fix=("ip route del TYPE DESTINATION table TABLE",),
    source=("Calico, Cilium and BGP leftovers",),
    needs=_FACTS,
    requires=("route-nic-has-ip",),
)
def blackhole(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = view(nodes)
    for vote in ask(nodes, partial(_blackhole, seen)):
        yield vote.judged()


def _blackhole(seen: View, node: Node, rail: Rail) -> Outcome:
    address_of(active(rail))
    if seen.peers(node, rail, seen.names(node, rail)):
        found = seen.same(node, rail)
        if found.refusal is not None:
            return _covered(*found.refusal)
        if found.refused is not None:
            raise found.refused
        return ok("no route that refuses covers a peer")
    networks = networks_of(rail)
    if not networks:
        return skip("no peer is known, and the rail has no subnet")
    fib = engine(node, rail)
    for network in networks:
        for dst, decision in decisions(fib, rail.ip, network):
            if decision.is_refused:
                return _covered(str(dst), decision)
    return ok("no route that refuses covers the rail's own subnet")


def _covered(dst: str, decision: Decision) -> Outcome:
    kind = decision.type if decision.route else "a rule"
    covers = decision.route.dst if decision.route else "everything"
    return bad(
        f"{kind} {covers} in table {decision.table} covers {dst}",
        "no route that refuses covers a peer",
    )


@fleetwide(
    "route-table-default",
    group="route",
    severity="E",
    why="peers outside of the subnet are unreachable, or reached by the wrong NIC",
    fix=("ip route replace default via GATEWAY dev NETDEV table TABLE",),
    source=("R18 Mooncake#1026",),
    needs=_FACTS,
    requires=("route-nic-has-ip", "route-table-empty"),
)
def table_default(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = view(nodes)
    for vote in ask(nodes, partial(_table_default, seen)):
        yield vote.judged()


def _table_default(seen: View, node: Node, rail: Rail) -> Outcome:
    rows = rows_of(node.facts, active(rail))
    wanted = f"default over {rail.netdev}"
    defaults = [row for row in rows if row.is_default and row.type == "unicast"]
    devices = sorted({hop.dev for row in defaults for hop in row.hops})
    table = rows[0].table
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    if defaults and devices != [rail.netdev]:
        return bad(f"table {table}: default over {', '.join(devices)}", wanted)
    if defaults:
        return ok(f"table {table}: default over {rail.netdev}", wanted)
    off = _off_subnet(seen, node, rail)
    covered = [row.dst for row in rows if row.type == "unicast"]
    missing = [ip for ip in off if not any(holds(net, ip) for net in covered)]
    if missing and seen.name(node, rail) == UNPAIRED:
        raise _unpaired(rail)
    if missing:
        return bad(f"table {table} has no default and no route to {missing[0]}", wanted)
    if off:
        return ok(f"table {table} has routes to all {len(off)} peers", wanted)
    raise NotHere("no default, and no peer outside of the subnet is known")


def _off_subnet(seen: View, node: Node, rail: Rail) -> list[str]:
    """Addresses that this rail must reach and that are not in its own subnets."""
    names = list(seen.names(node, rail))
    if node.profile.routes.cross_rail:
        names += _others(seen, node, rail)
    me = seen.index[id(node)]
    own = networks_of(rail)
    found = []
    for name in names:
        group = seen.groups.get((version_of(rail.ip), name))
        for text, owner in zip(group.texts, group.owners, strict=True) if group else ():
            if owner != me and not any(holds(net, text) for net in own):
                found.append(text)
    return found
