"""RoCE path MTU: what ports run with, and what Mooncake is told to use."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from checks.facts import Unread, first
from checks.finding import Outcome, bad, ok, skip
from checks.parse.garbled import Garbled
from checks.parse.services import services
from checks.parse.verbs import MTUS, mtu_of, pyverbs_number, verbs_device
from checks.rules.declare import Subject, compared
from checks.rules.roce_subjects import not_roce, variables
from checks.rules.subjects import each_port

if TYPE_CHECKING:
    from checks.node import Node
    from checks.ports import Port

FULL = 4096


@compared(
    "roce-active-mtu",
    group="roce",
    severity="E",
    why="Mooncake does not negotiate the path MTU: 1024 against 4096 breaks transfers",
    fix=(
        "ip link set NETDEV mtu 4200 (or 9000), persistently",
        "the switch ports must carry it as well",
    ),
    source=("R48 Mooncake#3868, PR#3878", "R49 nccl PR#2135"),
    needs=("ibv_devinfo -v", "pyverbs: PortAttr.active_mtu"),
    requires=("nic-port-state",),
    follows=("route-mtu-iface",),
    over=each_port,
)
def active(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    mtu = active_mtu(port)
    wanted = node.profile.roce.active_mtu
    good = mtu == wanted if wanted is not None else mtu >= FULL
    expected = f"{wanted} (profile)" if wanted is not None else str(FULL)
    return ok(mtu, expected, value=mtu) if good else bad(mtu, expected)


def active_mtu(port: Port) -> int:
    """The MTU a port runs with, in bytes; Unread where nothing tells it."""
    return first(
        lambda: _of_devinfo(port),
        lambda: _of_pyverbs(port),
    )


def _of_devinfo(port: Port) -> int:
    told = verbs_device(port.facts, port.device).port(port.number)
    text = told.fields.get("active_mtu")
    if text is None:
        raise Unread("missing", f"ibv_devinfo -v: {port.label}", "no active_mtu")
    return mtu_of(text)


def _of_pyverbs(port: Port) -> int:
    mtu = pyverbs_number(port.facts, port.device, "active_mtu")
    if mtu not in MTUS:
        raise Garbled(f"pyverbs: {port.device}", f"active_mtu {mtu} is no MTU")
    return mtu


def _node_with_ports(node: Node) -> list[Subject[None]]:
    """The node, touching all its ports: what fails there explains what fails here."""
    names: frozenset[str] = frozenset()
    with suppress(Unread):  # the node is judged also where its ports are not known
        names = names.union(*(port.touches for port in node.ports))
    return [Subject(item=None, touches=names)]


@compared(
    "roce-mc-mtu",
    group="roce",
    severity="E",
    why="an MC_MTU above that of a port, or other than the peers', breaks transfers",
    fix=("set MC_MTU to 512, 1024, 2048 or 4096, alike on all nodes, or unset it",),
    source=("Mooncake troubleshooting: MTU", "R48 Mooncake#3868"),
    needs=("/proc/PID/environ", "ibv_devinfo -v"),
    follows=("roce-active-mtu",),
    over=_node_with_ports,
)
def of_mooncake(node: Node, _: None) -> Outcome | str:
    told = variables(node, ("MC_MTU",))
    if not services(node.facts):
        return skip("no Mooncake process runs here: nothing sets MC_MTU")
    values = sorted({value.strip() for _, _, value in told})
    if not values:
        return "unset"
    if len(values) > 1:
        return bad(f"processes disagree: {', '.join(values)}", "one MC_MTU")
    value = values[0]
    sizes = [str(size) for size in MTUS[1:]]
    if value not in sizes:
        return bad(f"MC_MTU={value} is ignored", " or ".join(sizes))
    for port in node.ports:
        if not_roce(port) is None and int(value) > active_mtu(port):
            seen = f"MC_MTU={value}, but {port.label} runs {active_mtu(port)}"
            return bad(seen, "at most the active MTU of every port")
    return value
