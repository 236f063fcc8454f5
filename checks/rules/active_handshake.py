"""TCP connections between rails, tried by `--active` from both of their ends.

A failed connection may be the fault of either end. A port of a rail that nobody
reached is the fault of that rail's node; one that others reached, of who did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, unknown
from checks.parse.handshake import (
    ENGINE_PORTS,
    HANDSHAKE_PORT,
    SOURCE,
    Handshake,
    handshakes,
    not_listened,
)
from checks.rules.declare import Judged, NotHere, fleetwide
from checks.rules.likeness import ask
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.rails import Rail
    from checks.rules.declare import Subject

KINDS = (str(HANDSHAKE_PORT), f"{ENGINE_PORTS.start}-{ENGINE_PORTS.stop - 1}")
_Port = tuple[str, int]
_REFUSED = "ECONNREFUSED"


@dataclass(slots=True)
class _Tries:
    """What was tried at one port of one address, by whom."""

    stood: bool = False
    failed: dict[str, Handshake] = field(default_factory=dict)

    @property
    def is_dead(self) -> bool:
        """Nobody reached it, and either several tried or somebody refused."""
        refused = any(each.error == _REFUSED for each in self.failed.values())
        return not self.stood and (len(self.failed) > 1 or refused)


@fleetwide(
    "act-tcp-handshake",
    group="active",
    severity="E",
    why="the engines of two nodes cannot make the TCP connections over which they agree"
    " on a transfer",
    fix=(
        "nft list ruleset, iptables -S, security groups: TCP 12001 and 15000-17000"
        " between all rails",
        "ip route get PEER from RAIL_IP on both ends; no NAT between rails",
    ),
    source=(
        "R75 Mooncake#180",
        "Mooncake: handshake 12001, engines 15000-17000",
        "bound to the address of the rail, to 12001 and one port of 15000-17000",
    ),
    needs=(SOURCE, "listen RAIL_IP:PORT"),
    requires=("route-nic-has-ip",),
    follows=(
        "nic-port-state",
        "nic-netdev-oper",
        "route-table-empty",
        "route-get-consistent",
        "route-peer-same-rail",
        "route-gateway-neigh",
        "route-nftables-drop",
        "act-ping-rail",
    ),
)
def tcp_handshake(nodes: Sequence[Node]) -> Iterable[Judged]:
    seen = _View(nodes)
    for vote in ask(nodes, seen.judged, over=seen.rails):
        yield vote.judged()


class _View:
    """Every try of the fleet, by the port that it went to."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.owners = {ip: node.name for node in nodes for ip in _addresses(node)}
        self.tries: dict[_Port, _Tries] = {}
        self.into: dict[str, list[Handshake]] = {}
        for node in nodes:
            for each in handshakes(node.facts):
                self.into.setdefault(each.target, []).append(each)
                self._count(node.name, each)
        self.dead: dict[str, list[tuple[int, _Tries]]] = {}
        """Ports that nobody reached, by address."""
        for (ip, port), tries in sorted(self.tries.items(), key=itemgetter(0)):
            if tries.is_dead:
                self.dead.setdefault(ip, []).append((port, tries))

    def _count(self, node: str, each: Handshake) -> None:
        tries = self.tries.setdefault((each.target, each.port), _Tries())
        tries.stood = tries.stood or each.stood
        if each.error:
            tries.failed[node] = each

    def rails(self, node: Node) -> list[Subject[Rail]]:
        """The rails; SKIP where nothing was asked for."""
        mine = _addresses(node)
        tried = handshakes(node.facts) or any(ip in self.into for ip in mine)
        if not tried and not node.facts.collector.get("active"):
            raise NotHere("--active was not asked for")
        return each_rail(node)

    def judged(self, node: Node, rail: Rail) -> Outcome:
        wanted = f"TCP {' and '.join(KINDS)} both ways over {rail.name}"
        out = [each for each in handshakes(node.facts) if each.source in rail.ips]
        into = [each for ip in rail.ips for each in self.into.get(ip, ())]
        for each in into:
            node.facts.note(each.line)
        told = [*self._dead(rail), *self._failed(out)]
        if told:
            return bad("; ".join(told), wanted)
        for each in out:
            if each.refusal is not None:
                raise each.refusal
        missing = list(_missing(out, "to a peer")) + list(_missing(into, "from a peer"))
        if missing:
            return unknown(self._why(node, rail, out, missing), wanted)
        return ok(f"{len(out)} connections out, {len(into)} in", wanted)

    def _dead(self, rail: Rail) -> list[str]:
        """Ports of this rail that nobody reached."""
        found = []
        for port, tries in (each for ip in rail.ips for each in self.dead.get(ip, ())):
            who, first = min(tries.failed.items())
            many = f" and {len(tries.failed) - 1} more" * (len(tries.failed) > 1)
            found.append(f"{who}{many} cannot reach {port}: {first.error}")
        return found

    def _failed(self, out: Sequence[Handshake]) -> list[str]:
        """Ports that this rail did not reach and that are not dead for everybody."""
        return [
            f"no connection to {each.where} of {self.owners.get(each.target, 'a peer')}"
            f": {each.error}"
            for each in sorted(out, key=lambda one: (one.target, one.port))
            if each.error and not self._is_blamed(each)
        ]

    def _is_blamed(self, each: Handshake) -> bool:
        """The rail at the other end is among those judged, and at fault itself."""
        return each.target in self.owners and self.tries[each.target, each.port].is_dead

    def _why(
        self, node: Node, rail: Rail, out: Sequence[Handshake], missing: Sequence[str]
    ) -> str:
        blamed = [each for each in out if each.error]
        if blamed:
            return f"only tried at {blamed[0].where}, which nobody reaches"
        for ip in rail.ips:
            for where, reason in sorted(not_listened(node.facts).items()):
                if where.rpartition(":")[0].strip("[]") == ip:
                    return f"nobody could listen on {where}: {reason}"
        told = node.facts.collector.get("active_error")
        return str(told or f"no connection was tried: {', '.join(missing)}")


def _addresses(node: Node) -> tuple[str, ...]:
    try:
        return tuple(ip for rail in node.rails for ip in rail.ips)
    except Unread:
        return ()


def _missing(tried: Sequence[Handshake], which: str) -> Iterable[str]:
    """The kinds of ports at which no connection stood."""
    spans = (range(HANDSHAKE_PORT, HANDSHAKE_PORT + 1), ENGINE_PORTS)
    for kind, span in zip(KINDS, spans, strict=True):
        if not any(each.stood and each.port in span for each in tried):
            yield f"{kind} {which}"
