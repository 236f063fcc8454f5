"""Rails that pods reach through a Linux bridge: what the node's filter forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.nftables import THROUGH, Packet
from checks.parse.ip_addr import Link, links
from checks.parse.nft import SOURCE
from checks.ports import bdf_of_netdev
from checks.rules.declare import check
from checks.rules.rail_policy import networks_of
from checks.rules.route_filter import filtered
from checks.rules.subjects import each_rail
from checks.vfio import physical_of_netdev

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node
    from checks.rails import Rail

_BRIDGE = "bridge"
_CALLS = {
    4: "/proc/sys/net/bridge/bridge-nf-call-iptables",
    6: "/proc/sys/net/bridge/bridge-nf-call-ip6tables",
}
_WANTED = "connections between pods and rail are forwarded"
_STACK = 8
"""How many devices may lie on each other: a VLAN of a macvlan of a NIC is three."""


@check(
    "route-forwarding-docker",
    group="route",
    severity="W",
    why="Docker sets the policy of FORWARD to DROP when it starts: with br_netfilter"
    " it drops frames between the ports of a bridge, so that pods behind the rail's"
    " bridge are reached by nobody",
    fix=(
        "iptables -I DOCKER-USER -i BRIDGE -o BRIDGE -j ACCEPT, kept over a reboot",
        "or sysctl -w net.bridge.bridge-nf-call-iptables=0, where no service needs it",
    ),
    source=("Docker: packet filtering and firewalls", "kernel: br_netfilter"),
    needs=("ip -j -d addr", _CALLS[4], SOURCE),
    over=each_rail,
)
def forwarding(node: Node, rail: Rail) -> Outcome:
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    bridge = _bridges(node).get(rail.netdev, "")
    if not bridge:
        return ok("no Linux bridge carries it", _WANTED)
    networks = networks_of(rail)
    if not networks:
        raise Unread("missing", "ip -j -d addr", f"no network of {rail.name}")
    network = networks[0]
    if not _is_filtered(node.facts, bridge, network.version):
        return ok(f"{bridge}: its frames pass by the filter", _WANTED)

    def packet(port: int) -> Packet:
        return Packet(
            netdev=bridge, out=bridge, target=str(network), network=network, port=port
        )

    found = filtered(node.facts, packet, _WANTED, THROUGH)
    return found if found.status else bad(found.observed, _WANTED)


def _is_filtered(facts: Facts, bridge: str, version: int) -> bool:
    """Whether frames of a bridge go through the chains of IP: all do, or its own."""
    path = _CALLS[version]
    if not facts.exists(path):
        return False
    own = links(facts).get(bridge)
    name = path.rpartition("/")[2].removeprefix("bridge-").replace("-", "_")
    return facts.line(path) != "0" or (own is not None and name in own.calls)


def _bridges(node: Node) -> Mapping[str, str]:
    """By name of a NIC the Linux bridge that carries it, what is on it, or its VF."""
    return node.once("bridges of nics", lambda: _found(node.facts))


def _found(facts: Facts) -> Mapping[str, str]:
    every = links(facts)
    found: dict[str, str] = {}
    for link in every.values():
        bridge = _bridge_of(link, every)
        for name in _under(facts, link, every) if bridge else ():
            found.setdefault(name, bridge)
    return found | {link.name: link.name for link in every.values() if _is_one(link)}


def _is_one(link: Link) -> bool:
    return link.kind == _BRIDGE


def _bridge_of(link: Link, every: Mapping[str, Link]) -> str:
    master = every.get(link.master)
    is_port = link.slave_kind == _BRIDGE or (master is not None and _is_one(master))
    return link.master if is_port else ""


def _under(facts: Facts, link: Link, every: Mapping[str, Link]) -> set[str]:
    """A device and what it is made on; of a VF also the NIC that it is a part of."""
    found = {link.name}
    for _ in range(_STACK):
        link = every.get(link.lower, link)
        found.add(link.name)
    whole = physical_of_netdev(facts, link.name, is_hardware=bool(link.parent))
    if whole:
        found |= {name for name in every if _address(facts, every[name]) == whole}
    return found


def _address(facts: Facts, link: Link) -> str:
    """The PCI address of a device; "" of one that has none, or none that is known."""
    try:
        return link.parent or bdf_of_netdev(facts, link.name)
    except Unread:
        return ""
