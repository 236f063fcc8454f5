"""pause: SIGSTOP to a role. Connections stay open, nothing answers: hung, not dead.

The main process is stopped; a heartbeat child that outlives the stop sees it and
falls silent by itself, as a hung host would.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from chaos.errors import FaultNotInjected, UsageError
from chaos.faults.base import Evidence
from chaos.safety.identity import is_alive, send_signal, state_of, wait_until

if TYPE_CHECKING:
    from chaos.systems.base import Cluster, Process

_STATE_DEADLINE_S = 2.0
_STOPPED = "T"


class Pause:
    """Stops a process and continues it."""

    kind = "pause"

    def __init__(self, cluster: Cluster, role: str) -> None:
        self.target = role
        self._cluster = cluster
        self._paused: Process | None = None

    def plan(self) -> list[str]:
        process = self._cluster.process(self.target)
        who = f"pid {process.pid}" if process else "not running"
        return [f"SIGSTOP to {self.target} ({who})", "SIGCONT to revert"]

    def inject(self) -> None:
        process = self._cluster.process(self.target)
        if process is None:
            message = f"{self.target} is not running, it cannot be paused"
            raise UsageError(message)
        self._paused = process
        send_signal(process.pid, process.start_ticks, signal.SIGSTOP)
        if not wait_until(self._stopped, timeout_s=_STATE_DEADLINE_S):
            reason = f"pid {process.pid} did not stop"
            raise FaultNotInjected(fault=self.kind, target=self.target, reason=reason)

    def probe(self) -> Evidence:
        state = state_of(self._paused.pid) if self._paused else ""
        return Evidence(
            measure="process in state T",
            effect=float(self._stopped()),
            detail=f"state {state or 'gone'}",
        )

    def revert(self) -> None:
        paused = self._paused
        if paused is None:
            return
        send_signal(paused.pid, paused.start_ticks, signal.SIGCONT)
        wait_until(lambda: not self._stopped(), timeout_s=_STATE_DEADLINE_S)

    def verify_reverted(self) -> str:
        """A target that died or was started anew meanwhile has nothing left to undo."""
        return f"{self.target} is still stopped" if self._stopped() else ""

    def _stopped(self) -> bool:
        paused = self._paused
        if paused is None or not is_alive(paused.pid, paused.start_ticks):
            return False
        return state_of(paused.pid) == _STOPPED
