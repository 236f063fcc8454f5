"""nic_down and flap on hosts: a rail's device is set down, once or again and again.

The kernel forgets more than the link when a device goes down: its IPv6 addresses,
every route that it did not make itself, in any table, and neighbours that an operator
wrote down. All of it is read before, and put back with the link. A device that others
use is not taken down for one of them: the guard refuses those that carry management,
and the plan names the roles that share it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chaos.errors import FaultNotInjected, NotHere, UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.nft import device_name
from chaos.faults.programs import FLAP, python
from chaos.faults.steps import Action, Step, command, end, gone, run, start
from chaos.hosts.facts import has_agent, tell
from chaos.safety.identity import wait_until

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster

_FLAPPER = "flap"
_LEAST_S, _MOST_S = 0.05, 60.0
_FIRST_S = 2.0
_FAMILIES = ("-4", "-6")


class HostNicDown(HostFault):
    """`ip link set dev <rail> down`; the other rail and the control plane stay up."""

    kind = "nic_down"
    measure = "devices that are down"

    def __init__(self, cluster: Cluster, store: str, rail: str) -> None:
        super().__init__(cluster, f"{store}.{rail}")
        self._host = self._hosts.of(store)
        if rail not in self._host.rails:
            known = ", ".join(self._host.rails)
            raise UsageError(f"{store} has no rail {rail!r}; it has {known}")
        self.device = device_name(self._host.devices[rail])

    def hosts(self) -> list[Host]:
        return [self._host]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        return [*kept(host, self.device), self._down()]

    def prepare(self, part: Part) -> None:
        """A device that was down before proves nothing, and is not ours to put up.

        Raises:
            FaultNotInjected: It is down.
        """
        row = link_of(part.host, self.device)
        if row and "UP" not in row["flags"]:
            reason = f"{self.device} of {part.host.name} is down already"
            raise FaultNotInjected(fault=self.kind, target=self.target, reason=reason)

    def effect(self, part: Part) -> tuple[float, str]:
        row = link_of(part.host, self.device)
        down = bool(row) and "UP" not in row["flags"]
        return float(down), f"{self.device} is {row.get('operstate', 'gone')}"

    def _down(self) -> Step:
        return Step(
            do=_link(self.device, "down"),
            undo=_link(self.device, "up"),
            verify=is_up(self.device),
        )


class HostFlap(HostNicDown):
    """The device goes down and up again for as long as the fault lasts."""

    kind = "flap"
    measure = "changes of the carrier"

    def __init__(
        self, cluster: Cluster, store: str, rail: str, *, down_s: float, up_s: float
    ) -> None:
        super().__init__(cluster, store, rail)
        for name, value in (("down_s", down_s), ("up_s", up_s)):
            if not _LEAST_S <= value <= _MOST_S:
                problem = f"flap: {name} is {value:g}"
                raise UsageError(f"{problem}; it must be {_LEAST_S} to {_MOST_S:g} s")
        self._times = (f"{down_s:g}", f"{up_s:g}")

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        """Undone in reverse: the flapping ends before the link is put up for good."""
        link_up = _link(self.device, "up")
        flapping = start(_FLAPPER, python(FLAP, self.device, *self._times))
        return [
            *kept(host, self.device),
            Step(do=link_up, undo=link_up, verify=is_up(self.device)),
            Step(do=flapping, undo=end(_FLAPPER), verify=gone(_FLAPPER)),
        ]

    def inject(self) -> None:
        """Returns when the link has gone down for the first time, or after a while."""
        super().inject()
        wait_until(lambda: self.probe().effect > 0, timeout_s=_FIRST_S, poll_s=0.05)

    def prepare(self, part: Part) -> None:
        super().prepare(part)
        part.before["changes"] = _changes(link_of(part.host, self.device))

    def effect(self, part: Part) -> tuple[float, str]:
        now = _changes(link_of(part.host, self.device))
        changes = max(0.0, now - part.before["changes"])
        return changes, f"{self.device} changed its carrier {changes:g} times"


def is_up(device: str) -> dict[str, Any]:
    """The check that a device is administratively up."""
    return command("ip", "-o", "link", "show", "dev", device, has=",UP")


def link_of(host: Host, device: str) -> dict[str, Any]:
    """One device with its statistics, {} when it is gone."""
    told = tell(host, ("ip", "-j", "-s", "-s", "link", "show", "dev", device))
    rows = json.loads(told.stdout) if told.rc == 0 and told.stdout.strip() else []
    return dict(rows[0]) if rows else {}


def kept(host: Host, device: str) -> list[Step]:
    """Steps that change nothing now, and put back what the device loses by going down.

    They stand first, so their undo runs last, when the link is up again.
    """
    if not has_agent(host):
        return []
    again = _addresses(host, device)
    for family in _FAMILIES:
        show = ("ip", family, "-j", "route", "show", "table", "all", "dev", device)
        for row in _rows(host, show):
            again += _route(device, family, row)
        again += _neighbours(host, device, family)
    return [Step(do=action, undo=action) for action in again]


def _addresses(host: Host, device: str) -> list[Action]:
    argv = ("ip", "-6", "-j", "addr", "show", "dev", device, "scope", "global")
    rows = [row for row in _rows(host, argv) if row]
    found = [info for row in rows for info in row.get("addr_info", ())]
    return [
        run("ip", "-6", "addr", "replace", _prefix(info), "dev", device, "nodad")
        for info in found
        if "local" in info and not info.get("dynamic")
    ]


def _neighbours(host: Host, device: str, family: str) -> list[Action]:
    """Those without a term; what the kernel learned it learns again."""
    argv = ("ip", family, "-j", "neigh", "show", "dev", device, "nud", "permanent")
    return [
        run(
            *("ip", family, "neigh", "replace", str(row["dst"])),
            *("lladdr", str(row["lladdr"]), "nud", "permanent", "dev", device),
        )
        for row in _rows(host, argv)
        if row.get("lladdr")
    ]


def _prefix(info: dict[str, Any]) -> str:
    return f"{info['local']}/{info['prefixlen']}"


_WORDS = (
    ("gateway", "via"),
    ("protocol", "proto"),
    ("scope", "scope"),
    ("prefsrc", "src"),
    ("metric", "metric"),
    ("table", "table"),  # of a rail's own, where the source decides the way
)


def _route(device: str, family: str, row: dict[str, Any]) -> list[Action]:
    """The command that makes a route again; the kernel makes its own by itself."""
    if row.get("protocol") == "kernel" or row.get("type") in ("multicast", "local"):
        return []
    if "nexthops" in row or "via" in row:
        reason = f"{device} is one of several next hops of {row['dst']}"
        raise NotHere(capability="link", target="host", reason=reason)
    words = [str(row["dst"])]
    for key, word in _WORDS:
        words += [word, str(row[key])] if key in row else []
    words += ["onlink"] if "onlink" in row.get("flags", ()) else []
    return [run("ip", family, "route", "replace", *words, "dev", device)]


def _rows(host: Host, argv: tuple[str, ...]) -> list[dict[str, Any]]:
    told = tell(host, argv)
    found: list[dict[str, Any]] = json.loads(told.stdout.strip() or "[]")
    return found


def _changes(row: dict[str, Any]) -> float:
    counters = row.get("stats64", {}).get("tx", {})
    return float(counters.get("carrier_changes", 0))


def _link(device: str, state: str) -> Action:
    return run("ip", "link", "set", "dev", device, state)
