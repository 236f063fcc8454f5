"""IOMMU groups: whether a NIC can be passed through, or kept, by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.finding import Outcome, bad, ok
from checks.ports import PCI
from checks.rules.declare import check
from checks.rules.pci_subjects import Function, each_nic
from checks.vfio import DRIVERS, GROUP, is_bridge, members, physical, taken

if TYPE_CHECKING:
    from checks.facts import Facts
    from checks.node import Node


@check(
    "iommu-groups-shared",
    group="iommu",
    severity="W",
    why="VFIO takes whole groups: whoever passes the other device through takes the NIC"
    " from the host, or is refused because the host keeps the NIC",
    fix=(
        "another slot, or ACS of the bridge above both in the BIOS",
        "or do not pass through: driverctl unset-override BDF",
    ),
    source=("Documentation/driver-api/vfio.rst: groups", "catalogue B.3"),
    needs=(f"{PCI}/*/{GROUP}", DRIVERS),
    over=each_nic,
)
def groups_shared(node: Node, function: Function) -> Outcome:
    expected = "a group of its own, or no use of VFIO"
    every = members(node.facts, function.bdf)
    if not every:
        return ok("in no IOMMU group", expected)
    others = [bdf for bdf in every if not _belongs(node.facts, bdf, function.bdf)]
    if not others:
        return ok("nothing else is in its group", expected)
    shared = f"shares its group with {', '.join(others[:4])}"
    passed = taken(node.facts)
    if not passed:
        return ok(f"{shared}; nothing is passed through", expected)
    return bad(f"{shared}; VFIO has {', '.join(passed[:4])}", expected)


def _belongs(facts: Facts, bdf: str, nic: str) -> bool:
    """The NIC itself, another function of it, a VF of it, or a bridge."""
    cards = {_slot(nic), _slot(physical(facts, nic))}
    if _slot(bdf) in cards or _slot(physical(facts, bdf)) in cards:
        return True
    return is_bridge(facts, bdf)


def _slot(bdf: str) -> str:
    return bdf.rpartition(".")[0]
