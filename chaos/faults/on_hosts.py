"""The forms of faults that agents carry out, by the names of the local ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.cgroup import HostMemoryLimit, HostSlowDisk
from chaos.faults.cut import (
    HostBlackhole,
    HostLoss,
    HostPartition,
    HostReset,
    HostTap,
)
from chaos.faults.disk import HostDiskFull
from chaos.faults.host_process import HostKill, HostPause, HostRestart
from chaos.faults.link_down import HostFlap, HostNicDown
from chaos.faults.port import HostPortTaken
from chaos.faults.qdisc import HostCorrupt, HostLatency, HostReorder
from chaos.faults.rate import HostBandwidth
from chaos.faults.stress import HostCpu, HostMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.host_fault import HostFault
    from chaos.systems.base import Cluster, Link


def kill(cluster: Cluster, role: str) -> HostFault:
    return HostKill(cluster, role)


def pause(cluster: Cluster, role: str) -> HostFault:
    return HostPause(cluster, role)


def restart(cluster: Cluster, role: str, *, orderly: bool = False) -> HostFault:
    return HostRestart(cluster, role, orderly=orderly)


def nic_down(cluster: Cluster, store: str, rail: str = "rail0") -> HostFault:
    return HostNicDown(cluster, store, rail)


def flap(
    cluster: Cluster,
    store: str,
    rail: str = "rail0",
    *,
    down_s: float = 0.5,
    up_s: float = 0.5,
) -> HostFault:
    return HostFlap(cluster, store, rail, down_s=down_s, up_s=up_s)


def partition(
    cluster: Cluster, role: str, *, from_: str = "", plane: str = ""
) -> HostFault:
    return HostPartition(cluster, role, from_=from_, plane=plane)


def latency(
    cluster: Cluster, links: Sequence[Link], latency_ms: int, jitter_ms: int = 0
) -> HostFault:
    return HostLatency(cluster, links, latency_ms, jitter_ms)


def reorder(
    cluster: Cluster, links: Sequence[Link], percent: float, latency_ms: int = 10
) -> HostFault:
    return HostReorder(cluster, links, percent, latency_ms)


def bandwidth(cluster: Cluster, links: Sequence[Link], kb_per_s: int) -> HostFault:
    return HostBandwidth(cluster, links, kb_per_s)


def loss(cluster: Cluster, links: Sequence[Link], percent: float) -> HostFault:
    return HostLoss(cluster, links, percent)


def corrupt(cluster: Cluster, links: Sequence[Link], percent: float) -> HostFault:
    return HostCorrupt(cluster, links, percent)


def reset(cluster: Cluster, links: Sequence[Link]) -> HostFault:
    return HostReset(cluster, links)


def blackhole(cluster: Cluster, links: Sequence[Link]) -> HostFault:
    return HostBlackhole(cluster, links)


def tap(cluster: Cluster, links: Sequence[Link]) -> HostFault:
    return HostTap(cluster, links)


def memory(cluster: Cluster, role: str, size_bytes: int) -> HostFault:
    return HostMemory(cluster, role, size_bytes)


def memory_limit(cluster: Cluster, role: str, limit_bytes: int) -> HostFault:
    return HostMemoryLimit(cluster, role, limit_bytes)


def cpu(cluster: Cluster, role: str, workers: int = 1) -> HostFault:
    return HostCpu(cluster, role, workers)


def disk_full(cluster: Cluster, role: str, leave_bytes: int = 0) -> HostFault:
    return HostDiskFull(cluster, role, leave_bytes)


def slow_disk(cluster: Cluster, role: str, kb_per_s: int) -> HostFault:
    return HostSlowDisk(cluster, role, kb_per_s)


def port_taken(cluster: Cluster, role: str) -> HostFault:
    return HostPortTaken(cluster, role)
