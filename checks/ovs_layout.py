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
_GUEST = re.compile(
    r"^(tap|vnet|veth|qvo|qvb|qr-|qg-|lxc|cali)|_h$|^[0-9a-f]{13,15}$|^[0-9a-f]{8,}_\d+$"
)
"""Names that OpenStack, libvirt and container networks give to ports of guests."""
_INTERNAL = re.compile(r"^(br|ovs|int)[-_0-9]|^br$|-int$")
_GUEST_DRIVERS = frozenset({"tun", "mlx5e_rep", "openvswitch"})
_VETH = "veth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Bridges of a node with their interfaces and uplinks."""

    bridge_of: Mapping[str, str]
    """The bridge of each interface by name; empty where it is not known."""
    uplinks: Mapping[str, tuple[Row, ...]]
    """Ports to the wire by bridge (`""`: of unknown bridge)."""

    def is_uplink(self, row: Row) -> bool:
        """A port to the wire: no internal port, no port of a guest, no tunnel."""
        return any(row.name == other.name for other in self.uplinks_beside(row))

    def uplinks_beside(self, row: Row) -> tuple[Row, ...]:
        """Uplinks in the same bridge."""
        return self.uplinks.get(self.bridge_of.get(row.name, ""), ())


def is_virtual(row: Row) -> bool:
    """A tunnel or a patch port: it has no MTU and no carrier of its own."""
    return row.knows("type") and row.word("type") in _VIRTUAL


def layout(node: Node) -> Layout:
    """The layout of a node; Unread without the table Interface."""
    return node.once("ovs layout", lambda: _layout(node))


def _layout(node: Node) -> Layout:
    named = {name for names in node.profile.ovs.uplinks.values() for name in names}
    bridges = _known(node.facts, "Bridge")
    bridge_of = _bridge_of(node.facts, bridges)
    together: dict[str, list[Row]] = {}
    for row in rows(node.facts, "Interface"):
        together.setdefault(bridge_of.get(row.name, ""), []).append(row)
    internal = frozenset(row.name for row in bridges)
    return Layout(
        bridge_of=bridge_of,
        uplinks={
            bridge: _uplinks(members, frozenset(named), internal)
            for bridge, members in together.items()
        },
    )


def _uplinks(
    members: list[Row], named: frozenset[str], internal: frozenset[str]
) -> tuple[Row, ...]:
    """Ports to the wire; a veth is one where its bridge has nothing better."""
    able = [row for row in members if row.name not in internal and _is_able(row)]
    wired = [row for row in able if _driver(row) != _VETH] or able
    chosen = {row.name for row in wired} | named
    return tuple(row for row in members if row.name in chosen)


def _is_able(row: Row) -> bool:
    """Neither internal nor a tunnel, and not by name or driver the port of a guest."""
    kind = row.word("type") if row.knows("type") else _guessed(row.name)
    if kind not in {"", "system", "dpdk"} or _GUEST.search(row.name):
        return False
    return _driver(row) not in _GUEST_DRIVERS


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
