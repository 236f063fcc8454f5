"""What a play may have left on a cluster that goes on running: nothing.

Looked at after every scenario of a soak, before the next one resets the cluster: a
reset would hide it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.safety.identity import state_of
from chaos.safety.ledger import read_ledger

if TYPE_CHECKING:
    from chaos.safety.ledger import Ledger
    from chaos.scenario.bench import Bench
    from chaos.systems.base import Cluster

_THREADS = ("load", "pulse-")
_DEFECT = "defect."


def residue(bench: Bench) -> list[str]:
    """Everything that is still there, in words."""
    cluster = bench.cluster
    found = _open_faults(bench.ledger) + _roles(cluster) + _threads()
    return found + _toxics(bench) + _failpoints(cluster)


def open_files() -> int:
    """Descriptors that this process holds, for its growth over a soak."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no objects needed


def _open_faults(ledger: Ledger | None) -> list[str]:
    """Faults that the ledger does not know as undone."""
    if ledger is None or not Path(ledger.path).exists():
        return []
    return [
        f"the ledger has {fault.kind}({fault.target}) {fault.state.value}"
        for fault in read_ledger(ledger.path).open_faults
    ]


def _roles(cluster: Cluster) -> list[str]:
    found = []
    for role in (*cluster.masters, *cluster.stores, *cluster.engines):
        process = cluster.process(role)
        if process is None:
            found.append(f"{role} is not running")
        elif cluster.hosts is None and state_of(process.pid) == "T":
            found.append(f"{role} is stopped")
    return found


def _threads() -> list[str]:
    return [
        f"thread {thread.name} still runs"
        for thread in threading.enumerate()
        if thread.name.startswith(_THREADS)
    ]


def _toxics(bench: Bench) -> list[str]:
    control = bench.clusters.control
    if control is None:
        return []
    return [
        f"{name} is on {link.name}"
        for link in bench.cluster.links
        for name in control.toxics(link.proxy)
    ]


def _failpoints(cluster: Cluster) -> list[str]:
    """Failpoints of roles that answer; one that does not is told by `_roles`."""
    found = []
    for role in (*cluster.masters, *cluster.stores, *cluster.engines):
        if cluster.process(role) is None:
            continue
        points = cluster.role_state(role).get("failpoints", {})
        found += [
            f"failpoint {name} of {role} is {point.get('spec')}"
            for name, point in points.items()
            if not name.startswith(_DEFECT) and point.get("spec") not in (None, "off")
        ]
    return found
