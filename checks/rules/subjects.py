"""Lists of subjects that many rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.rules.declare import Subject

if TYPE_CHECKING:
    from checks.node import Node
    from checks.ports import Port
    from checks.rails import Rail


def each_port(node: Node) -> list[Subject[Port]]:
    """Selected RDMA ports; alike on other nodes by their rail."""
    return node.once("each port", lambda: _ports(node))


def _ports(node: Node) -> list[Subject[Port]]:
    return [
        Subject(
            item=port, label=port.label, key=rail_of(node, port), touches=port.touches
        )
        for port in node.ports
    ]


def each_port_by_board(node: Node) -> list[Subject[Port]]:
    """Selected RDMA ports; alike by board (PSID), whatever their slot."""
    return [
        Subject(item=port, label=port.label, key=_board(port), touches=port.touches)
        for port in node.ports
    ]


def each_rail(node: Node) -> list[Subject[Rail]]:
    """Rails, also those that are down; alike by their name."""
    return node.once("each rail", lambda: _rails(node))


def _rails(node: Node) -> list[Subject[Rail]]:
    return [
        Subject(item=rail, label=rail.label, key=rail.name, touches=rail.touches)
        for rail in node.rails
    ]


def each_netdev(node: Node) -> list[Subject[str]]:
    """Network devices of the rails, by name; alike by rail."""
    return [
        Subject(
            item=rail.netdev, label=rail.netdev, key=rail.name, touches=rail.touches
        )
        for rail in node.rails
        if rail.netdev
    ]


def each_nic_address(node: Node) -> list[Subject[str]]:
    """PCI addresses of the selected NICs; a port without one is left out."""
    found = []
    for port in node.ports:
        try:
            bdf = port.bdf()
        except Unread:
            continue
        found.append(
            Subject(item=bdf, label=bdf, key=rail_of(node, port), touches=port.touches)
        )
    return found


def rail_of(node: Node, port: Port) -> str:
    """The name of the rail that a port serves, else the name of its device."""
    for rail in node.rails:
        if rail.port is port or (rail.port is not None and rail.port == port):
            return rail.name
    return port.label


def _board(port: Port) -> str:
    try:
        return port.psid()
    except Unread:
        return "unknown board"
