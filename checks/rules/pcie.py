"""PCIe links of NICs and GPUs: width, speed, settings, and who is near to whom."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived, first
from checks.finding import Outcome, bad, info, ok
from checks.parse.garbled import Garbled
from checks.parse.gpu_topology import topology
from checks.parse.kernel_log import kernel_log
from checks.parse.lspci import Device, Link, devices
from checks.ports import PCI, ports
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.pci_subjects import (
    Function,
    each_nic,
    gpus,
    is_vm,
    nics,
    unplaced_nics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checks.node import Node

_SPEED = re.compile(r"^([\d.]+) GT/s")
_BLAMED = re.compile(r"^(\S+) ([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ")
_LIMITED = re.compile(
    r"[\d.]+ Gb/s available PCIe bandwidth, limited by .* at (\S+) \(capable of "
)
_POWER = "Detected insufficient power on the PCIe slot"
_NIC_DRIVER = "mlx5_core"
_NEAR = frozenset({"PIX", "PXB"})
_RANKS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_UNKNOWN_WIDTHS = frozenset({0, 63, 255})


def device(facts: Facts, bdf: str) -> Device:
    """What lspci tells of one function."""
    found = devices(facts).get(bdf)
    if found is None:
        raise Unread("missing", f"lspci -Dvvv -s {bdf}", "not collected")
    if isinstance(found, Unread):
        raise Unread(found.kind, found.what, found.reason)
    return found


def links(facts: Facts, function: Function) -> tuple[Link, Link]:
    """What its link can do and what it does; by sysfs, else by lspci."""
    return first(
        lambda: _of_sysfs(facts, function),
        lambda: device(facts, function.bdf).links(),
    )


def _of_sysfs(facts: Facts, function: Function) -> tuple[Link, Link]:
    most, now = (
        Link(
            gt_per_s=_speed(function.line(facts, f"{which}_link_speed")),
            width=_width(function.line(facts, f"{which}_link_width")),
        )
        for which in ("max", "current")
    )
    return most, now


def _speed(text: str) -> float:
    match = _SPEED.match(text)
    if match is None:
        raise Garbled("link_speed", f"no speed: {text[:40]!r}")
    return float(match[1])


def _width(text: str) -> int:
    if not text.isdigit() or int(text) in _UNKNOWN_WIDTHS:
        raise Garbled("link_width", f"no width: {text[:40]!r}")
    return int(text)


def _is_slower(most: Link, now: Link) -> bool:
    return now.gt_per_s < most.gt_per_s or (now.downgraded and now.width >= most.width)


def _each_physical_nic(node: Node) -> list[Subject[Function]]:
    """NICs that have a link of their own: virtual functions have none."""
    every = each_nic(node) + unplaced_nics(node, "current_link_width")
    found = [s for s in every if not (s.item.port and s.item.port.is_vf())]
    if every and not found:
        raise NotHere("virtual functions show no link")
    return found


@check(
    "pcie-link-nic",
    group="pcie",
    severity="E",
    why="a NIC does not slow its link by itself: slot, riser or bifurcation are bad",
    fix=("reseat the NIC, try another slot", "look at the bifurcation in the BIOS"),
    source=("R38 imbue-ai/cluster-health", "R39 mej/nhc PR#90"),
    needs=(f"{PCI}/*/current_link_speed", "lspci -Dvvv -s BDF"),
    over=_each_physical_nic,
)
def link_nic(node: Node, function: Function) -> Outcome:
    try:
        most, now = links(node.facts, function)
    except Unread as error:
        if error.kind == "absent" and is_vm(node):
            raise NotHere("a virtual machine does not show it") from None
        raise
    if now.width < most.width or _is_slower(most, now):
        return bad(now.shown, most.shown)
    return ok(now.shown, most.shown)


def _each_gpu(node: Node) -> list[Subject[Function]]:
    found = [
        Subject(item=each, label=each.label, touches=each.touches)
        for each in gpus(node)
    ]
    if not found and _has_no_gpu(node.facts):
        raise NotHere("no GPU on this node")
    return found


def _has_no_gpu(facts: Facts) -> bool:
    """Evidence that there is none: neither its driver nor its tool is there."""
    try:
        return not facts.exists("/proc/driver/nvidia/version")
    except Unread:
        return False


@check(
    "pcie-link-gpu",
    group="pcie",
    severity="W",
    why="a narrow link halves GPUDirect; that an idle GPU slows its link is normal",
    fix=("width: reseat the GPU", "speed: read it again under load"),
    source=("jan#183", "PCIe ASPM"),
    needs=(f"{PCI}/*/current_link_speed", "lspci -Dvvv -s BDF"),
    over=_each_gpu,
)
def link_gpu(node: Node, function: Function) -> Outcome:
    most, now = links(node.facts, function)
    if now.width < most.width:
        return bad(now.shown, most.shown, severity="E")
    if _is_slower(most, now):
        return info(f"{now.shown}: idle", most.shown)
    return ok(now.shown, most.shown)


@derived
def _limited(facts: Facts) -> dict[str, tuple[str, str]]:
    """By device: who said that its bandwidth is limited, and the line."""
    found: dict[str, tuple[str, str]] = {}
    for text in (line.text for line in kernel_log(facts)):
        limited = "PCIe bandwidth" in text and _LIMITED.search(text)
        if not limited:
            continue
        blamed = _BLAMED.match(text)
        driver, bdf = (blamed[1], blamed[2]) if blamed else (_NIC_DRIVER, limited[1])
        if found.get(bdf, ("",))[0] != _NIC_DRIVER:
            found[bdf] = (driver, text)
    return found


def _each_limited(node: Node) -> list[Subject[tuple[Function, bool]]]:
    """NICs; besides them what mlx5_core complains of, as (device, is selected)."""
    try:
        known = [(each, True) for each in nics(node)]
        selected = True
    except Unread:
        known, selected = [], False
    seen = {each.bdf for each, _ in known}
    for bdf, (driver, _) in sorted(_limited(node.facts).items()):
        if driver == _NIC_DRIVER and bdf not in seen:
            known.append((Function(bdf=bdf), not selected or _is_bridge(node, bdf)))
    return [
        Subject(item=(each, ours), label=each.label, touches=each.touches)
        for each, ours in known
    ] or [Subject(item=(Function(bdf=""), True))]


def _is_bridge(node: Node, bdf: str) -> bool:
    """A line without a driver names the limiting port only: that is one of ours."""
    return not _BLAMED.match(_limited(node.facts)[bdf][1])


@check(
    "pcie-dmesg-limited",
    group="pcie",
    severity="E",
    why="the driver found less PCIe bandwidth than the NIC can use, and says where",
    fix=("reseat what the line names", "look at the bifurcation in the BIOS"),
    source=("R38 imbue-ai/cluster-health",),
    needs=("dmesg -J",),
    follows=("pcie-link-nic",),
    over=_each_limited,
)
def dmesg_limited(node: Node, item: tuple[Function, bool]) -> Outcome:
    function, ours = item
    driver, text = _limited(node.facts).get(function.bdf, ("", ""))
    if driver != _NIC_DRIVER:
        return ok("nothing in the kernel's log", "full PCIe bandwidth")
    if not ours:
        return info(text[:200], "not selected")
    return bad(text[:200], "full PCIe bandwidth")


@derived
def _unpowered(facts: Facts) -> dict[str, str]:
    found = {}
    for text in (line.text for line in kernel_log(facts)):
        blamed = _POWER in text and _BLAMED.match(text)
        if blamed:
            found[blamed[2]] = text
    return found


@check(
    "pcie-power",
    group="pcie",
    severity="E",
    why="the slot gives less power than the NIC and its optics need: the port drops",
    fix=("move the NIC to a slot of 75 W", "check the slot's power in the BIOS"),
    source=("gpud kmsg matchers",),
    needs=("dmesg -J",),
    over=each_nic,
)
def power(node: Node, function: Function) -> Outcome:
    text = _unpowered(node.facts).get(function.bdf, "")
    if text:
        return bad(text[:200], "enough power")
    return ok("nothing in the kernel's log", "enough power")


@check(
    "pcie-aer",
    group="pcie",
    severity="E",
    why="errors on the link: a bad contact, a bad riser, a dying device",
    fix=("reseat the device", "lspci -vvv -s BDF: UESta, CESta"),
    source=("Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats",),
    needs=(f"{PCI}/*/aer_dev_fatal", f"{PCI}/*/aer_dev_nonfatal"),
    over=_each_physical_nic,
)
def aer(node: Node, function: Function) -> Outcome:
    totals, deltas = {}, {}
    for kind in ("fatal", "nonfatal", "correctable"):
        values = _errors(node.facts, function, kind)
        totals[kind], deltas[kind] = values[-1], values[-1] - values[0]
    shown = ", ".join(f"{kind} {count}" for kind, count in totals.items())
    if deltas["fatal"] > 0 or deltas["nonfatal"] > 0:
        return bad(f"{shown}, and growing", "no error")
    if totals["fatal"] or totals["nonfatal"] or deltas["correctable"] > 0:
        return bad(f"{shown} since boot", "no error", severity="W")
    return ok(shown, "no uncorrectable error")


def _errors(facts: Facts, function: Function, kind: str) -> list[int]:
    path = f"{PCI}/{function.bdf}/aer_dev_{kind}"
    try:
        entries = facts.entries_of(path)
    except Unread:
        if function.port is None:
            raise
        path = function.port.device_path(f"device/aer_dev_{kind}")
        entries = facts.entries_of(path)
    if entries[-1].get("errno") == "ENOENT":
        raise NotHere("no error reporting (AER) for this device")
    facts.text(path)
    texts = [entry.get("text") for entry in entries]
    return [_total(path, kind, str(text)) for text in texts]


def _total(path: str, kind: str, text: str) -> int:
    names = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}
    match = re.search(rf"^TOTAL_ERR_{names[kind]} (\d+)$", text, re.M)
    if match is None:
        raise Garbled(path, "no total in it")
    return int(match[1])


@compared(
    "pcie-maxreadreq",
    group="pcie",
    severity="W",
    why="small read requests cost bandwidth, and only where they are set",
    fix=("set MaxReadReq with the BIOS or setpci -s BDF CAP_EXP+8.w", "reboot"),
    source=("oci-hpc samples",),
    needs=("lspci -Dvvv -s BDF",),
    over=_each_physical_nic,
)
def max_read_request(node: Node, function: Function) -> Outcome | str:
    request, payload = device(node.facts, function.bdf).read_sizes()
    value = f"MaxReadReq {request}, MaxPayload {payload}"
    least = node.profile.iommu.min_read_request
    if least is None:
        return value
    expected = f"MaxReadReq {least} or more (profile)"
    return (
        ok(value, expected, value=value) if request >= least else bad(value, expected)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The nearest selected NIC of one GPU; `read` tells how near it is."""

    gpu: str
    read: Callable[[], tuple[str, str]]


def _each_pair(node: Node) -> list[Subject[Nearest]]:
    """GPUs as nvidia-smi names them; else by address, from the tree in sysfs."""
    try:
        matrix = topology(node.facts).relations
    except Unread as error:
        if error.kind not in {"missing", "no tool", "failed"}:
            raise
        return _pairs_of_sysfs(node, error)
    return [_pair(gpu, _in_matrix(node, gpu)) for gpu in sorted(matrix)]


def _pair(gpu: str, read: Callable[[], tuple[str, str]]) -> Subject[Nearest]:
    return Subject(
        item=Nearest(gpu=gpu, read=read), label=gpu, touches=frozenset({gpu})
    )


def _in_matrix(node: Node, gpu: str) -> Callable[[], tuple[str, str]]:
    def read() -> tuple[str, str]:
        row = topology(node.facts).relations[gpu]
        try:
            ours = {port.device for port in node.ports}
        except Unread as error:
            return _far_from_all(row, error)
        found = {name: how for name, how in row.items() if name in ours}
        if not found:
            raise Unread("missing", "nvidia-smi topo -m", "no selected NIC in it")
        nearest = _nearest(found)
        if nearest[1] not in _NEAR:
            _refuse_strangers(node.facts, row)
        return nearest

    return read


def _far_from_all(row: Mapping[str, str], error: Unread) -> tuple[str, str]:
    """Which NICs are ours is not known: that none at all is near is told still."""
    if not row or error.kind != "missing" or _NEAR & set(row.values()):
        raise error
    return _nearest(dict(row))


def _refuse_strangers(facts: Facts, row: Mapping[str, str]) -> None:
    """A near NIC that the kernel does not know: the two sources are of two times."""
    known = {port.device for port in ports(facts)}
    near = sorted(name for name, how in row.items() if how in _NEAR)
    gone = [name for name in near if name not in known]
    if gone:
        raise Garbled("nvidia-smi topo -m", f"the kernel has no {', '.join(gone)}")


def _nearest(found: dict[str, str]) -> tuple[str, str]:
    return min(found.items(), key=lambda one: (_rank(one[1]), one[0]))


def _rank(relation: str) -> int:
    return _RANKS.index(relation) if relation in _RANKS else len(_RANKS)


def _pairs_of_sysfs(node: Node, error: Unread) -> list[Subject[Nearest]]:
    found = gpus(node)
    if not found:
        if _has_no_gpu(node.facts):
            raise NotHere("no GPU on this node")
        raise error
    return [_pair(gpu.bdf, _in_tree(node, gpu)) for gpu in found]


def _in_tree(node: Node, gpu: Function) -> Callable[[], tuple[str, str]]:
    def read() -> tuple[str, str]:
        above = _above(node.facts, gpu)
        found = {n.label: _relation(above, _above(node.facts, n)) for n in nics(node)}
        if not found:
            raise Unread("missing", "/sys/class/infiniband", "no selected NIC")
        return _nearest(found)

    return read


def _above(facts: Facts, function: Function) -> tuple[str, ...]:
    """The path of a device from its host bridge down, itself left out."""
    target = facts.link(f"{PCI}/{function.bdf}")
    parts = [part for part in target.split("/") if ":" in part]
    if not parts or not parts[0].startswith("pci"):
        raise Garbled(f"{PCI}/{function.bdf}", f"no path of a PCI device: {target}")
    return tuple(parts[:-1])


def _relation(one: tuple[str, ...], other: tuple[str, ...]) -> str:
    """PIX below one bridge, PXB below several, PHB below one host bridge, else SYS."""
    shared = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared == 0:
        return "SYS"
    if shared == 1:
        return "PHB"
    return "PIX" if shared == len(one) == len(other) else "PXB"


@check(
    "pcie-gpu-nic-distance",
    group="pcie",
    severity="W",
    why="traffic of the GPU crosses a host bridge or a socket, and GPUDirect is off",
    fix=("give the GPU the NIC below its own switch", "move the NIC to another slot"),
    source=("R47 AKS PR#5697, Mooncake#429", "nvidia-smi topo -m"),
    needs=("nvidia-smi topo -m", f"{PCI}/*"),
    over=_each_pair,
)
def gpu_nic_distance(node: Node, pair: Nearest) -> Outcome:
    nic, how = pair.read()
    shown = f"nearest is {nic}: {how}"
    return ok(shown, "PIX or PXB") if how in _NEAR else bad(shown, "PIX or PXB")
