"""partition, blackhole, reset, loss and tap on hosts: nftables, by socket and device.

All of them match packets by the addresses of links as the host sees them and differ in
what becomes of a match. Elements of the sets carry the lease as a kernel timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults import nft
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.sockets import at_receivers, of_links, of_partition
from chaos.hosts.facts import has_agent, tell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.faults.steps import Step
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster, Link

_PERCENT = 100.0


class TableFault(HostFault):
    """One table a host, with these matches and this effect."""

    measure = "packets hit by our rules"

    def __init__(
        self,
        cluster: Cluster,
        target: str,
        matches: Mapping[str, Sequence[nft.Match]],
        effect: nft.Effect,
    ) -> None:
        super().__init__(cluster, target)
        if not any(matches.values()):
            raise UsageError(f"{self.kind}({target}): no link of the cluster matches")
        self._matches = matches
        self._effect = effect

    def hosts(self) -> list[Host]:
        return [host for host in self._hosts.all if self._matches.get(host.name)]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        return [nft.step(self.table(host, facts))]

    def table(self, host: Host, facts: HostFacts) -> nft.Table:
        return nft.Table(
            name=table_of(self, host),
            matches=_narrowed(self._matches[host.name], facts),
            effect=self._effect,
            ttl_s=self.ttl_on(host),
            spare=spare_of(facts),
        )

    def effect(self, part: Part) -> tuple[float, str]:
        return packets_hit(part, table_of(self, part.host))


class HostPartition(TableFault):
    """A role cannot be reached, nor reach: by everybody, or by one other role."""

    kind = "partition"

    def __init__(
        self, cluster: Cluster, role: str, *, from_: str = "", plane: str = ""
    ) -> None:
        target = f"{role} from {from_ or 'everybody'}"
        target += f" on {plane}" if plane else ""
        matches = of_partition(cluster, role, from_=from_, plane=plane)
        super().__init__(cluster, target, matches, nft.DROP)


class HostBlackhole(TableFault):
    """Connected but silent: dropped both ways, and nothing is closed."""

    kind = "blackhole"

    def __init__(self, cluster: Cluster, links: Sequence[Link]) -> None:
        super().__init__(cluster, _names(links), of_links(cluster, links), nft.DROP)


class HostReset(TableFault):
    """Connections end with a RST at both ends, as soon as they carry data."""

    kind = "reset"

    def __init__(self, cluster: Cluster, links: Sequence[Link]) -> None:
        super().__init__(cluster, _names(links), of_links(cluster, links), nft.RESET)


class HostTap(TableFault):
    """Counts what flows and changes nothing."""

    kind = "tap"

    def __init__(self, cluster: Cluster, links: Sequence[Link]) -> None:
        super().__init__(cluster, _names(links), of_links(cluster, links), nft.COUNT)


class HostLoss(TableFault):
    """A share of the packets is lost where they arrive, at both ends.

    At the receiver, because a sender's kernel tells TCP of a packet that it dropped
    itself, which then counts as never sent (Chaos Mesh#1485). A packet here is what the
    kernel handed on in one piece, up to 64 KiB of a stream: what was really lost is
    counted, and the percentage is of such pieces.
    """

    kind = "loss"
    measure = "packets lost"

    def __init__(self, cluster: Cluster, links: Sequence[Link], percent: float) -> None:
        if not 0 < percent <= _PERCENT:
            raise UsageError(
                f"loss of {percent:g} %; it must be above 0 and at most 100"
            )
        effect = nft.Effect(share=percent / _PERCENT, directions=("in",))
        target = f"{_names(links)} by {percent:g} %"
        super().__init__(cluster, target, at_receivers(cluster, links), effect)


def _narrowed(matches: Sequence[nft.Match], facts: HostFacts) -> tuple[nft.Match, ...]:
    """Sockets only, on a device that carries management: all else there stays.

    The rules spare SSH and name service, but a host may have its disks, its orders and
    its logins behind the same device.
    """
    closed = facts.untouchable
    return tuple(
        match
        for match in matches
        if match.local or match.remote or facts.names.get(match.device) not in closed
    )


def table_of(fault: HostFault, host: Host) -> str:
    """The name of a fault's table on a host."""
    run_id = host.agent.run_id if has_agent(host) else "run"
    return nft.table_name(run_id, fault.fault_id)


def spare_of(facts: HostFacts) -> nft.Spare:
    """What the first rules of every chain let pass."""
    return nft.Spare(
        peers=facts.controllers, ports=(*facts.ssh_ports, *facts.metrics_ports)
    )


def packets_hit(part: Part, table: str) -> tuple[float, str]:
    """What the counters of a table say; a table that is gone says nothing."""
    told = tell(part.host, nft.counters_of(table))
    if told.rc != 0:
        return 0.0, f"no table {table}"
    packets, size_bytes = nft.read_counters(told.stdout)
    return float(packets), f"{packets} packets, {size_bytes} bytes"


def _names(links: Sequence[Link]) -> str:
    return ",".join(link.name for link in links)
