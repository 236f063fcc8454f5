"""The faults: one class a file, built by these functions.

Every function takes the cluster and the proxy client, so that callers need not know
which faults go through signals, which through proxies and which through failpoints.
`links` may be links, names of links (`store-3.rail0`) or names of roles (their data
links).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.bandwidth import Bandwidth
from chaos.faults.blackhole import Blackhole
from chaos.faults.failpoint import Failpoint
from chaos.faults.kill import Kill
from chaos.faults.latency import Latency
from chaos.faults.nic_down import NicDown
from chaos.faults.partition import Partition
from chaos.faults.pause import Pause
from chaos.faults.reset import Reset
from chaos.faults.restart import Restart
from chaos.faults.tap import Tap
from chaos.systems.base import Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Cluster

__all__ = [
    "bandwidth",
    "blackhole",
    "failpoint",
    "kill",
    "latency",
    "links_of",
    "nic_down",
    "partition",
    "pause",
    "reset",
    "restart",
    "tap",
]


def links_of(cluster: Cluster, chosen: str | Link | Iterable[str | Link]) -> list[Link]:
    """The links that were meant: themselves, by their name, or a role's data links."""
    wanted = [chosen] if isinstance(chosen, str | Link) else list(chosen)
    links: list[Link] = []
    for want in wanted:
        found = [want] if isinstance(want, Link) else _named(cluster, want)
        links += [link for link in found if link not in links]
    return links


def kill(cluster: Cluster, control: ToxicControl, role: str) -> Kill:
    """SIGKILL; the role comes back empty on revert."""
    return Kill(cluster, role)


def pause(cluster: Cluster, control: ToxicControl, role: str) -> Pause:
    """SIGSTOP; SIGCONT on revert."""
    return Pause(cluster, role)


def restart(
    cluster: Cluster, control: ToxicControl, role: str, *, orderly: bool = False
) -> Restart:
    """Ends the role and starts it again, under the same name."""
    return Restart(cluster, role, orderly=orderly)


def nic_down(
    cluster: Cluster, control: ToxicControl, store: str, rail: str = "rail0"
) -> NicDown:
    """One rail of a store goes silent."""
    return NicDown(cluster, control, store, rail)


def partition(
    cluster: Cluster,
    control: ToxicControl,
    role: str,
    *,
    from_: str = "",
    plane: str = "",
) -> Partition:
    """A role is cut off, from everybody or from one role, wholly or on one plane."""
    return Partition(cluster, control, role, from_=from_, plane=plane)


def latency(
    cluster: Cluster,
    control: ToxicControl,
    links: str | Link | Iterable[str | Link],
    latency_ms: int,
    jitter_ms: int = 0,
) -> Latency:
    """Answers on the links come late."""
    return Latency(control, links_of(cluster, links), latency_ms, jitter_ms)


def bandwidth(
    cluster: Cluster,
    control: ToxicControl,
    links: str | Link | Iterable[str | Link],
    kb_per_s: int,
) -> Bandwidth:
    """The links carry no more than this, each way and connection."""
    return Bandwidth(control, links_of(cluster, links), kb_per_s)


def reset(
    cluster: Cluster,
    control: ToxicControl,
    links: str | Link | Iterable[str | Link],
) -> Reset:
    """Connections on the links end with a RST."""
    return Reset(control, links_of(cluster, links))


def blackhole(
    cluster: Cluster,
    control: ToxicControl,
    links: str | Link | Iterable[str | Link],
) -> Blackhole:
    """Connected but silent."""
    return Blackhole(control, links_of(cluster, links))


def tap(
    cluster: Cluster,
    control: ToxicControl,
    links: str | Link | Iterable[str | Link],
) -> Tap:
    """Counts bytes and changes nothing."""
    return Tap(control, links_of(cluster, links))


def failpoint(
    cluster: Cluster, control: ToxicControl, role: str, name: str, spec: str
) -> Failpoint:
    """A role answers with an error at a named point."""
    return Failpoint(cluster, role, name, spec)


def _named(cluster: Cluster, name: str) -> list[Link]:
    exact = [link for link in cluster.links if link.name == name]
    if exact:
        return exact
    links = [link for link in cluster.links if name in (link.owner, link.user)]
    data = [link for link in links if link.plane == "data"]
    if not links:
        message = f"no link or role of the cluster is called {name!r}"
        raise UsageError(message)
    return data or links
