"""The room that harness and preflight share: which hosts there are, and how to reach
them. It imports nothing of the house.
"""

from __future__ import annotations

from inventory.channel import Channel
from inventory.errors import InventoryError, SshError, SshProblem
from inventory.loader import load
from inventory.schema import HostEntry, Inventory, Plane, ProcessRule, Rail
from inventory.ssh import Completed, SshSession

__all__ = [
    "Channel",
    "Completed",
    "HostEntry",
    "Inventory",
    "InventoryError",
    "Plane",
    "ProcessRule",
    "Rail",
    "SshError",
    "SshProblem",
    "SshSession",
    "load",
]
