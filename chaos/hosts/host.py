"""A host of a run: its roles, its devices by plane, and the agent that acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.hosts.link import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, or one namespace that stands for one.

    `devices` and `addresses` have the same keys: "management", "control", "rail0",
    "rail1", ... Faults never touch the management plane.
    """

    name: str
    roles: tuple[str, ...]
    agent: Agent
    devices: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    controller: str = ""
    """The address that we reach it from; "" when only the host knows."""
    scratch: str = ""
    """A mount of its own that may be filled and slowed, "" without one."""
    observed: frozenset[str] = frozenset()
    """Roles that are somebody else's: they outlive the run, and what it told them."""
    metrics_ports: tuple[int, ...] = ()
    """Ports that faults must leave open, beside SSH and DNS."""

    @property
    def rails(self) -> tuple[str, ...]:
        """The keys of its rails, in order of their numbers."""
        rails = [key for key in self.devices if key.startswith("rail")]
        return tuple(sorted(rails, key=lambda key: int(key.removeprefix("rail"))))


class Hosts(Protocol):
    """The hosts of a target."""

    def of(self, role: str) -> Host:
        """The host that a role runs on."""
        ...

    @property
    def all(self) -> tuple[Host, ...]: ...
