"""Which rails of different nodes are the same rail, where their places do not tell it.

A rail without a name of the profile or the inventory is named by its place among the
rails of its node. A node with fewer or more rails than most, or one whose default route
took the NIC that is a rail elsewhere, counts from another NIC: `rail0` is another rail
there. Such rails are paired by network with those of the other nodes, else with none.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.parse.ip_addr import links
from checks.rules.rail_policy import networks_of
from checks.selector import default_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.parse.ip_route import Network
    from checks.rails import Rail

UNPAIRED = ""
"""The name of a rail of which nobody knows what it is on other nodes."""
Names = dict[tuple[int, str], str]


def pair_names(nodes: Sequence[Node]) -> Names:
    """Other names of rails, by place of the node and name of the rail there."""
    rails = {at: _rails(node) for at, node in enumerate(nodes)}
    shifted = [at for at in _shifted(nodes, rails) if not _is_named(nodes[at])]
    if not shifted:
        return {}
    sound = [rail for at, every in rails.items() if at not in shifted for rail in every]
    known = _names_by_network(sound)
    return {
        (at, rail.name): _name_of(rail, known) for at in shifted for rail in rails[at]
    }


def _rails(node: Node) -> tuple[Rail, ...]:
    try:
        return node.rails
    except Unread:
        return ()


def _is_named(node: Node) -> bool:
    """Somebody named its rails: they are what they are called."""
    return bool(node.rail_names or node.profile.rails)


def _shifted(
    nodes: Sequence[Node], rails: dict[int, tuple[Rail, ...]]
) -> Iterable[int]:
    """Places of nodes that count their rails from another NIC than most."""
    counts = Counter(len(every) for every in rails.values() if every)
    usual = max(counts, key=lambda count: (counts[count], count), default=0)
    served = {net for every in rails.values() for r in every for net in networks_of(r)}
    for at, every in rails.items():
        if every and (len(every) != usual or _taken(nodes[at], every) & served):
            yield at


def _taken(node: Node, rails: Sequence[Rail]) -> set[Network]:
    """Networks of the NIC of the default route that no rail of the node is in."""
    devices = default_devices(node.facts) - {rail.netdev for rail in rails}
    if not devices:
        return set()
    try:
        every = links(node.facts)
    except Unread:
        return set()
    found = [every[name] for name in devices if name in every]
    own = {network for rail in rails for network in rail.networks}
    return {a.interface.network for link in found for a in link.addresses} - own


def _names_by_network(rails: Iterable[Rail]) -> dict[Network, set[str]]:
    found: dict[Network, set[str]] = {}
    for rail in rails:
        for network in networks_of(rail):
            found.setdefault(network, set()).add(rail.name)
    return found


def _name_of(rail: Rail, known: dict[Network, set[str]]) -> str:
    every = [known.get(network, set()) for network in networks_of(rail)]
    names = set().union(*every)
    return names.pop() if len(names) == 1 else UNPAIRED
