"""VFIO, IOMMU groups and virtual functions: what is one device to the PCI bus.

A group is the least that VFIO takes: all its devices, bridges aside, have to leave the
drivers of the host together. `/sys/bus/pci/drivers` lists every PCI driver, and the
directory of a driver the devices that it has.
"""

from __future__ import annotations

import re

from checks.commands import pci_address
from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled
from checks.ports import PCI

DRIVERS = "/sys/bus/pci/drivers"
GROUP = "iommu_group/devices"
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = "0x0604"


@derived
def taken(facts: Facts) -> tuple[str, ...]:
    """PCI addresses that a driver of VFIO has; Unread where drivers are not known."""
    drivers = facts.names(DRIVERS)
    if not drivers:
        raise Unread("empty", DRIVERS, "no PCI driver at all")
    return tuple(
        sorted(
            name
            for driver in drivers
            if "vfio" in driver
            for name in facts.names(f"{DRIVERS}/{driver}")
            if _BDF.fullmatch(name)
        )
    )


def members(facts: Facts, bdf: str) -> tuple[str, ...]:
    """The devices of its IOMMU group with itself; empty where it is in no group."""
    path = f"{PCI}/{bdf}/{GROUP}"
    found = facts.names(path)
    if not found and not facts.exists(path):
        return ()
    if bdf not in found:
        raise Garbled(path, "the device is not in its own group")
    return found


def is_bridge(facts: Facts, bdf: str) -> bool:
    """A bridge between PCI buses, which may stay with its driver."""
    return facts.line(f"{PCI}/{bdf}/class").startswith(_BRIDGE)


def physical(facts: Facts, bdf: str) -> str:
    """The physical function of a virtual one; of any other function itself.

    The collector keeps the link where there is one, so that without it there is none.
    """
    try:
        target = facts.link(f"{PCI}/{bdf}/physfn")
    except Unread as error:
        if error.kind in {"missing", "absent"}:
            return bdf
        raise
    return pci_address(target.rsplit("/", 1)[-1])


def physical_of_netdev(facts: Facts, netdev: str, *, is_hardware: bool) -> str:
    """The physical function of which a network device is a VF; "" where it is none.

    Unread for hardware of which sysfs was not read.
    """
    base = f"/sys/class/net/{netdev}/device"
    try:
        return pci_address(facts.link(f"{base}/physfn").rsplit("/", 1)[-1])
    except Unread as error:
        if error.kind not in {"missing", "absent"}:
            raise
    if is_hardware:
        facts.link(base)
    return ""
