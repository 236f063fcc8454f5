"""kill, pause and restart on hosts: signals that the agent sends, by pidfd.

A pid is only good together with its start time, so nobody else is ever hit; a pause is
undone by the agent also when nobody asks any more. Roles come back through the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.steps import Step, signal
from chaos.hosts.facts import tell

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster, Process

_STATE_FIELD, _START_FIELD = 0, 19
_ENDED = ("", "Z", "X")


class SignalFault(HostFault):
    """A signal to the process of a role, and what its state is afterwards."""

    signal = "KILL"
    undo = ""

    def __init__(self, cluster: Cluster, role: str) -> None:
        super().__init__(cluster, role)
        self._host = self._hosts.of(role)
        self._hit: Process | None = None

    def hosts(self) -> list[Host]:
        return [self._host]

    def plan(self) -> list[str]:
        """With the pid; by name in a plan, where nothing runs and there is no agent."""
        if getattr(self._host, "agent", None) is not None:
            return super().plan()
        place = self._host.name
        undo = f"SIG{self.undo} to it" if self.undo else f"start {self.target}"
        lines = [f"{place}: SIG{self.signal} to {self.target}"]
        return [*lines, f"{place}: to undo: {undo}"]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        process = self._cluster.process(self.target)
        if process is None:
            raise UsageError(f"{self.target} is not running: no {self.kind} of it")
        self._hit = process
        pid, ticks = process.pid, process.start_ticks
        undo = signal(pid, ticks, self.undo) if self.undo else None
        return [Step(do=signal(pid, ticks, self.signal), undo=undo)]

    def inject(self) -> None:
        """The process that runs now, which another fault may have put in place."""
        self._planned = []
        super().inject()

    def state(self) -> str:
        """The letter of the process that was hit, "" when it is gone."""
        hit = self._hit
        return "" if hit is None else state_of(self._host, hit)


class HostKill(SignalFault):
    """SIGKILL; the role is gone with its memory, and comes back empty on revert."""

    kind = "kill"
    measure = "process gone"

    def effect(self, part: Part) -> tuple[float, str]:
        pid = self._hit.pid if self._hit else 0
        return float(self.state() in _ENDED), f"pid {pid}"

    def revert(self) -> None:
        super().revert()
        come_back(self._cluster, self.target)

    def verify_reverted(self) -> str:
        return super().verify_reverted() or is_back(self._cluster, self.target)


class HostPause(SignalFault):
    """SIGSTOP, and SIGCONT: hung, not dead."""

    kind = "pause"
    signal = "STOP"
    undo = "CONT"
    measure = "process in state T"

    def effect(self, part: Part) -> tuple[float, str]:
        state = self.state()
        return float(state == "T"), f"state {state or 'gone'}"

    def verify_reverted(self) -> str:
        left = f"{self.target} is still stopped" if self.state() == "T" else ""
        return super().verify_reverted() or left


class HostRestart(HostKill):
    """The role ends, orderly or at once, and comes back under its name, empty."""

    kind = "restart"
    measure = "process replaced"

    def __init__(self, cluster: Cluster, role: str, *, orderly: bool = False) -> None:
        super().__init__(cluster, role)
        self._orderly = orderly

    def plan(self) -> list[str]:
        how = "SIGTERM" if self._orderly else "SIGKILL"
        place = self._host.name
        return [f"{place}: {how} to {self.target}", f"{place}: start {self.target}"]

    def inject(self) -> None:
        if self._orderly:
            self._hit = self._cluster.process(self.target)
            self._armed = [self._part(self._host)]
            self._cluster.stop_role(self.target)
            self._armed[0].results = []
        else:
            super().inject()
        self._cluster.start_role(self.target)

    def effect(self, part: Part) -> tuple[float, str]:
        now = self._cluster.process(self.target)
        before = self._hit.pid if self._hit else 0
        replaced = self.state() in _ENDED and now is not None
        return float(replaced), f"pid {before} -> {now.pid if now else '-'}"


def state_of(host: Host, process: Process) -> str:
    """The state letter of this very process on its host, "" when it is gone."""
    told = tell(host, ("cat", f"/proc/{process.pid}/stat"))
    fields = told.stdout.rpartition(")")[2].split()
    if told.rc != 0 or len(fields) <= _START_FIELD:
        return ""
    same = int(fields[_START_FIELD]) == process.start_ticks
    return fields[_STATE_FIELD] if same else ""


def come_back(cluster: Cluster, role: str) -> None:
    """Starts a role that is not running."""
    if cluster.process(role) is None:
        cluster.start_role(role)


def is_back(cluster: Cluster, role: str) -> str:
    """ "" when a role runs, else that it does not."""
    return "" if cluster.process(role) is not None else f"{role} is not running"
