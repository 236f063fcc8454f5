"""disk_full on hosts: a file takes the room of the scratch mount, but for so much.

Only a mount that was named for it: the guard refuses whatever the machine needs. The
ledger of the agent is elsewhere and stays writable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import NotHere, UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.steps import Step, command, operation
from chaos.hosts.facts import scratch_of, tell, why_not

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster

_FILL_S = 60.0
_MOST_BYTES = 1 << 40


class HostDiskFull(HostFault):
    """The scratch disk of a role's host is full."""

    kind = "disk_full"
    measure = "bytes taken"

    def __init__(self, cluster: Cluster, role: str, leave_bytes: int = 0) -> None:
        if leave_bytes < 0:
            raise UsageError(f"disk_full: leave_bytes is {leave_bytes}, not 0 or more")
        super().__init__(cluster, f"{role}: all but {leave_bytes} bytes")
        self._host = self._hosts.of(role)
        self._leave_bytes = leave_bytes

    def hosts(self) -> list[Host]:
        return [self._host]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        reason = why_not(host, self.kind)
        if reason:
            raise NotHere(capability=self.kind, target="host", reason=reason)
        path = self._path(host)
        fill = operation(
            "fill",
            path=path,
            leave_bytes=self._leave_bytes,
            max_bytes=_MOST_BYTES,
            timeout_s=_FILL_S,
        )
        return [
            Step(
                do=fill,
                undo=operation("unlink", path=path),
                verify=command("test", "-e", path, rc=1),
            )
        ]

    def effect(self, part: Part) -> tuple[float, str]:
        """Bytes of our file on the disk now."""
        told = tell(part.host, ("stat", "-c", "%b %B", self._path(part.host)))
        words = told.stdout.split()
        taken = int(words[0]) * int(words[1]) if told.rc == 0 else 0
        return float(taken), f"{taken} bytes"

    def _path(self, host: Host) -> str:
        return f"{scratch_of(host)}/moonquake-{self.fault_id}"
