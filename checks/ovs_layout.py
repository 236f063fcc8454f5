"""Which interfaces of Open vSwitch share a bridge, and which of them are uplinks.

Taken from the tables Bridge and Port where they were collected; without them all
interfaces count as one bridge, as in a subset of columns of Interface alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.parse.ovs_db import Row, rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node

_VIRTUAL = frozenset(
    [
        "patch",
        "geneve",
        "vxlan",
        "gre",
        "ip6gre",
        "erspan",
        "ip6erspan",
        "gtpu",
        "stt",
        "lisp",
        "srv6",
        "bareudp",
    ]
)
_GUEST = re.compile(r"^(tap|vnet|veth|qvo|qvb|qr-|qg-|lxc|cali)|_h$")
_INTERNAL = re.compile(r"^(br|ovs|int)[-_0-9]|^br$|-int$")
_GUEST_DRIVERS = frozenset({"tun", "veth", "mlx5e_rep", "openvswitch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Bridges of a node with their interfaces."""

    bridges: frozenset[str]
    bridge_of: Mapping[str, str]
    """The bridge of each interface by name; empty where it is not known."""
    interfaces: tuple[Row, ...]
    named: frozenset[str]
    """Interfaces that the profile names as uplinks."""

    def is_virtual(self, row: Row) -> bool:
        """A tunnel or a patch port: it has no MTU and no carrier of its own."""
        return row.knows("type") and row.word("type") in _VIRTUAL

    def is_uplink(self, row: Row) -> bool:
        """A port to the wire: no internal port, no port of a guest, no tunnel."""
        if row.name in self.named:
            return True
        if row.name in self.bridges or self.is_virtual(row):
            return False
        kind = row.word("type") if row.knows("type") else _guessed(row.name)
        if kind not in {"", "system", "dpdk"} or _GUEST.search(row.name):
            return False
        return _driver(row) not in _GUEST_DRIVERS

    def uplinks_beside(self, row: Row) -> tuple[Row, ...]:
        """Uplinks in the same bridge."""
        here = self.bridge_of.get(row.name, "")
        return tuple(
            other
            for other in self.interfaces
            if self.is_uplink(other) and self.bridge_of.get(other.name, "") == here
        )


def layout(node: Node) -> Layout:
    """The layout of a node; Unread without the table Interface."""
    return node.once("ovs layout", lambda: _layout(node))


def _layout(node: Node) -> Layout:
    named = {name for names in node.profile.ovs.uplinks.values() for name in names}
    bridges = _known(node.facts, "Bridge")
    return Layout(
        bridges=frozenset(row.name for row in bridges),
        bridge_of=_bridge_of(node.facts, bridges),
        interfaces=rows(node.facts, "Interface"),
        named=frozenset(named),
    )


def _known(facts: Facts, table: str) -> tuple[Row, ...]:
    try:
        return rows(facts, table)
    except Unread:
        return ()


def _bridge_of(facts: Facts, bridges: tuple[Row, ...]) -> dict[str, str]:
    """Interface to bridge, through the uuids of Bridge.ports and Port.interfaces."""
    ports = {row.cells.get("_uuid"): row for row in _known(facts, "Port")}
    every = {row.cells.get("_uuid"): row.name for row in rows(facts, "Interface")}
    found = {}
    for bridge in bridges:
        for port_uuid in bridge.items("ports") if bridge.knows("ports") else ():
            port = ports.get(port_uuid)
            if port is None or not port.knows("interfaces"):
                continue
            for uuid in port.items("interfaces"):
                found[every.get(uuid, "")] = bridge.name
    found.pop("", None)
    return found


def _guessed(name: str) -> str:
    """The type of an interface of which only the name is known."""
    return "internal" if _INTERNAL.search(name) else ""


def _driver(row: Row) -> str:
    if not row.knows("status"):
        return ""
    return str(row.map("status").get("driver_name", ""))
