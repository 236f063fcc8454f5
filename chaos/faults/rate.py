"""bandwidth on hosts: what leaves by a rail is shaped by tbf, the rest limited by nft.

A queue is what a slow wire has, so tbf is the first choice for what the owner of a rail
sends. It shapes the device as a whole: where other roles use it too, or the kernel has
no tbf, or the way is not a rail, nft drops what is over the rate, by socket. What
arrives is always limited by nft: nobody can queue what is already there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults import nft, qdisc
from chaos.faults.cut import packets_hit, spare_of, table_of
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.sockets import device_of, of_links
from chaos.hosts.facts import why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.steps import Step
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster, Link

_BYTES_PER_KB = 1000
_BOTH = ("in", "out")


class HostBandwidth(HostFault):
    """Each link carries no more than `kb_per_s` KB/s, each way."""

    kind = "bandwidth"
    measure = "packets held up or dropped"

    def __init__(self, cluster: Cluster, links: Sequence[Link], kb_per_s: int) -> None:
        if kb_per_s <= 0:
            problem = f"bandwidth of {kb_per_s} KB/s is a cut, not a limit"
            raise UsageError(problem, "ask for a partition")
        names = ",".join(link.name for link in links)
        super().__init__(cluster, f"{names} at {kb_per_s} KB/s")
        self._links = tuple(links)
        self._matches = of_links(cluster, links)
        self._bytes_per_s = kb_per_s * _BYTES_PER_KB
        self._shaped_on: dict[str, list[str]] = {}

    def hosts(self) -> list[Host]:
        return [host for host in self._hosts.all if self._matches.get(host.name)]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        shaped = self._shaped(host)
        found: list[Step] = []
        for directions, matches in self._limited(host, shaped).items():
            name = table_of(self, host) + ("" if directions == _BOTH else "_in")
            effect = nft.Effect(bytes_per_s=self._bytes_per_s, directions=directions)
            table = nft.Table(
                name=name,
                matches=tuple(matches),
                effect=effect,
                ttl_s=self.ttl_on(host),
                spare=spare_of(facts),
            )
            found.append(nft.step(table))
        return found + [
            qdisc.tbf(device, self.number, self._bytes_per_s) for device in shaped
        ]

    def effect(self, part: Part) -> tuple[float, str]:
        total, told = 0.0, []
        for name in (table_of(self, part.host), f"{table_of(self, part.host)}_in"):
            packets, words = packets_hit(part, name)
            total += packets
            told += [f"nft {words}"] if packets else []
        for device in self._shaped(part.host):
            counters = qdisc.counted(part.host, device, self.number)
            total += counters.get("overlimits", 0.0) + counters.get("drops", 0.0)
            told.append(f"tbf {counters}")
        return total, ", ".join(told)

    def _shaped(self, host: Host) -> list[str]:
        """Rails that one role has for itself and whose device may be shaped whole."""
        if host.name not in self._shaped_on:
            rails = [
                device_of(host, link)
                for link in self._links
                if link.plane == "data" and link.owner in host.roles
            ]
            able = rails and len(host.roles) == 1 and not why_not(host, "tbf")
            self._shaped_on[host.name] = list(dict.fromkeys(rails)) if able else []
        return self._shaped_on[host.name]

    def _limited(
        self, host: Host, shaped: Sequence[str]
    ) -> dict[tuple[str, ...], list[nft.Match]]:
        """What nft limits: arrivals only, where tbf holds what leaves."""
        found: dict[tuple[str, ...], list[nft.Match]] = {}
        for match in self._matches[host.name]:
            directions = ("in",) if match.device in shaped else _BOTH
            found.setdefault(directions, []).append(match)
        return found
