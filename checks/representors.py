"""Virtual functions of a NIC in switchdev mode, and the ports that stand for them.

In that mode frames of a VF go to its representor, a network device of the host, until
somebody says where else. `phys_switch_id` tells the switch, and is refused by a NIC in
legacy mode, which has none; `phys_port_name` is `p0` for the port to the wire, `pf0vf3`
for the representor of a VF, `c1pf0vf3` for one of another host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled
from checks.ports import PCI, bdf_of_netdev

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NET = "/sys/class/net"
_WIRE = re.compile(r"p(\d+)")
_OF_VF = re.compile(r"(?:c0)?pf(\d+)vf(\d+)")
_UNSUPPORTED = frozenset({"EOPNOTSUPP", "ENOTSUP", "ENOENT", "EINVAL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of a switch inside a NIC: `vf` is None for the port to the wire."""

    netdev: str
    switch: str
    pf: int
    vf: int | None


@derived
def ports(facts: Facts) -> Sequence[Port]:
    """Every port of a switch inside a NIC; Unread where nobody looked for them."""
    every = facts.matching(f"{NET}/*/phys_switch_id")
    if not every:
        raise Unread("missing", f"{NET}/*/phys_switch_id", "not collected")
    found = (_port(facts, path.split("/")[-2], path) for path in every)
    return tuple(port for port in found if port is not None)


def _port(facts: Facts, netdev: str, path: str) -> Port | None:
    switch = _text(facts, path)
    if not switch:
        return None
    name = _text(facts, f"{NET}/{netdev}/phys_port_name")
    wire, of_vf = _WIRE.fullmatch(name), _OF_VF.fullmatch(name)
    if wire is not None:
        return Port(netdev=netdev, switch=switch, pf=int(wire[1]), vf=None)
    if of_vf is not None:
        return Port(netdev=netdev, switch=switch, pf=int(of_vf[1]), vf=int(of_vf[2]))
    return None


def _text(facts: Facts, path: str) -> str:
    """A line; "" where the driver has no such thing."""
    if facts.entry(path).get("errno") in _UNSUPPORTED:
        return ""
    return facts.line(path)


@derived
def functions(facts: Facts) -> Mapping[str, Mapping[int, str]]:
    """VFs of each NIC by number: PCI address of the NIC to those of its VFs."""
    found: dict[str, dict[int, str]] = {}
    for path in facts.matching(f"{PCI}/*/virtfn*"):
        bdf, name = path.split("/")[-2:]
        number = name.removeprefix("virtfn")
        if not number.isdigit():
            raise Garbled(path, "no number of a VF")
        target = facts.link(path).rsplit("/", 1)[-1]
        found.setdefault(bdf, {})[int(number)] = target
    for bdf, every in found.items():
        told = facts.number(f"{PCI}/{bdf}/sriov_numvfs")
        if told != len(every):
            reason = f"{told} VFs, and {len(every)} of them were read"
            raise Unread("missing", f"{PCI}/{bdf}/virtfn*", reason)
    return found


def is_taken(facts: Facts, vf: str) -> bool:
    """A driver has it, and its network device is not here: a pod or VFIO has it."""
    driver = f"{PCI}/{vf}/driver"
    return facts.exists(driver) and not facts.names(f"{PCI}/{vf}/net")


def netdev_of(facts: Facts, bdf: str) -> str:
    """The network device of a NIC itself, not one of its representors; "" without."""
    reps = {port.netdev for port in ports(facts) if port.vf is not None}
    for path in facts.matching(f"{NET}/*/device"):
        name = path.split("/")[-2]
        if name not in reps and _address(facts, name) == bdf:
            return name
    return ""


def _address(facts: Facts, netdev: str) -> str:
    """Its PCI address; "" of one on another bus."""
    try:
        return bdf_of_netdev(facts, netdev)
    except Unread as error:
        if error.kind != "garbled":
            raise
        return ""
