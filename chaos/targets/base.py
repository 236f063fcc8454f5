"""Where a system runs: what a target must offer to a system that starts roles there.

Two kinds: the local one (processes on loopback addresses, faults in proxies), and those
with `hosts` (namespaces, machines behind SSH), where an agent on every host starts
roles and breaks things, and where nothing stands between the roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.hosts.host import Hosts
    from chaos.systems.base import ClusterSpec, Process


class Target(Protocol):
    """Starts, watches and ends the processes of roles; durations are real seconds."""

    name: str
    run_dir: Path

    @property
    def capabilities(self) -> frozenset[str]:
        """What can be done here, in the words of `@pytest.mark.requires`."""
        ...

    def why_not(self, capability: str) -> str:
        """Why a capability is missing, "" when it is there."""
        ...

    @property
    def hosts(self) -> Hosts | None:
        """The hosts and their agents; None on the local target."""
        ...

    def prepare(self, spec: ClusterSpec) -> None:
        """Makes what a cluster of this shape needs, before any address is asked.

        Raises:
            UsageError: The shape does not fit here.
        """
        ...

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        """The address of a role on a plane: "control", "data" or "management"."""
        ...

    def python(self, role: str) -> str:
        """The interpreter that starts a role where it runs."""
        ...

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a role and returns at once; `env` is added to ours."""
        ...

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """The first line of a role's output that has the marker."""
        ...

    def process(self, role: str) -> Process | None:
        """The live process of a role, None when there is none."""
        ...

    def stop(self, role: str, *, timeout_s: float) -> int:
        """Ends a role orderly, in the end by force; returns its exit code."""
        ...

    def close(self) -> None:
        """Ends everything that was started here."""
        ...
