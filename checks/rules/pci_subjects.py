"""Subjects on the PCI bus: NICs, GPUs, and whether the node is a virtual machine.

NICs are those of the selected RDMA ports. A document may lack everything about RDMA;
then they are what network devices, `lspci` and vendor numbers tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.parse.lspci import Device, devices
from checks.ports import PCI, Port, bdf_of_netdev
from checks.rules.declare import NotHere, Subject
from checks.rules.subjects import rail_of

if TYPE_CHECKING:
    from checks.node import Node

_CONTAINERS = frozenset(
    {
        "docker",
        "podman",
        "lxc",
        "lxc-libvirt",
        "systemd-nspawn",
        "openvz",
        "rkt",
        "proot",
        "pouch",
        "container-other",
    }
)
_NIC_VENDORS = frozenset({"0x15b3"})
_GPU_VENDORS = frozenset({"0x10de", "0x1002"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function that is judged; `port` where it is an RDMA NIC."""

    bdf: str
    port: Port | None = None

    @property
    def label(self) -> str:
        """`mlx5_0 (0000:1a:00.0)`; `mlx5_0` where its address is not known."""
        if self.port is None:
            return self.bdf
        return f"{self.port.label} ({self.bdf})" if self.bdf else self.port.label

    @property
    def touches(self) -> frozenset[str]:
        names = {self.bdf} - {""}
        return frozenset(names) | (self.port.touches if self.port else frozenset())

    def line(self, facts: Facts, leaf: str) -> str:
        """A line of the function in sysfs; where nobody looked, of its port."""
        try:
            return facts.line(f"{PCI}/{self.bdf}/{leaf}")
        except Unread as error:
            if error.kind != "missing" or self.port is None:
                raise
            return self.port.device_text(f"device/{leaf}")


def is_vm(node: Node) -> bool | None:
    """Whether it is a virtual machine; None where nothing tells.

    Inside a container `systemd-detect-virt` names the container, not the machine.
    """
    try:
        return None if node.virt in _CONTAINERS else node.is_vm
    except Unread as error:
        if error.kind in {"missing", "no tool"}:
            return None
        raise


def nics(node: Node) -> tuple[Function, ...]:
    """NICs by address; Unread where none can be told."""
    return node.once("pci nics", lambda: _nics(node))


def gpus(node: Node) -> tuple[Function, ...]:
    """GPUs by address; empty where none is known."""
    return node.once("pci gpus", lambda: _gpus(node))


def each_nic(node: Node) -> list[Subject[Function]]:
    """NICs, alike on other nodes by rail."""
    return [_subject(node, each) for each in nics(node)]


def unplaced_nics(node: Node, leaf: str) -> list[Subject[Function]]:
    """NICs whose address nobody told, where sysfs tells `leaf` below their device."""
    try:
        ports = node.ports
    except Unread:
        return []
    return [
        _subject(node, Function(bdf="", port=port))
        for port in ports
        if not _is_placed(port) and _has(node.facts, port.device_path(f"device/{leaf}"))
    ]


def _is_placed(port: Port) -> bool:
    try:
        return bool(port.bdf())
    except Unread:
        return False


def _has(facts: Facts, path: str) -> bool:
    try:
        return bool(facts.entry(path))
    except Unread:
        return False


def each_function(node: Node) -> list[Subject[Function]]:
    """NICs and GPUs; Unread where the NICs cannot be told."""
    return each_nic(node) + [_subject(node, each) for each in gpus(node)]


def _subject(node: Node, each: Function) -> Subject[Function]:
    key = rail_of(node, each.port) if each.port else each.bdf
    return Subject(item=each, label=each.label, key=key, touches=each.touches)


def _nics(node: Node) -> tuple[Function, ...]:
    try:
        ports = node.ports
    except Unread:
        found = _without_rdma(node)
        if not found:
            raise
        return tuple(Function(bdf=bdf) for bdf in sorted(found))
    by_bdf: dict[str, Function] = {}
    kinds = set()
    for port in ports:
        try:
            by_bdf.setdefault(port.bdf(), Function(bdf=port.bdf(), port=port))
        except Unread as error:
            kinds.add(error.kind)
    if not by_bdf and kinds == {"absent"}:
        raise NotHere("RDMA devices in software: they are no PCI devices")
    return tuple(by_bdf[bdf] for bdf in sorted(by_bdf))


def _without_rdma(node: Node) -> set[str]:
    found = {bdf for bdf, d in _listed(node.facts).items() if d.is_nic or not d.kind}
    found |= _of_vendors(node.facts, _NIC_VENDORS)
    for netdev in _netdevs(node):
        try:
            found.add(bdf_of_netdev(node.facts, netdev))
        except Unread:
            continue
    return found - set(_bridges(node.facts)) - {each.bdf for each in gpus(node)}


def _netdevs(node: Node) -> list[str]:
    try:
        return [rail.netdev for rail in node.rails if rail.netdev]
    except Unread:
        return []


def _gpus(node: Node) -> tuple[Function, ...]:
    found = {bdf for bdf, device in _listed(node.facts).items() if device.is_gpu}
    found |= _of_vendors(node.facts, _GPU_VENDORS) - set(_bridges(node.facts))
    return tuple(Function(bdf=bdf) for bdf in sorted(found))


def _bridges(facts: Facts) -> list[str]:
    return [bdf for bdf, device in _listed(facts).items() if device.is_bridge]


def _listed(facts: Facts) -> dict[str, Device]:
    try:
        every = devices(facts)
    except Unread:
        return {}
    return {bdf: each for bdf, each in every.items() if isinstance(each, Device)}


def _of_vendors(facts: Facts, vendors: frozenset[str]) -> set[str]:
    found = set()
    for path in facts.matching(f"{PCI}/*/vendor"):
        try:
            if facts.line(path) in vendors:
                found.add(path.split("/")[-2])
        except Unread:
            continue
    return found
