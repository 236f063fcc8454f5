"""What RoCE rules ask of a node besides ports: GID tables, NICs with QoS, services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, skip
from checks.parse.dcb import dcb_netdevs
from checks.parse.gid_table import GidTable, gid_table
from checks.parse.mlnx_qos import qos_netdevs
from checks.parse.services import services
from checks.rules.declare import Subject
from checks.rules.subjects import each_netdev

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checks.node import Node
    from checks.ports import Port

INFINIBAND = "InfiniBand"


def table_of(port: Port) -> GidTable:
    """The GID table of a port; Unread where it cannot be told."""
    return gid_table(port.facts, port.device, port.number)


def not_roce(port: Port) -> Outcome | None:
    """The answer to every question about RoCE on an InfiniBand port."""
    return port.facts.once(
        ("not roce", port.device, port.number), lambda: _not_roce(port)
    )


def _not_roce(port: Port) -> Outcome | None:
    try:
        layer = port.link_layer()
    except Unread:
        return None
    return skip("an InfiniBand port") if layer == INFINIBAND else None


def is_soft(port: Port) -> bool:
    """Soft-RoCE: a device without hardware, upon the network device `parent`."""
    try:
        if port.facts.exists(port.device_path("device")):
            return False
        return bool(port.facts.line(port.device_path("parent")))
    except Unread:
        return False


def variables(node: Node, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """(service, variable, value) of every process that sets one of them.

    Unread where the environment of a process could not be read: it may set them too.
    """
    found = []
    for service in services(node.facts):
        if service.env is None:
            node.facts.text(f"/proc/{service.pid}/environ")
        env = service.env or {}
        node.facts.note(f"/proc/{service.pid}/environ")
        found += [(service.label, name, env[name]) for name in names if name in env]
    return found


def each_qos_netdev(node: Node) -> Iterable[Subject[str]]:
    """NICs with Ethernet QoS: those of the rails, else those the tools were asked."""
    try:
        found = [each for each in each_netdev(node) if not _is_infiniband(node, each)]
        refusal = None
    except Unread as error:
        found, refusal = [], error
    if found:
        return found
    names = sorted({*qos_netdevs(node.facts), *dcb_netdevs(node.facts)})
    if not names and refusal is not None:
        raise refusal
    return [Subject(item=name, label=name, touches=frozenset({name})) for name in names]


def port_of(node: Node, netdev: str) -> Port | None:
    """The selected port behind a NIC; the only one where nothing tells the NICs."""
    try:
        every = node.ports
    except Unread:
        return None
    for port in every:
        if netdev in port.touches:
            return port
    return every[0] if len(every) == 1 and len(every[0].touches) == 1 else None


def _is_infiniband(node: Node, subject: Subject[str]) -> bool:
    port = port_of(node, subject.item)
    return port is not None and not_roce(port) is not None
