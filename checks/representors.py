"""Virtual functions of a NIC in switchdev mode, and the ports that stand for them.

In that mode frames of a VF go to its representor, a network device of the host, until
somebody says where else. `phys_switch_id` tells the switch, and is refused by a NIC in
legacy mode, which has none; `phys_port_name` is `p0` for the port to the wire, `pf0vf3`
for the representor of a VF, `c1pf0vf3` for one of another host, `pf0sf8` for that of a
sub-function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled
from checks.ports import CLASS, PCI, bdf_of_netdev

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NET = "/sys/class/net"
_WIRE = re.compile(r"p(\d+)")
_OF_VF = re.compile(r"(?:c0)?pf(\d+)vf(\d+)")
_INSIDE = re.compile(r"(?:c\d+)?pf\d+")
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
    found = (_port(facts, path.split("/")[-2]) for path in every)
    return tuple(port for port in found if port is not None)


def _port(facts: Facts, netdev: str) -> Port | None:
    switch = switch_of(facts, netdev)
    if not switch:
        return None
    name = _text(facts, f"{NET}/{netdev}/phys_port_name")
    wire, of_vf = _WIRE.fullmatch(name), _OF_VF.fullmatch(name)
    if wire is not None:
        return Port(netdev=netdev, switch=switch, pf=int(wire[1]), vf=None)
    if of_vf is not None:
        return Port(netdev=netdev, switch=switch, pf=int(of_vf[1]), vf=int(of_vf[2]))
    return None


def switch_of(facts: Facts, netdev: str) -> str:
    """The switch inside the NIC that this is a port of; "" in legacy mode."""
    return _text(facts, f"{NET}/{netdev}/phys_switch_id")


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
    for bdf in sorted(_counted(facts) | found.keys()):
        told = facts.number(f"{PCI}/{bdf}/sriov_numvfs")
        if told != len(found.get(bdf, {})):
            reason = f"{told} VFs, and {len(found.get(bdf, {}))} of them were read"
            raise Unread("missing", f"{PCI}/{bdf}/virtfn*", reason)
    return found


def _counted(facts: Facts) -> set[str]:
    """NICs that tell how many VFs they have; other devices may have VFs, too."""
    numbers = facts.matching(f"{PCI}/*/sriov_numvfs")
    told = {path.split("/")[-2] for path in numbers if facts.exists(path)}
    rdma = facts.matching(f"{CLASS}/*/device")
    nics = {facts.link(path).rsplit("/", 1)[-1] for path in rdma}
    return told & (nics | {_address(facts, name) for name in _with_device(facts)})


def is_taken(facts: Facts, vf: str) -> bool:
    """A driver has it, and its network device is not here: a pod or VFIO has it."""
    driver = f"{PCI}/{vf}/driver"
    return facts.exists(driver) and not facts.names(f"{PCI}/{vf}/net")


def netdev_of(facts: Facts, bdf: str) -> str:
    """The network device of a NIC itself, not one of its representors; "" without.

    Representors of VFs and sub-functions have the address of the NIC, too.
    """
    here = [name for name in _with_device(facts) if _address(facts, name) == bdf]
    wires = {port.netdev for port in ports(facts) if port.vf is None}
    own = [name for name in here if name in wires]
    return next(iter(own or [each for each in here if not _is_inside(facts, each)]), "")


def _is_inside(facts: Facts, netdev: str) -> bool:
    """A port of the switch inside a NIC, and not the one to the wire."""
    if not switch_of(facts, netdev):
        return False
    return _INSIDE.match(_text(facts, f"{NET}/{netdev}/phys_port_name")) is not None


def _with_device(facts: Facts) -> list[str]:
    """Network devices that some hardware is behind."""
    return [path.split("/")[-2] for path in facts.matching(f"{NET}/*/device")]


def _address(facts: Facts, netdev: str) -> str:
    """Its PCI address; "" of one on another bus."""
    try:
        return bdf_of_netdev(facts, netdev)
    except Unread as error:
        if error.kind != "garbled":
            raise
        return ""
