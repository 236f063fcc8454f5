"""The faults: one class a file, built by these functions.

Every function takes the cluster and the proxy client, so that callers need not know
which faults go through signals, which through proxies and which through failpoints;
nor where they act: on a cluster with hosts every fault has a form of its own
(`chaos.faults.on_hosts`), which the agents of the hosts carry out. `links` may be
links, names of links (`store-3.rail0`) or names of roles (their data links).

A fault that a target cannot do raises `NotHere`, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.errors import NotHere, UsageError
from chaos.faults.bandwidth import Bandwidth
from chaos.faults.blackhole import Blackhole
from chaos.faults.clock import ClockStep
from chaos.faults.failpoint import Failpoint
from chaos.faults.kill import Kill
from chaos.faults.latency import Latency
from chaos.faults.nic_down import NicDown
from chaos.faults.partition import Partition
from chaos.faults.pause import Pause
from chaos.faults.reset import Reset
from chaos.faults.restart import Restart
from chaos.faults.tap import Tap
from chaos.systems.base import Link, WithoutFailpoints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.faults.base import Fault
    from chaos.faults.toxic import ToxicControl
    from chaos.systems.base import Cluster

    Links = str | Link | Iterable[str | Link]

__all__ = [
    "bandwidth",
    "blackhole",
    "clock_step",
    "corrupt",
    "cpu",
    "disk_full",
    "failpoint",
    "flap",
    "kill",
    "latency",
    "links_of",
    "loss",
    "memory",
    "memory_limit",
    "nic_down",
    "partition",
    "pause",
    "port_taken",
    "reorder",
    "reset",
    "restart",
    "slow_disk",
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


def kill(cluster: Cluster, control: ToxicControl, role: str) -> Fault:
    """SIGKILL; the role comes back empty on revert."""
    if cluster.hosts is not None:
        return _on_hosts("kill", cluster, role)
    return Kill(cluster, role)


def pause(cluster: Cluster, control: ToxicControl, role: str) -> Fault:
    """SIGSTOP; SIGCONT on revert."""
    if cluster.hosts is not None:
        return _on_hosts("pause", cluster, role)
    return Pause(cluster, role)


def restart(
    cluster: Cluster, control: ToxicControl, role: str, *, orderly: bool = False
) -> Fault:
    """Ends the role and starts it again, under the same name."""
    if cluster.hosts is not None:
        return _on_hosts("restart", cluster, role, orderly=orderly)
    return Restart(cluster, role, orderly=orderly)


def nic_down(
    cluster: Cluster, control: ToxicControl, store: str, rail: str = "rail0"
) -> Fault:
    """One rail of a store goes silent."""
    _refuse_missing_rail(cluster, store, rail)
    if cluster.hosts is not None:
        return _on_hosts("nic_down", cluster, store, rail)
    return NicDown(cluster, control, store, rail)


def flap(
    cluster: Cluster,
    control: ToxicControl,
    store: str,
    rail: str = "rail0",
    *,
    down_s: float = 0.5,
    up_s: float = 0.5,
) -> Fault:
    """One rail of a store goes away and comes back, again and again."""
    return _of_hosts_only("flap", cluster, store, rail, down_s=down_s, up_s=up_s)


def partition(
    cluster: Cluster,
    control: ToxicControl,
    role: str,
    *,
    from_: str = "",
    plane: str = "",
) -> Fault:
    """A role is cut off, from everybody or from one role, wholly or on one plane."""
    if cluster.hosts is not None:
        return _on_hosts("partition", cluster, role, from_=from_, plane=plane)
    return Partition(cluster, control, role, from_=from_, plane=plane)


def latency(
    cluster: Cluster,
    control: ToxicControl,
    links: Links,
    latency_ms: int,
    jitter_ms: int = 0,
) -> Fault:
    """Answers on the links come late."""
    chosen = links_of(cluster, links)
    if cluster.hosts is not None:
        return _on_hosts("latency", cluster, chosen, latency_ms, jitter_ms)
    return Latency(control, chosen, latency_ms, jitter_ms)


def bandwidth(
    cluster: Cluster, control: ToxicControl, links: Links, kb_per_s: int
) -> Fault:
    """The links carry no more than this, each way and connection."""
    chosen = links_of(cluster, links)
    if cluster.hosts is not None:
        return _on_hosts("bandwidth", cluster, chosen, kb_per_s)
    return Bandwidth(control, chosen, kb_per_s)


def loss(
    cluster: Cluster, control: ToxicControl, links: Links, percent: float
) -> Fault:
    """A share of the packets on the links vanishes."""
    return _of_hosts_only("loss", cluster, links_of(cluster, links), percent)


def corrupt(
    cluster: Cluster, control: ToxicControl, links: Links, percent: float
) -> Fault:
    """A share of the packets on the links has a flipped bit."""
    return _of_hosts_only("corrupt", cluster, links_of(cluster, links), percent)


def reorder(
    cluster: Cluster,
    control: ToxicControl,
    links: Links,
    percent: float,
    latency_ms: int = 10,
) -> Fault:
    """A share of the packets on the links overtakes the others, which come late."""
    chosen = links_of(cluster, links)
    return _of_hosts_only("reorder", cluster, chosen, percent, latency_ms)


def reset(cluster: Cluster, control: ToxicControl, links: Links) -> Fault:
    """Connections on the links end with a RST."""
    chosen = links_of(cluster, links)
    if cluster.hosts is not None:
        return _on_hosts("reset", cluster, chosen)
    return Reset(control, chosen)


def blackhole(cluster: Cluster, control: ToxicControl, links: Links) -> Fault:
    """Connected but silent."""
    chosen = links_of(cluster, links)
    if cluster.hosts is not None:
        return _on_hosts("blackhole", cluster, chosen)
    return Blackhole(control, chosen)


def tap(cluster: Cluster, control: ToxicControl, links: Links) -> Fault:
    """Counts bytes and changes nothing."""
    chosen = links_of(cluster, links)
    if cluster.hosts is not None:
        return _on_hosts("tap", cluster, chosen)
    return Tap(control, chosen)


def failpoint(
    cluster: Cluster, control: ToxicControl, role: str, name: str, spec: str
) -> Failpoint:
    """A role answers with an error at a named point."""
    _refuse_observed("failpoint", cluster, role)
    if isinstance(cluster, WithoutFailpoints):
        cluster.refuse_failpoint(role, name)
    return Failpoint(cluster, role, name, spec)


def clock_step(
    cluster: Cluster, control: ToxicControl, role: str, step_s: float
) -> Fault:
    """The clock of a role jumps; a step back makes it stand still for so long."""
    _refuse_observed("clock_step", cluster, role)
    return ClockStep(cluster, role, step_s)


def memory(
    cluster: Cluster, control: ToxicControl, role: str, size_bytes: int
) -> Fault:
    """So much memory of a role's host is taken."""
    return _of_hosts_only("memory", cluster, role, size_bytes)


def memory_limit(
    cluster: Cluster, control: ToxicControl, role: str, limit_bytes: int
) -> Fault:
    """A role may take no more memory than this from now on."""
    return _of_hosts_only("memory_limit", cluster, role, limit_bytes)


def cpu(cluster: Cluster, control: ToxicControl, role: str, workers: int = 1) -> Fault:
    """So many processors of a role's host are kept busy."""
    return _of_hosts_only("cpu", cluster, role, workers)


def disk_full(
    cluster: Cluster, control: ToxicControl, role: str, leave_bytes: int = 0
) -> Fault:
    """The scratch disk of a role's host is filled, but for so much."""
    return _of_hosts_only("disk_full", cluster, role, leave_bytes)


def slow_disk(
    cluster: Cluster, control: ToxicControl, role: str, kb_per_s: int
) -> Fault:
    """The scratch disk of a role's host writes no faster than this."""
    return _of_hosts_only("slow_disk", cluster, role, kb_per_s)


def port_taken(cluster: Cluster, control: ToxicControl, role: str) -> Fault:
    """Somebody else listens where a role that ended wants to."""
    return _of_hosts_only("port_taken", cluster, role)


def _on_hosts(kind: str, cluster: Cluster, *args: Any, **named: Any) -> Fault:
    """The form of a fault that agents carry out, imported where there are some."""
    from chaos.faults import on_hosts

    fault: Fault = getattr(on_hosts, kind)(cluster, *args, **named)
    return fault


def _of_hosts_only(kind: str, cluster: Cluster, *args: Any, **named: Any) -> Fault:
    """A fault that has no form on the local target.

    Raises:
        NotHere: The cluster has no hosts.
    """
    if cluster.hosts is not None:
        return _on_hosts(kind, cluster, *args, **named)
    reason = "it acts on hosts of their own; try --target netns"
    raise NotHere(capability=kind, target="local", reason=reason)


def _refuse_observed(kind: str, cluster: Cluster, role: str) -> None:
    """No lease takes back what a role was told itself, unless the role ends with us.

    Raises:
        NotHere: The role is somebody else's.
    """
    if cluster.hosts is None or role not in cluster.hosts.of(role).observed:
        return
    reason = f"{role} is not ours: it would keep it when we are gone"
    raise NotHere(capability=kind, target="host", reason=reason)


def _refuse_missing_rail(cluster: Cluster, store: str, rail: str) -> None:
    """Some systems use one network of a host, however many it has.

    Raises:
        NotHere: This is one, and the rail would be another.
    """
    used = {link.rail for link in cluster.links if link.owner == store and link.rail}
    if not used or rail in used:
        return
    if rail in {f"rail{number}" for number in range(cluster.spec.rails)}:
        reason = f"{store} uses {', '.join(sorted(used))} only"
        raise NotHere(capability="nic_down", target="local", reason=reason)


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
