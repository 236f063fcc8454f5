"""Queues of NICs: only the TCP path uses them, so they are told, and never bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.finding import Outcome, bad
from checks.parse.ethtool_modes import unsupported
from checks.parse.ethtool_queues import channels, rings
from checks.parse.interrupts import IRQBALANCE, affinities, balances, homes, nodes_of
from checks.rules.declare import NotHere, compared
from checks.rules.subjects import each_netdev, each_nic_address

if TYPE_CHECKING:
    from checks.node import Node


@compared(
    "nic-rings",
    group="nic",
    severity="I",
    why="a short ring drops bursts of TCP before the kernel sees them",
    fix=("ethtool -G NETDEV rx N tx N, alike on all nodes",),
    source=("ethtool(8): -g",),
    needs=("ethtool -g NETDEV",),
    over=each_netdev,
)
def ring_sizes(node: Node, netdev: str) -> str:
    _refuse_unsupported(node, "rings", netdev)
    return _shown(rings(node.facts, netdev))


@compared(
    "nic-combined",
    group="nic",
    severity="I",
    why="fewer channels spread TCP over fewer processors",
    fix=("ethtool -L NETDEV combined N, alike on all nodes",),
    source=("ethtool(8): -l",),
    needs=("ethtool -l NETDEV",),
    over=each_netdev,
)
def channel_counts(node: Node, netdev: str) -> str:
    _refuse_unsupported(node, "channels", netdev)
    return _shown(channels(node.facts, netdev))


@compared(
    "nic-irq-affinity",
    group="nic",
    severity="I",
    why="interrupts on another socket than the NIC, or moved about, slow TCP; RDMA has"
    " few of them",
    fix=(
        "systemctl disable --now irqbalance; set_irq_affinity_bynode.sh NODE NETDEV",
        "or leave irqbalance on everywhere",
    ),
    source=("mlnx-tools: set_irq_affinity_bynode.sh", "kernel: core-api/irq"),
    needs=("irqs BDF", IRQBALANCE, "/sys/devices/system/node/node*/cpulist"),
    over=each_nic_address,
)
def irq_affinity(node: Node, bdf: str) -> Outcome | str:
    """Of the processors only their NUMA nodes: drivers spread over these by turns."""
    lists = affinities(node.facts, bdf)
    if not lists:
        raise NotHere("it has no interrupts of its own")
    nodes = nodes_of(frozenset(lists), homes(node.facts))
    told = f"NUMA node {', '.join(map(str, nodes))}"
    if balances(node.facts):
        return bad(f"{told}, and irqbalance moves them", "interrupts that stay")
    return f"{told}, irqbalance off"


def _shown(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _refuse_unsupported(node: Node, operation: str, netdev: str) -> None:
    result = node.facts.result("ethtool", operation, netdev)
    if result.rc != 0 and unsupported(result):
        raise NotHere(f"the driver of {netdev} has no such operation")
