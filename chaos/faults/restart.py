"""restart: a role ends and comes back under the same name and addresses, empty."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.base import Evidence
from chaos.safety.identity import is_alive, send_signal, wait_until

if TYPE_CHECKING:
    from chaos.systems.base import Cluster, Process

_GONE_DEADLINE_S = 5.0


class Restart:
    """Ends a role, orderly (SIGTERM) or at once (SIGKILL), and starts it again."""

    kind = "restart"

    def __init__(self, cluster: Cluster, role: str, *, orderly: bool = False) -> None:
        self.target = role
        self._cluster = cluster
        self._orderly = orderly
        self._before: Process | None = None
        self._after: Process | None = None

    def plan(self) -> list[str]:
        signal_name = "SIGTERM" if self._orderly else "SIGKILL"
        return [f"{signal_name} to {self.target}", f"start {self.target} again"]

    def inject(self) -> None:
        process = self._cluster.process(self.target)
        if process is None:
            message = f"{self.target} is not running, it cannot be restarted"
            raise UsageError(message)
        self._before = process
        if self._orderly:
            self._cluster.stop_role(self.target)
        else:
            send_signal(process.pid, process.start_ticks, signal.SIGKILL)
            wait_until(lambda: not _lives(process), timeout_s=_GONE_DEADLINE_S)
        self._after = self._cluster.start_role(self.target)

    def probe(self) -> Evidence:
        before, after = self._before, self._after
        new = before is not None and after is not None and not _lives(before)
        pids = f"pid {before.pid if before else '-'} -> {after.pid if after else '-'}"
        return Evidence(measure="process replaced", effect=float(new), detail=pids)

    def revert(self) -> None:
        """What was not running, or does not exist, was not ended: nothing to undo."""
        if self._before and self._cluster.process(self.target) is None:
            self._cluster.start_role(self.target)

    def verify_reverted(self) -> str:
        running = self._cluster.process(self.target) is not None
        return "" if running or not self._before else f"{self.target} is not running"


def _lives(process: Process) -> bool:
    return is_alive(process.pid, process.start_ticks)
