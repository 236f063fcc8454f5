"""memory and cpu on hosts: children of the agent that take what the roles would use.

They die with the agent and are the first that the kernel kills when memory runs out.
The guard leaves the agent and SSH enough to live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.steps import Step, end, gone, operation
from chaos.hosts.facts import tell

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster

_KIB = 1024
_FIRST_IN_LINE = 1000
_USER, _SYSTEM = 11, 12


class Stress(HostFault):
    """A background child on the host of a role."""

    def __init__(self, cluster: Cluster, role: str, amount: int, what: str) -> None:
        if amount < 1:
            raise UsageError(f"{self.kind}: {what} is {amount}; it must be 1 or more")
        super().__init__(cluster, f"{role}: {amount} {what}")
        self._host = self._hosts.of(role)
        self._amount = amount

    def hosts(self) -> list[Host]:
        return [self._host]

    def pid(self, part: Part) -> int:
        """Of the child, 0 when it was not started."""
        return int(part.results[0].get("pid", 0)) if part.results else 0

    def _child(self, **fields: int) -> Step:
        action = operation(
            self.kind, name=self.kind, oom_score_adj=_FIRST_IN_LINE, **fields
        )
        return Step(do=action, undo=end(self.kind), verify=gone(self.kind))


class HostMemory(Stress):
    """So many bytes of the host's memory are held, touched, by somebody else."""

    kind = "memory"
    measure = "bytes held"

    def __init__(self, cluster: Cluster, role: str, size_bytes: int) -> None:
        super().__init__(cluster, role, size_bytes, "bytes")

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        return [self._child(bytes=self._amount)]

    def effect(self, part: Part) -> tuple[float, str]:
        """Resident size of the child: what it only asked for presses on nobody."""
        told = tell(part.host, ("cat", f"/proc/{self.pid(part)}/status"))
        for line in told.stdout.splitlines():
            if line.startswith("VmRSS:"):
                held = int(line.split()[1]) * _KIB
                return float(held), f"{held} bytes resident"
        return 0.0, "the child is gone: the kernel may have killed it"


class HostCpu(Stress):
    """So many busy loops on the host of a role."""

    kind = "cpu"
    measure = "clock ticks burned"

    def __init__(self, cluster: Cluster, role: str, workers: int = 1) -> None:
        super().__init__(cluster, role, workers, "workers")

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        return [self._child(workers=self._amount)]

    def effect(self, part: Part) -> tuple[float, str]:
        """The time of the child and of the workers that it forked."""
        told = tell(part.host, ("pgrep", "-s", str(self.pid(part))))
        pids = [word for word in told.stdout.split() if word.isdigit()]
        stats = [tell(part.host, ("cat", f"/proc/{pid}/stat")).stdout for pid in pids]
        ticks = sum(_burned(stat) for stat in stats)
        return float(ticks), f"{ticks} ticks of {len(pids)} processes"


def _burned(stat: str) -> int:
    fields = stat.rpartition(")")[2].split()
    return int(fields[_USER]) + int(fields[_SYSTEM]) if len(fields) > _SYSTEM else 0
