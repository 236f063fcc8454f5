"""NICs: how many, what they are, whether their links are up, firmware and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip
from checks.parse.rdma_link import core_is_absent
from checks.ports import natural
from checks.rules.declare import Subject, check, compared
from checks.rules.subjects import each_port, each_port_by_board, rail_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checks.node import Node
    from checks.ports import Port

_STATES = {
    "POLLING": "no link partner, or no cable",
    "DISABLED": "switched off by the administrator",
    "SLEEP": "asleep",
    "LINK_ERROR_RECOVER": "flapping",
    "TRAINING": "training the link",
}


@compared(
    "nic-count",
    group="nic",
    severity="C",
    why="a NIC that fell off the bus, or runs another link type, halves a rail group",
    fix=(
        "lspci | grep -i -e mellanox -e infiniband",
        "dmesg | grep -i mlx5",
        "mstconfig -d BDF q LINK_TYPE_P1",
    ),
    source=("R36 infra-controller#3624", "Primus node_smoke roll-call"),
    needs=("/sys/class/infiniband", "rdma -j -d link"),
)
def count(node: Node, _: None) -> Outcome | str:
    try:
        selection = node.selection
    except Unread:
        if core_is_absent(node.facts):
            return bad("the kernel has no RDMA core", "RDMA ports")
        raise
    if not selection.chosen:
        left = ", ".join(f"{n}: {why}" for n, why in sorted(selection.excluded.items()))
        return bad(f"no port is selected ({left or 'there is none'})", "RDMA ports")
    if selection.missing:
        gone = ", ".join(selection.missing)
        return bad(f"no such device: {gone}", f"named by {selection.origin}")
    found = len(selection.chosen)
    wanted = node.profile.nic.count
    if wanted is None:
        return str(found)
    expected = f"{wanted} ports (profile)"
    return ok(found, expected, value=found) if found == wanted else bad(found, expected)


@compared(
    "nic-link-type",
    group="nic",
    severity="C",
    why="one InfiniBand port among RoCE ports has no IP, no RoCE GID and no peer",
    fix=("mstconfig -d BDF set LINK_TYPE_P1=ETH, then mlxfwreset or reboot",),
    source=("R36 infra-controller#3624", "R02 sglang#30737"),
    needs=("/sys/class/infiniband/*/ports/*/link_layer",),
    over=each_port,
)
def link_type(node: Node, port: Port) -> Outcome | str:
    layer = port.link_layer()
    wanted = node.profile.nic.link_layer
    if not wanted:
        return layer
    expected = f"{wanted} (profile)"
    return ok(layer, expected, value=layer) if layer == wanted else bad(layer, expected)


def _ports_and_excluded(node: Node) -> Iterable[Subject[Port | str]]:
    """Selected ports, and the labels of those left out with the reason."""
    for each in each_port(node):
        yield Subject(
            item=each.item, label=each.label, key=each.key, touches=each.touches
        )
    for label, reason in sorted(node.selection.excluded.items()):
        yield Subject(item=f"excluded: {reason}", label=label)


@check(
    "nic-port-state",
    group="nic",
    severity="C",
    why="a port that is not ACTIVE carries nothing: transfers over its rail fail",
    fix=(
        "Polling: cable, optic or switch port",
        "Disabled: ip link set NETDEV up",
        "LinkErrorRecovery: replace cable or optic",
    ),
    source=("R84 NVSentinel#1361", "gpud PR#482"),
    needs=(
        "/sys/class/infiniband/*/ports/*/state",
        "/sys/class/infiniband/*/ports/*/phys_state",
        "rdma -j -d link",
    ),
    requires=("nic-link-type",),
    over=_ports_and_excluded,
)
def port_state(node: Node, port: Port | str) -> Outcome:
    if isinstance(port, str):
        return skip(port, severity="I")
    state, physical = port.state(), port.physical()
    seen = f"{state}, {physical}"
    if state == "ACTIVE" and physical == "LINK_UP":
        return ok(seen, "ACTIVE, LINK_UP")
    told = _STATES.get(physical, "")
    return bad(f"{seen}: {told}" if told else seen, "ACTIVE, LINK_UP")


@compared(
    "nic-fw-consistent",
    group="nic",
    severity="E",
    why="mixed firmware behaves mixed: congestion control, ordering and resets differ",
    fix=("mlxfwmanager -u -d BDF", "mlxfwreset -d BDF reset, or reboot"),
    source=("article: firmware and drivers", "Primus node_smoke fw drift"),
    needs=(
        "/sys/class/infiniband/*/fw_ver",
        "/sys/class/infiniband/*/board_id",
    ),
    over=each_port_by_board,
)
def firmware(node: Node, port: Port) -> Outcome | str:
    version = port.firmware()
    if not node.profile.nic.firmware:
        return version
    psid = port.psid()
    allowed = node.profile.nic.firmware.get(psid)
    if allowed is None:
        return version
    expected = f"{' or '.join(allowed)} for {psid} (profile)"
    if version in allowed:
        return ok(version, expected, value=version)
    return bad(version, expected)


def _by_rail(node: Node) -> Iterable[Subject[Port | str]]:
    """Each port by rail; where one has no PCI address, also all names together.

    Names alone convict: those of another pattern name other NICs. They acquit nobody,
    as the same name may be another slot. Nodes with as many ports are compared.
    """
    for port in node.ports:
        rail = rail_of(node, port)
        yield Subject(item=port, label=rail, key=rail, touches=port.touches)
    if not all(_is_placed(port) for port in node.ports):
        names = sorted((port.label for port in node.ports), key=natural)
        yield Subject(
            item=", ".join(names),
            label="names of all devices",
            key=f"names of {len(names)} devices",
            touches=frozenset().union(*(port.touches for port in node.ports)),
        )


def _is_placed(port: Port) -> bool:
    try:
        return bool(port.bdf())
    except Unread:
        return False


@compared(
    "nic-naming",
    group="nic",
    severity="E",
    why="device names in one configuration for all nodes name other NICs on this one",
    fix=("pin the names in /etc/udev/rules.d/60-rdma-persistent-naming.rules",),
    source=("R40 nccl#1277, nccl#856, Mooncake PR#2790",),
    needs=("/sys/class/infiniband/*/device", "rdma -j -d link"),
    over=_by_rail,
)
def naming(node: Node, port: Port | str) -> str:
    if isinstance(port, str):
        return port
    return f"{port.device} at {port.bdf()}"
