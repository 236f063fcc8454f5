"""Packet filters of the node that drop the TCP connections of the engines."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_interface
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.finding import Outcome, bad, ok
from checks.nftables import ACCEPT, DROP, INWARD, Packet, outcomes, ports_named
from checks.parse.handshake import ENGINE_PORTS, HANDSHAKE_PORT
from checks.parse.modules import loaded
from checks.parse.nft import SOURCE, ruleset
from checks.rules.declare import NotHere, Subject, check
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.node import Node
    from checks.rails import Rail

_LEGACY = frozenset({"iptable_filter", "ip6table_filter"})
_WANTED = (
    f"TCP {HANDSHAKE_PORT} and {ENGINE_PORTS.start}-{ENGINE_PORTS.stop - 1} come in"
)


def _rails(node: Node) -> list[Subject[Rail]]:
    """The rails; SKIP where the ruleset was not asked for."""
    if not node.facts.find("nft"):
        raise NotHere("--nft was not asked for")
    return each_rail(node)


@check(
    "route-nftables-drop",
    group="route",
    severity="E",
    why="the node's own filter drops the TCP connections over which engines agree on"
    " transfers; RoCE of a NIC passes by it, so RDMA tools find nothing",
    fix=(
        "nft insert rule FAMILY TABLE CHAIN tcp dport { 12001, 15000-17000 } accept,"
        " for the networks of the rails",
    ),
    source=("Mooncake: ports 12001 and 15000-17000", "nft(8)"),
    needs=(SOURCE, "/proc/modules", "ip -j -d addr"),
    requires=("route-nic-has-ip",),
    over=_rails,
)
def nftables_drop(node: Node, rail: Rail) -> Outcome:
    return filtered(node.facts, partial(_packet, rail), _WANTED)


def filtered(
    facts: Facts,
    packet: Callable[[int], Packet],
    wanted: str,
    hooks: frozenset[str] = INWARD,
) -> Outcome:
    """What the chains of these hooks do with connections to the ports of engines.

    Args:
        packet: a new connection to a port.
        wanted: what is expected of them.
    """
    rules = ruleset(facts)
    doubt = ""
    for port in _ports(facts):
        asked = packet(port)
        for chain, found in outcomes(rules, asked, hooks).items():
            told = f"TCP {port} of {asked.netdev}"
            if found == {DROP}:
                return bad(f"chain {chain} drops {told}", wanted)
            if found != {ACCEPT}:
                doubt = doubt or f"chain {chain} may drop {told}"
    if doubt:
        raise Unread("missing", SOURCE, f"{doubt}: a match in it is not understood")
    legacy = sorted(_LEGACY & loaded(facts))
    if legacy:
        raise Unread("missing", SOURCE, f"{legacy[0]} filters too, and is not in it")
    return ok("no chain drops them", wanted)


@derived
def _ports(facts: Facts) -> tuple[int, ...]:
    """Those that stand for all that engines use."""
    return HANDSHAKE_PORT, *ports_named(ruleset(facts), ENGINE_PORTS)


def _packet(rail: Rail, port: int) -> Packet:
    if not (rail.ip and rail.netdev and rail.networks):
        raise Unread("missing", "ip -j -d addr", f"no address of {rail.name}")
    network = rail.networks[0]
    assert ip_interface(rail.ip).version == network.version
    return Packet(netdev=rail.netdev, target=rail.ip, network=network, port=port)
