"""Representors of virtual functions: each that is in use is a port of a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.ovs_db import rows
from checks.ports import PCI
from checks.representors import (
    NET,
    Port,
    functions,
    is_taken,
    netdev_of,
    ports,
    switch_of,
)
from checks.rules.declare import NotHere, Subject, check
from checks.rules.ovs import LIST, demand

if TYPE_CHECKING:
    from checks.facts import Facts
    from checks.node import Node


def _each_nic(node: Node) -> list[Subject[str]]:
    """NICs with VFs, by PCI address."""
    demand(node)
    facts = node.facts
    ports(facts)  # Unread: that there are no VFs is known only where somebody looked
    found = functions(facts)
    if not found:
        raise NotHere("no NIC has virtual functions")
    names = {bdf: netdev_of(facts, bdf) for bdf in found}
    return [
        Subject(item=bdf, label=name or bdf, touches=frozenset({bdf, name} - {""}))
        for bdf, name in sorted(names.items())
    ]


@check(
    "ovs-rep-present",
    group="ovs",
    severity="W",
    why="frames of a VF go to its representor: where that is a port of no bridge, the"
    " pod that has the VF reaches nobody",
    fix=(
        "ovs-vsctl add-port BRIDGE REPRESENTOR",
        "read the log of the CNI that gave the VF away (ovs-cni, ovn-kubernetes)",
    ),
    source=("kernel: networking/representors", "catalogue B.1"),
    needs=(f"{LIST} Interface", f"{NET}/*/phys_switch_id", f"{PCI}/*/virtfn*"),
    requires=("ovs-db-reachable", "ovs-vswitchd-alive"),
    over=_each_nic,
)
def rep_present(node: Node, bdf: str) -> Outcome:
    facts = node.facts
    wire = _wire(facts, bdf)
    reps = {
        port.vf: port
        for port in ports(facts)
        if (port.switch, port.pf) == (wire.switch, wire.pf) and port.vf is not None
    }
    used = [
        at for at, vf in sorted(functions(facts)[bdf].items()) if is_taken(facts, vf)
    ]
    inside = {row.name for row in rows(facts, "Interface")}
    wrong = [told for at in used if (told := _missing(facts, at, reps.get(at), inside))]
    expected = "a port of a bridge for every VF in use"
    if wrong:
        return bad(", ".join(wrong[:4]), expected)
    return ok(f"{len(used)} VFs in use, each with its port", expected)


def _wire(facts: Facts, bdf: str) -> Port:
    """The port of the NIC itself; a NIC in legacy mode has no representors."""
    name = netdev_of(facts, bdf)
    if not name:
        raise Unread("missing", f"{NET}/*/device", f"no network device of {bdf}")
    for port in ports(facts):
        if port.netdev == name and port.vf is None:
            return port
    if switch_of(facts, name):
        reason = "it has a switch inside, and is not its port to the wire"
        raise Unread("missing", f"{NET}/{name}/phys_port_name", reason)
    raise NotHere("no switchdev mode: its VFs have no representors")


def _missing(facts: Facts, at: int, rep: Port | None, inside: set[str]) -> str:
    """What is wrong with the port of a VF; "" where it is a port of something."""
    if rep is None:
        return f"VF {at} has no representor"
    if rep.netdev in inside or facts.matching(f"{NET}/{rep.netdev}/master"):
        return ""
    return f"{rep.netdev} of VF {at} is in no bridge"
