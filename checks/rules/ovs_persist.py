"""Open vSwitch after a reboot: its database stays, what was done beside it does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ip_addr import Link, links
from checks.parse.net_config import SOURCE, named_by
from checks.parse.ovs_db import rows
from checks.rules.declare import Subject, check
from checks.rules.ovs import LIST, demand

if TYPE_CHECKING:
    from checks.node import Node
    from checks.parse.ovs_db import Row

_SLAVE = "openvswitch"
_DATAPATH = "ovs-system"
_INTERNAL = frozenset({"openvswitch", "tun"})
"""Kinds of internal ports: of the kernel's datapath, and of that in userspace."""
_OF_DATAPATH = re.compile(r"^(?:genev|vxlan|gre|ip6gre|erspan|bareudp|lisp|stt)_sys")
"""Devices that the datapath makes for tunnels: their names are in no database."""
_EXPECTED = "in the database, and its address in a file that the boot reads"


def _each_port(node: Node) -> list[Subject[Link | None]]:
    """Devices in the kernel that are ports of OVS by themselves, or have addresses."""
    demand(node)
    every, known = links(node.facts), {row.name for row in _interfaces(node.facts)}
    found = [
        link
        for link in every.values()
        if _has_address(link, known) or _is_stranger(link, known)
    ]
    if not found:
        return [Subject(item=None)]
    return [
        Subject(item=link, label=link.name, touches=frozenset({link.name}))
        for link in found
    ]


def _interfaces(facts: Facts) -> tuple[Row, ...]:
    return rows(facts, "Interface")


def _is_stranger(link: Link, known: set[str]) -> bool:
    """A port of the datapath, or one that it made itself, which no row tells of."""
    made = link.kind == _SLAVE and link.name != _DATAPATH
    if not (made or link.slave_kind == _SLAVE) or _OF_DATAPATH.match(link.name):
        return False
    return link.name not in known


def _has_address(link: Link, known: set[str]) -> bool:
    """An address that somebody gave to a port which only OVS makes."""
    return link.kind in _INTERNAL and link.name in known and bool(_addresses(link))


def _addresses(link: Link) -> list[str]:
    every = (*link.global_addresses(4), *link.global_addresses(6))
    return [str(each.interface) for each in every]


@check(
    "ovs-not-persistent",
    group="ovs",
    severity="W",
    why="what was added to the kernel by hand works until the next boot, or the next"
    " restart of vswitchd, and nobody knows of it then",
    fix=(
        "ovs-vsctl add-port BRIDGE NAME instead of ovs-dpctl add-if",
        "the address of the port in netplan, NetworkManager or /etc/network/interfaces",
    ),
    source=("catalogue B.1", "ovs-dpctl(8): add-if is only for other datapaths"),
    needs=(f"{LIST} Interface", "ip -j -d addr", SOURCE),
    requires=("ovs-db-reachable",),
    follows=("ovs-ip-on-enslaved-nic",),
    over=_each_port,
)
def not_persistent(node: Node, link: Link | None) -> Outcome:
    if link is None:
        return ok("nothing beside the database", _EXPECTED)
    if _is_stranger(link, {row.name for row in _interfaces(node.facts)}):
        return bad("a port of the datapath that is not in the database", _EXPECTED)
    told = ", ".join(_addresses(link))
    if _is_kept(node.facts, link.name):
        return ok(f"{told}, by the agent that made the port", _EXPECTED)
    path = named_by(node.facts, link.name)
    if path:
        return ok(f"{told}, by {path}", _EXPECTED)
    return bad(f"{told}, and no file names {link.name}", _EXPECTED)


def _is_kept(facts: Facts, name: str) -> bool:
    """An agent (of OVN, Neutron, Antrea) made the port, and makes it at every boot."""
    for table in ("Interface", "Port"):
        for row in _optional_rows(facts, table):
            if (
                row.name == name
                and row.knows("external_ids")
                and row.map("external_ids")
            ):
                return True
    return False


def _optional_rows(facts: Facts, table: str) -> tuple[Row, ...]:
    try:
        return rows(facts, table)
    except Unread as error:
        if error.kind == "missing":
            return ()
        raise
