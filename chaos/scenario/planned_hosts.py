"""Hosts on which nothing ever runs: names, devices and addresses, for plans.

Without an agent a fault plans from these alone: it prints its exact commands for every
host, but cannot know what a host would refuse. In namespaces the addresses are those of
the first fabric; on an inventory they are its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError
from chaos.hosts.host import Host
from chaos.safety.remote import read_inventory
from chaos.systems.layout import PROBE
from chaos.targets.numbering import host_number
from chaos.targets.planned import PlannedTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chaos.systems.base import ClusterSpec
    from chaos.targets.place import Place
    from inventory.schema import HostEntry

_NO_AGENT: Any = None
_MANAGEMENT, _CONTROL, _FIRST_RAIL = "198.19.0", "198.18.0", 1


def planned_target(place: Place, run_dir: Path) -> PlannedTarget:
    """A target of this kind that only knows addresses.

    Raises:
        UsageError: Its inventory cannot be used, or has no host for a role.
    """
    if place.local:
        return PlannedTarget(run_dir)
    if place.kind == "netns":
        return PlannedHosts(run_dir)
    return PlannedHosts(run_dir, read_inventory(place.inventory).hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hosts:
    """`chaos.hosts.host.Hosts`, made up."""

    all: tuple[Host, ...]

    def of(self, role: str) -> Host:
        """The host of a role; our own client is a guest where nobody names it."""
        wanted = (role, "engine-0", "store-0") if role == PROBE else (role,)
        for name in wanted:
            for host in self.all:
                if name in host.roles:
                    return host
        problem = f"no host has the role {role}"
        raise UsageError(problem, f"give it to one of {len(self.all)} hosts")


class PlannedHosts(PlannedTarget):
    """A target with hosts: of an inventory, or as namespaces would have them."""

    def __init__(self, run_dir: Path, entries: Sequence[HostEntry] = ()) -> None:
        super().__init__(run_dir)
        self.name = "ssh" if entries else "netns"
        self._entries = entries
        self._made_up: _Hosts | None = None

    @property
    def hosts(self) -> _Hosts | None:  # type: ignore[override]
        return self._made_up

    def prepare(self, spec: ClusterSpec) -> None:
        """Makes the hosts up that a cluster of this shape needs."""
        super().prepare(spec)
        found = (
            [_of_entry(entry) for entry in self._entries]
            if self._entries
            else [_of_role(spec, role) for role in _roles(spec)]
        )
        self._made_up = _Hosts(all=tuple(found))

    def python(self, role: str) -> str:
        """The interpreter that the inventory names for the role's host."""
        assert self._made_up is not None
        name = self._made_up.of(role).name
        found = [entry.python for entry in self._entries if entry.name == name]
        return str(found[0]) if found else super().python(role)

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        """An address of the role's host; a plane without one has the host's first."""
        assert self._made_up is not None
        host = self._made_up.of(role)
        key = f"rail{rail}" if plane == "data" else plane
        return host.addresses.get(key) or next(iter(host.addresses.values()))


def _roles(spec: ClusterSpec) -> Iterable[str]:
    yield "master"
    yield "probe"
    yield from (f"store-{number}" for number in range(spec.stores))
    yield from (f"engine-{number}" for number in range(spec.engines))


def _of_role(spec: ClusterSpec, role: str) -> Host:
    """A namespace of its own for every role, as the netns target builds them."""
    number = host_number(spec, role, "control", 0)
    planes = {"management": _MANAGEMENT, "control": _CONTROL}
    devices = {"management": "mgmt0", "control": "ctl0"}
    if role.startswith("store"):
        for rail in range(spec.rails):
            planes[f"rail{rail}"] = f"198.18.{_FIRST_RAIL + rail}"
            devices[f"rail{rail}"] = f"rail{rail}"
    addresses = {plane: f"{prefix}.{number}" for plane, prefix in planes.items()}
    return Host(
        name=role,
        roles=(role,),
        agent=_NO_AGENT,
        devices=devices,
        addresses=addresses,
    )


def _of_entry(entry: HostEntry) -> Host:
    """A host of an inventory, its rails under the names that faults use."""
    devices, addresses = {}, {"management": entry.address}
    for plane in ("management", "control"):
        found = getattr(entry, plane)
        if found is not None:
            devices[plane] = found.device
            addresses[plane] = found.address or entry.address
    for number, rail in enumerate(entry.rails):
        name = rail.name if re.fullmatch(r"rail\d+", rail.name) else f"rail{number}"
        devices[name] = rail.device
        addresses[name] = rail.address
    return Host(
        name=entry.name,
        roles=tuple(entry.roles),
        agent=_NO_AGENT,
        devices=devices,
        addresses=addresses,
    )
