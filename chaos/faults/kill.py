"""kill: SIGKILL to a role. The role is gone with its memory; revert starts it empty."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from chaos.errors import FaultNotInjected, UsageError
from chaos.faults.base import Evidence
from chaos.safety.identity import is_alive, send_signal, wait_until

if TYPE_CHECKING:
    from chaos.systems.base import Cluster, Process

_GONE_DEADLINE_S = 5.0


class Kill:
    """Ends a process without warning, addressed by pidfd and start time."""

    kind = "kill"

    def __init__(self, cluster: Cluster, role: str) -> None:
        self.target = role
        self._cluster = cluster
        self._killed: Process | None = None

    def plan(self) -> list[str]:
        process = self._cluster.process(self.target)
        who = f"pid {process.pid}" if process else "not running"
        return [f"SIGKILL to {self.target} ({who})", f"start {self.target} to revert"]

    def inject(self) -> None:
        process = self._cluster.process(self.target)
        if process is None:
            message = f"{self.target} is not running, it cannot be killed"
            raise UsageError(message)
        self._killed = process
        send_signal(process.pid, process.start_ticks, signal.SIGKILL)
        if not wait_until(self._gone, timeout_s=_GONE_DEADLINE_S):
            reason = f"pid {process.pid} survived SIGKILL"
            raise FaultNotInjected(fault=self.kind, target=self.target, reason=reason)

    def probe(self) -> Evidence:
        gone = self._killed is not None and self._gone()
        who = f"pid {self._killed.pid}" if self._killed else "never killed"
        return Evidence(measure="process gone", effect=float(gone), detail=who)

    def revert(self) -> None:
        """What was not running, or does not exist, was not killed: nothing to undo."""
        if self._killed and self._cluster.process(self.target) is None:
            self._cluster.start_role(self.target)

    def verify_reverted(self) -> str:
        if self._killed and self._cluster.process(self.target) is None:
            return f"{self.target} is not running"
        return ""

    def _gone(self) -> bool:
        killed = self._killed
        return killed is not None and not is_alive(killed.pid, killed.start_ticks)
