"""Queueing disciplines at the root of a device: a rate by tbf, delay and more by netem.

A root qdisc gets a handle of ours and is only ever deleted by it: whatever somebody
else put there meanwhile stays, and the kernel puts its own default back. Where a root
qdisc is already, the guard refuses. It works on what leaves by the device, all of it:
no filter sends a part of the traffic through it, because taking such a tree down
touches everybody for a moment (Pumba#166).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaos.errors import NotHere, UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.nft import device_name
from chaos.faults.sockets import device_of
from chaos.faults.steps import Step, command, run
from chaos.hosts.facts import tell, why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster, Link

_BITS = 8
_MAJOR = 0x4D00
#: What may wait: 0.2 s of the rate; a burst of 10 ms of it, and a few whole frames.
_QUEUE_S, _BURST_S = 0.2, 0.01
_LEAST_QUEUE_BYTES, _LEAST_BURST_BYTES = 256 << 10, 16 << 10
_NETEM_PACKETS = "10000"
_PERCENT = 100.0


def handle_of(number: int) -> str:
    """The handle of a fault's qdisc, as tc writes it."""
    return f"{_MAJOR | number % 256:x}:"


def step(device: str, number: int, *words: str) -> Step:
    """Puts a qdisc at the root of a device, and takes that very one away again."""
    device, handle = device_name(device), handle_of(number)
    return Step(
        do=run("tc", "qdisc", "add", "dev", device, "root", "handle", handle, *words),
        undo=run("tc", "qdisc", "del", "dev", device, "root", "handle", handle),
        verify=command("tc", "qdisc", "show", "dev", device, lacks=f" {handle} root"),
    )


def tbf(device: str, number: int, bytes_per_s: int) -> Step:
    """No more than a rate leaves by the device; what is too much waits a little."""
    if bytes_per_s <= 0:
        raise UsageError("a rate of 0 is a cut, not a limit: ask for a partition")
    burst = max(_LEAST_BURST_BYTES, round(bytes_per_s * _BURST_S))
    limit = max(_LEAST_QUEUE_BYTES, round(bytes_per_s * _QUEUE_S))
    rate = f"{bytes_per_s * _BITS}bit"
    return step(
        device, number, "tbf", "rate", rate, "burst", f"{burst}b", "limit", f"{limit}b"
    )


def counted(host: Host, device: str, number: int) -> dict[str, float]:
    """The counters of our qdisc, {} when it is not there."""
    told = tell(host, ("tc", "-s", "-j", "qdisc", "show", "dev", device))
    rows = json.loads(told.stdout) if told.rc == 0 and told.stdout.strip() else []
    keys = ("bytes", "packets", "drops", "overlimits", "backlog")
    for row in rows:
        if row.get("handle") == handle_of(number):
            return {key: float(row.get(key, 0)) for key in keys}
    return {}


class Netem(HostFault):
    """Something is done to all that leaves by the devices of some links' owners."""

    measure = "packets through netem"

    def __init__(
        self, cluster: Cluster, links: Sequence[Link], words: Sequence[str]
    ) -> None:
        super().__init__(cluster, ",".join(link.name for link in links))
        self._words = tuple(words)
        self._devices: dict[str, list[str]] = {}
        for link in links:
            owner = self._hosts.of(link.owner)
            devices = self._devices.setdefault(owner.name, [])
            device = device_of(owner, link)
            devices += [device] if device not in devices else []

    def hosts(self) -> list[Host]:
        return [host for host in self._hosts.all if host.name in self._devices]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        reason = why_not(host, self.kind)
        if reason:
            raise NotHere(capability=self.kind, target="host", reason=reason)
        words = ("netem", "limit", _NETEM_PACKETS, *self._words)
        return [step(d, self.number, *words) for d in self._devices[host.name]]

    def effect(self, part: Part) -> tuple[float, str]:
        found = [
            counted(part.host, device, self.number)
            for device in self._devices[part.host.name]
        ]
        packets = sum(counters.get("packets", 0.0) for counters in found)
        return packets, f"{packets:g} packets"


class HostLatency(Netem):
    """Answers come late, by a mean and a jitter."""

    kind = "latency"

    def __init__(
        self,
        cluster: Cluster,
        links: Sequence[Link],
        latency_ms: int,
        jitter_ms: int = 0,
    ) -> None:
        words = ["delay", f"{latency_ms}ms"]
        words += [f"{jitter_ms}ms"] if jitter_ms else []
        super().__init__(cluster, links, words)


class HostReorder(Netem):
    """A share of the packets overtakes the others, which come late."""

    kind = "reorder"

    def __init__(
        self, cluster: Cluster, links: Sequence[Link], percent: float, latency_ms: int
    ) -> None:
        share = f"{_checked(self.kind, percent):g}%"
        words = ["delay", f"{latency_ms}ms", "reorder", share]
        super().__init__(cluster, links, words)


class HostCorrupt(Netem):
    """A share of the packets has a flipped bit."""

    kind = "corrupt"

    def __init__(self, cluster: Cluster, links: Sequence[Link], percent: float) -> None:
        share = f"{_checked(self.kind, percent):g}%"
        super().__init__(cluster, links, ["corrupt", share])


def _checked(kind: str, percent: float) -> float:
    if not 0 < percent <= _PERCENT:
        raise UsageError(f"{kind} of {percent:g} %; it must be above 0, at most 100")
    return percent
