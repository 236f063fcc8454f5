"""Queues of NICs: only the TCP path uses them, so they are told, and never bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.parse.ethtool_modes import unsupported
from checks.parse.ethtool_queues import channels, rings
from checks.rules.declare import NotHere, compared
from checks.rules.subjects import each_netdev

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


def _shown(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _refuse_unsupported(node: Node, operation: str, netdev: str) -> None:
    result = node.facts.result("ethtool", operation, netdev)
    if result.rc != 0 and unsupported(result):
        raise NotHere(f"the driver of {netdev} has no such operation")
