"""NIC links: network device beside the RDMA port, rate, NUMA node, FEC, errors, VFs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip
from checks.parse.ethtool_modes import (
    active_fec,
    pause,
    statistics,
    unsupported,
)
from checks.parse.garbled import Garbled
from checks.parse.ip_addr import links
from checks.parse.port_rate import gigabits
from checks.ports import ports
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.optional import NOWHERE, UNREADABLE, optional
from checks.rules.subjects import each_netdev, each_port

if TYPE_CHECKING:
    from checks.node import Node
    from checks.parse.ip_addr import Link
    from checks.ports import Port
    from checks.rails import Rail

_NET = "/sys/class/net"
_UP = frozenset({"up", "unknown"})
_ZERO_GUID = "0000:0000:0000:0000"


def _rails_with_netdev(node: Node) -> list[Subject[Rail]]:
    return [
        Subject(item=rail, label=rail.netdev, key=rail.name, touches=rail.touches)
        for rail in node.rails
        if rail.netdev
    ]


@check(
    "nic-netdev-oper",
    group="nic",
    severity="C",
    why="an RDMA port and its network device live and die together; where they differ,"
    " GIDs and routes are gone although the port looks fine",
    fix=("ip link set NETDEV up", "look at the kernel's log of the NIC, reset it"),
    source=("Meta GCM check-iblink: ACTIVE with operstate down",),
    needs=(
        "/sys/class/net/*/operstate",
        "/sys/class/net/*/carrier",
        "ip -j -d addr",
        "/sys/class/infiniband/*/ports/*/state",
    ),
    requires=("nic-port-state",),
    over=_rails_with_netdev,
)
def netdev_oper(node: Node, rail: Rail) -> Outcome:
    down = _why_down(node, rail.netdev)
    device = f"{rail.netdev} is {down or 'up'}"
    if rail.port is None:
        expected = f"{rail.netdev} is up"
        return bad(device, expected) if down else ok(device, expected)
    state = rail.port.state()
    seen = f"RDMA port {state}, {device}"
    expected = "RDMA port ACTIVE, network device up"
    if state == "ACTIVE":
        return bad(seen, expected) if down else ok(seen, expected)
    return ok(seen, "both down") if down else bad(seen, expected)


def _why_down(node: Node, netdev: str) -> str:
    """What says that a network device is down; "" where it is up, by every source."""
    facts, base = node.facts, f"{_NET}/{netdev}"
    operstate = optional(lambda: facts.line(f"{base}/operstate"))
    carrier = optional(lambda: facts.line(f"{base}/carrier"), UNREADABLE)
    link = _link(node, netdev)
    if operstate is None and link is None:
        raise Unread("missing", f"{base}/operstate", "not collected")
    if operstate is not None and operstate.lower() not in _UP:
        return f"{operstate} (operstate)"
    if link is not None and not link.up:
        missing = sorted({"UP", "LOWER_UP"} - link.flags)
        told = f"without {' and '.join(missing)}, " if missing else ""
        return f"down ({told}operstate {link.operstate or 'unknown'})"
    return "down (no carrier)" if carrier == "0" else ""


def _link(node: Node, netdev: str) -> Link | None:
    every = optional(partial(links, node.facts))
    return None if every is None else every.get(netdev)


@compared(
    "nic-rate",
    group="nic",
    severity="E",
    why="one slow rail sets the pace of every transfer that is spread over all rails",
    fix=("compare speed, autonegotiation and FEC with the switch port", "ethtool NET"),
    source=("R46 RDMA rate of a bond is that of one leg", "mej/nhc#21: >=, not =="),
    needs=("/sys/class/infiniband/*/ports/*/rate", "/sys/class/net/*/speed"),
    requires=("nic-port-state",),
    over=each_port,
)
def rate(node: Node, port: Port) -> Outcome | str:
    seen = f"{_rate_gbps(node, port):g}"
    least = node.profile.nic.min_rate_gbps
    if least is None:
        return seen
    expected = f"at least {least:g} Gb/s (profile)"
    shown = f"{seen} Gb/s"
    if float(seen) >= least:
        return ok(shown, expected, value=seen)
    return bad(shown, expected)


def _rate_gbps(node: Node, port: Port) -> float:
    netdev = optional(port.netdev) or ""
    if netdev and is_bond(node, port, netdev):
        speed = _speed_gbps(node, netdev)
        if speed is None:
            path = f"{_NET}/{netdev}/speed"
            raise Unread("missing", path, "the bond does not tell its speed")
        return speed
    told = optional(lambda: gigabits(port.text("rate")))
    speed = _speed_gbps(node, netdev) if netdev else None
    every = [one for one in (told, speed) if one is not None]
    if not every:
        raise Unread("missing", port.path("rate"), "not collected")
    return min(every)


def is_bond(node: Node, port: Port, netdev: str) -> bool:
    """Whether a port is a bond of several (RoCE LAG)."""
    link = optional(partial(_link, node, netdev), NOWHERE | {"garbled", "truncated"})
    kind = link.kind if link is not None else ""
    known = optional(lambda: node.facts.exists(f"/proc/net/bonding/{netdev}"))
    return (
        "bond" in port.device
        or netdev.startswith("bond")
        or kind == "bond"
        or (known is True)
    )


def _speed_gbps(node: Node, netdev: str) -> float | None:
    """The speed of a network device; None where it tells none (-1, EINVAL)."""
    path = f"{_NET}/{netdev}/speed"
    megabits = optional(lambda: node.facts.number(path), UNREADABLE)
    return None if megabits is None or megabits <= 0 else megabits / 1000


@compared(
    "nic-numa",
    group="nic",
    severity="W",
    why="Mooncake pairs rails by NUMA node; on another one it picks other peers",
    fix=("BIOS: NUMA per socket, PCIe slot of the NIC", "compare lspci -vv with peers"),
    source=("R40 Mooncake PR#2790 (#2467, #2758)", "nccl#1277"),
    needs=(
        "/sys/class/infiniband/*/device/numa_node",
        "/sys/devices/system/node",
    ),
    over=each_port,
)
def numa(node: Node, port: Port) -> Outcome | str:
    told = _whole(port, "device/numa_node")
    if told >= 0:
        return str(told)
    if optional(lambda: node.is_vm, UNREADABLE | {"empty"}) is True:
        return skip("a virtual machine tells no NUMA node")
    count = _numa_nodes(node)
    if count == 1:
        return ok("-1, and the machine has one NUMA node", value="-1")
    return bad("-1", f"one of the {count} NUMA nodes of the machine")


def _whole(port: Port, leaf: str) -> int:
    text = port.device_text(leaf)
    try:
        return int(text)
    except ValueError:
        raise Garbled(port.device_path(leaf), f"not a number: {text!r}") from None


def _numa_nodes(node: Node) -> int:
    names = node.facts.names("/sys/devices/system/node")
    found = [name for name in names if name[:4] == "node" and name[4:].isdigit()]
    if not found:
        raise Unread("empty", "/sys/devices/system/node", "no NUMA node is listed")
    return len(found)


def _functions(node: Node) -> list[Subject[Port]]:
    """Selected ports, and every virtual function of the node."""
    found = list(each_port(node))
    chosen = {subject.label for subject in found}
    found += [
        Subject(item=port, label=port.label, touches=port.touches)
        for port in ports(node.facts)
        if port.is_vf() and port.label not in chosen
    ]
    return found


@compared(
    "nic-vf-config",
    group="nic",
    severity="E",
    why="a virtual function without a GUID, or one of too few, gives a pod no RDMA",
    fix=(
        "echo N > /sys/class/net/NETDEV/device/sriov_numvfs, then rebind the VFs",
        "set node_guid and port_guid of the VF before its driver is bound",
    ),
    source=("R61: VFs without GUID, cloned MAC addresses",),
    needs=(
        "/sys/class/infiniband/*/device/sriov_numvfs",
        "/sys/class/infiniband/*/node_guid",
        "ip -j -d addr",
    ),
    over=_functions,
)
def vf_config(node: Node, port: Port) -> Outcome | str:
    guid = optional(lambda: port.device_text("node_guid"))
    virtual = port.is_vf()
    if guid is not None and guid.lower() == _ZERO_GUID:
        kind = "virtual function" if virtual else "device"
        return bad(f"the {kind} has node_guid {guid}", "a GUID of its own")
    if virtual:
        if guid is None:
            raise Unread("missing", port.device_path("node_guid"), "not collected")
        return ok(f"virtual function with node_guid {guid}")
    return _physical_function(node, port)


def _physical_function(node: Node, port: Port) -> Outcome | str:
    try:
        count = _whole(port, "device/sriov_numvfs")
    except Unread as error:
        if error.kind == "absent":
            raise NotHere("the NIC has no SR-IOV") from None
        raise
    wanted = node.profile.nic.vfs
    if wanted is not None and count != wanted:
        return bad(f"{count} VFs", f"{wanted} VFs (profile)")
    return f"{count} VFs{_policy(node, port) if count else ''}"


def _policy(node: Node, port: Port) -> str:
    """How the VFs are set up, as far as `ip` tells: what all have in common."""
    link = _link(node, optional(port.netdev) or "")
    if link is None or not link.vfs:
        return ""
    told = [
        f"{name} {'/'.join(sorted({str(vf[name]).lower() for vf in with_it}))}"
        for name in ("link_state", "trust", "spoofchk")
        if (with_it := [vf for vf in link.vfs if name in vf])
    ]
    return f", {', '.join(told)}" if told else ""


@compared(
    "nic-psid-consistent",
    group="nic",
    severity="W",
    why="another board has other firmware, other defaults and other limits",
    fix=("split the cohort, or replace the card",),
    source=("catalogue: hardware mix within a cohort",),
    needs=("/sys/class/infiniband/*/board_id",),
    over=each_port,
)
def psid(node: Node, port: Port) -> str:
    return port.psid()


@compared(
    "nic-fec",
    group="nic",
    severity="W",
    why="FEC that differs from the switch's makes a link flap, or not come up at all",
    fix=("ethtool --set-fec NETDEV encoding auto",),
    source=("catalogue: FEC mismatch",),
    needs=("ethtool --show-fec NETDEV",),
    requires=("nic-port-state",),
    over=each_netdev,
)
def fec(node: Node, netdev: str) -> str:
    _refuse_unsupported(node, "fec", netdev)
    return active_fec(node.facts, netdev)


@compared(
    "nic-autoneg-pause",
    group="nic",
    severity="W",
    why="global pause stops all priorities, and priority flow control with it",
    fix=("ethtool -A NETDEV rx off tx off where PFC is on",),
    source=("R56 byteps#179, nccl#378",),
    needs=("ethtool -a NETDEV",),
    over=each_netdev,
)
def autoneg_pause(node: Node, netdev: str) -> str:
    _refuse_unsupported(node, "pause", netdev)
    told = pause(node.facts, netdev)
    words = {True: "on", False: "off"}
    return f"rx {words[told['RX']]}, tx {words[told['TX']]}"


def _refuse_unsupported(node: Node, operation: str, netdev: str) -> None:
    result = node.facts.result("ethtool", operation, netdev)
    if result.rc != 0 and unsupported(result):
        raise NotHere(f"the driver of {netdev} has no such operation")


_UNCORRECTED = (
    "rx_symbol_err_phy",
    "rx_crc_errors_phy",
    "link_down_events_phy",
)


@check(
    "nic-symbol-err",
    group="nic",
    severity="W",
    why="errors that FEC cannot correct become retransmissions and timeouts",
    fix=("clean or replace optic and cable", "ethtool -m NETDEV"),
    source=("gpud, NVSentinel: link integrity by change, never by total",),
    needs=("ethtool -S NETDEV (two samples)",),
    over=each_netdev,
)
def symbol_errors(node: Node, netdev: str) -> Outcome:
    samples = statistics(node.facts, netdev)
    if len(samples) < 2:
        raise Unread("missing", f"ethtool -S {netdev}", "only one sample was taken")
    first, last = samples[0], samples[-1]
    if first.keys() != last.keys():
        raise Unread("truncated", f"ethtool -S {netdev}", "samples of other counters")
    known = [name for name in _UNCORRECTED if name in first and name in last]
    if not known:
        raise Unread("missing", f"ethtool -S {netdev}", "none of the error counters")
    grown = [f"{n} +{last[n] - first[n]}" for n in known if last[n] > first[n]]
    expected = "no change between two samples"
    return bad(", ".join(grown), expected) if grown else ok("no change", expected)
