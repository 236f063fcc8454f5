"""What drives a NIC: kernel modules and drivers, device nodes, user space libraries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.finding import Outcome, bad, ok
from checks.parse.driver_version import INBOX, normalised
from checks.parse.ethtool_driver import described_netdevs, ethtool_driver
from checks.parse.ibv_devices import complaints, opened_devices
from checks.parse.kernel_release import kernel_release
from checks.parse.modules import loaded
from checks.parse.rdma_link import core_is_absent
from checks.parse.services import services
from checks.ports import ports
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.optional import NOWHERE, UNREADABLE, optional
from checks.rules.subjects import each_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.node import Node
    from checks.ports import Port

_STACKED = frozenset(
    {
        "802.1Q VLAN Support",
        "bonding",
        "bridge",
        "dummy",
        "mlx5e_rep",
        "openvswitch",
        "team",
        "tun",
    }
)
_MLX5 = "/sys/module/mlx5_core"
_DEV = "/dev/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_UID = re.compile(r"^Uid:\s+\d+\s+(\d+)", re.MULTILINE)
_GONE = "is missing"


# Drivers


def _driver_subjects(node: Node) -> list[Subject[str]]:
    """The version, and the build of the module where it tells one."""
    found = [Subject(item="")]
    path = f"{_MLX5}/srcversion"
    if optional(lambda: node.facts.exists(path), UNREADABLE):
        found.append(Subject(item="srcversion", label="mlx5_core srcversion"))
    return found


@compared(
    "nic-driver-consistent",
    group="nic",
    severity="E",
    why="drivers of the kernel and of the vendor differ in defaults, limits and bugs",
    fix=("install the same driver package as on the peers, and reboot",),
    source=("R37 network-operator#3104, #3105", "article: firmware and drivers"),
    needs=(
        "ethtool -i NETDEV",
        "/sys/module/mlx5_core/version",
        "/sys/module/mlx5_core/srcversion",
        "ofed_info -s",
        "uname -r",
    ),
    follows=("nic-driver-kernel-mismatch",),
    over=_driver_subjects,
)
def driver(node: Node, what: str) -> Outcome | str:
    if what:
        return node.facts.line(f"{_MLX5}/{what}")
    seen = _drivers(node)
    mixed = _mix(node, seen)
    if mixed:
        return bad(mixed, "one driver, of one origin")
    allowed = {normalised(text) for text in node.profile.nic.driver}
    if not allowed:
        return seen
    expected = f"{' or '.join(sorted(allowed))} (profile)"
    versions = {one.partition(" ")[2] for one in seen.split(", ")}
    if versions <= allowed:
        return ok(seen, expected, value=seen)
    return bad(seen, expected)


def _mix(node: Node, seen: str) -> str:
    """Two versions of one driver, or the kernel's own beside a vendor's package."""
    names = [one.partition(" ")[0] for one in seen.split(", ")]
    if len(set(names)) < len(names):
        return seen
    told = optional(
        lambda: node.facts.result("ofed_info").text(), UNREADABLE | {"empty"}
    )
    if told and f" {INBOX} " in seen and "mlx5_core" in names:
        installed = normalised(told.splitlines()[0])
        if not installed.startswith(INBOX):
            return f"{seen} runs, although {installed} is installed"
    return ""


def _drivers(node: Node) -> str:
    """`mlx5_core 24.10-0.7.0`, of every driver of the selected NICs."""
    told = {
        f"{one.name} {normalised(one.version)}".strip()
        for netdev in _netdevs(node)
        if (one := optional(lambda n=netdev: ethtool_driver(node.facts, n), UNREADABLE))  # type: ignore[misc]
        and one.name not in _STACKED
    }
    return ", ".join(sorted(told)) if told else _by_module(node.facts)


def _netdevs(node: Node) -> tuple[str, ...]:
    """Network devices of the selected ports; else all whose driver was asked for."""
    chosen = optional(lambda: node.ports)
    if chosen is None:
        return described_netdevs(node.facts)
    names = (optional(port.netdev, UNREADABLE | {"empty"}) for port in chosen)
    found = tuple(sorted({name for name in names if name}))
    return found or described_netdevs(node.facts)


def _by_module(facts: Facts) -> str:
    """What the loaded module says; a module without a version is the kernel's own."""
    path = f"{_MLX5}/version"
    try:
        return f"mlx5_core {normalised(facts.line(path))}"
    except Unread as error:
        if error.kind == "absent":
            return f"mlx5_core {normalised(kernel_release(facts))}"
        if error.kind != "missing":
            raise
    told = facts.result("ofed_info").text()
    return f"mlx5_core {normalised(told.splitlines()[0])}"


# Modules


@check(
    "nic-modules",
    group="nic",
    severity="C",
    why="without its modules an RDMA device is there and nobody can open it",
    fix=("modprobe rdma_ucm ib_uverbs mlx5_ib, and list them in /etc/modules-load.d",),
    source=("azhpc-images#466",),
    needs=("/proc/modules", "/dev/infiniband", "/sys/class/infiniband"),
)
def kernel_modules(node: Node, _: None) -> Outcome:
    _refuse_without_devices(node.facts)
    devices = {port.device for port in ports(node.facts)}
    wanted = {"ib_uverbs", "rdma_ucm"}
    if any(device.startswith("mlx5") for device in devices):
        wanted.add("mlx5_ib")
    found = loaded(node.facts) | _proven(node.facts, devices)
    missing = sorted(wanted - found)
    expected = f"{', '.join(sorted(wanted))} loaded"
    if missing:
        return bad(f"not loaded: {', '.join(missing)}", expected)
    return ok("loaded", expected)


def _refuse_without_devices(facts: Facts) -> None:
    """SKIP where it is seen that there is no RDMA device: `nic-count` says so."""
    every = optional(lambda: ports(facts), UNREADABLE)
    if every:
        return
    if core_is_absent(facts):
        raise NotHere("the kernel has no RDMA core")
    if every is not None:
        raise NotHere("there is no RDMA device")


def _proven(facts: Facts, devices: set[str]) -> set[str]:
    """Modules that must be there, built in perhaps, because of what they made."""
    found = set()
    if any(device.startswith("mlx5") for device in devices):
        found.add("mlx5_ib")
    names = optional(lambda: facts.names(_DEV), UNREADABLE) or ()
    if "rdma_cm" in names and _problem(facts, "rdma_cm") != _GONE:
        found.add("rdma_ucm")
    if found or "rdma_ucm" in loaded(facts):  # both need it
        found.add("ib_uverbs")
    return found


# Device nodes


def _ports_and_places(node: Node) -> list[Subject[Port | str]]:
    """Selected ports, and the pods in which somebody asked for RDMA devices."""
    _refuse_without_devices(node.facts)
    found: list[Subject[Port | str]] = [
        Subject(item=one.item, label=one.label, key=one.key, touches=one.touches)
        for one in each_port(node)
    ]
    return found + _places(node)


def _places(node: Node) -> list[Subject[Port | str]]:
    return [
        Subject(item=where, label=where, touches=frozenset({where}))
        for where in node.facts.places()
        if node.facts.find("ibv_devinfo", where=where)
    ]


@check(
    "nic-uverbs-devnode",
    group="nic",
    severity="C",
    why="an RDMA device that cannot be opened is none: the engine falls back to TCP"
    " or does not start; librdmacm fails when a single one is missing",
    fix=(
        "modprobe ib_uverbs, udevadm trigger",
        "in a pod: a device plugin, or /dev/infiniband with its device cgroup",
    ),
    source=("R83 rdma-core PR#1060", "R87 spiderpool#4345", "R85: issm is no matter"),
    needs=(
        "/sys/class/infiniband_verbs/*/ibdev",
        "/dev/infiniband",
        "/dev/infiniband/uverbs*",
    ),
    over=_ports_and_places,
)
def device_node(node: Node, item: Port | str) -> Outcome:
    if isinstance(item, str):
        seen = opened_devices(node.facts, item)
        told = f"{len(seen)} devices" if seen else "No IB devices found"
        expected = "RDMA devices that can be opened"
        return ok(told, expected) if seen else bad(told, expected)
    name = _uverbs_of(node.facts, item.device)
    expected = "a device node that the service can open"
    if not name:
        return bad("it has no uverbs device: is ib_uverbs loaded?", expected)
    problem = _problem(node.facts, name)
    if problem:
        return bad(f"{_DEV}/{name} {problem}", expected)
    return _by_mode(node.facts, name, expected)


def _uverbs_of(facts: Facts, device: str) -> str:
    """`uverbs3`; "" where it is seen that the device has none."""
    found = _uverbs(facts)
    if device in found:
        return found[device]
    listed = optional(lambda: facts.names(_VERBS))
    if listed is None:
        nodes = [n for n in facts.names(_DEV) if n.startswith("uverbs")]
        if nodes:
            path = f"{_VERBS}/*/ibdev"
            raise Unread("missing", path, "which device node belongs to it is unknown")
        return ""
    unread = {n for n in listed if n.startswith("uverbs")} - set(found.values())
    if unread:
        raise Unread("missing", f"{_VERBS}/{min(unread)}/ibdev", "not readable")
    return ""


@derived
def _uverbs(facts: Facts) -> Mapping[str, str]:
    found = {}
    for path in facts.matching(f"{_VERBS}/*/ibdev"):
        device = optional(lambda path=path: facts.line(path), UNREADABLE)  # type: ignore[misc]
        if device:
            found[device] = path.split("/")[-2]
    return found


def _problem(facts: Facts, name: str) -> str:
    """What is wrong with a device node before its mode counts; "" if nothing."""
    try:
        entry = facts.entry(f"{_DEV}/{name}")
    except Unread:
        return "" if name in facts.names(_DEV) else _GONE
    errno = str(entry.get("errno", ""))
    if errno in {"ENOENT", "ENODEV", "ENXIO", "ENOTDIR"}:
        return _GONE
    return f"cannot be opened ({errno})" if errno else ""


def _by_mode(facts: Facts, name: str, expected: str) -> Outcome:
    path = f"{_DEV}/{name}"
    text = str(facts.entry(path).get("mode", ""))
    if not re.fullmatch(r"(?:0o)?[0-7]{3,6}", text):
        raise Unread("garbled", path, f"no mode: {text!r}")
    mode = int(text.removeprefix("0o"), 8)
    seen = f"{path} has mode {text}"
    if mode & 0o006 == 0o006:
        return ok(seen, expected)
    if mode & 0o600 == 0o600 and _only_root(facts):
        return bad(f"{seen}: only for root's services", "mode 0666", severity="W")
    if mode & 0o060 == 0o060:
        return bad(f"{seen}: only for its group", "mode 0666", severity="W")
    return bad(f"{seen}: only for its owner", "mode 0666")


def _only_root(facts: Facts) -> bool:
    """Every service whose user is known runs as root, and there is one."""
    texts = (
        optional(lambda s=s: facts.text(f"/proc/{s.pid}/status"), UNREADABLE)  # type: ignore[misc]
        for s in services(facts)
    )
    users = [m[1] for text in texts if text and (m := _UID.search(text))]
    return bool(users) and set(users) == {"0"}


# User space


def _host_and_places(node: Node) -> list[Subject[str]]:
    every = optional(lambda: ports(node.facts), NOWHERE | {"failed"}) or ()
    host = frozenset().union(*(port.touches for port in every))
    return [
        Subject(item="", touches=host),
        *[
            Subject(item=str(one.item), label=one.label, touches=one.touches)
            for one in _places(node)
        ],
    ]


@check(
    "nic-userspace-provider",
    group="nic",
    severity="C",
    why="libibverbs without the provider of the NIC does not see it: engines fall back"
    " to TCP, and say so in one line of a log",
    fix=(
        "install ibverbs-providers, or the vendor's user space of the same version",
        "in a container: the same release of rdma-core as its provider libraries",
    ),
    source=("R44 byteps#313, ucx PR#6442", "R45"),
    needs=("ibv_devinfo -l", "ibv_devinfo -v", "/sys/class/infiniband"),
    requires=("nic-uverbs-devnode",),
    over=_host_and_places,
)
def provider(node: Node, where: str) -> Outcome:
    if not where:
        _refuse_without_devices(node.facts)
    told = complaints(node.facts, where)
    devices = () if where else _devices(node.facts)
    expected = f"all {len(devices)} devices" if devices else "every device"
    complaint = next((line for line in told if _concerns(line, devices)), "")
    try:
        opened = opened_devices(node.facts, where)
    except Unread:
        if complaint or told:
            return bad(complaint or told[0], expected)
        raise
    missing = [name for name in devices if name not in opened]
    if missing or not opened:
        seen = f"libibverbs lists {len(opened)} of {len(devices)} devices"
        reason = f": {told[0]}" if told else ""
        return bad(f"{seen if devices else 'no device is listed'}{reason}", expected)
    if complaint:
        return bad(complaint, expected)
    if not (devices or where):
        raise Unread("missing", "/sys/class/infiniband", "nothing to compare with")
    return ok(f"libibverbs lists {len(opened)} devices", expected)


def _devices(facts: Facts) -> tuple[str, ...]:
    every = optional(lambda: ports(facts), NOWHERE | {"failed"}) or ()
    return tuple(dict.fromkeys(port.device for port in every))


def _concerns(line: str, devices: tuple[str, ...]) -> bool:
    """It names the driver of one of the devices: `couldn't load driver 'mlx5'`."""
    named = re.search(r"couldn't load driver '?(?:lib)?([A-Za-z]+\d*)", line)
    if named is None:
        return False
    return not devices or any(device.startswith(named[1]) for device in devices)
