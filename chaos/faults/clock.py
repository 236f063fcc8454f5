"""clock_step: the clock that a role reads jumps, through the role's own failpoint.

The host's clock is never touched: other programs, logs and certificates depend on it.
A step forward stays, as it would after a suspension; a step back makes the clock stand
still, until time has caught up or the fault is reverted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.failpoint import Failpoint

if TYPE_CHECKING:
    from chaos.systems.base import Cluster

FAILPOINT = "clock.step"
_MS_PER_S = 1000
_MOST_S = 86_400.0


class ClockStep(Failpoint):
    """One jump; evidence is that the role read its clock since."""

    kind = "clock_step"

    def __init__(self, cluster: Cluster, role: str, step_s: float) -> None:
        step_ms = round(step_s * _MS_PER_S)
        if not step_ms or abs(step_s) > _MOST_S:
            problem = f"clock_step of {step_s:g} s"
            raise UsageError(f"{problem}; it must be 1 ms to a day, either way")
        super().__init__(cluster, role, FAILPOINT, f"1*return({step_ms})->return(0)")
        self.target = f"{role} by {step_s:+g} s"

    def verify_reverted(self) -> str:
        if self._cluster.process(self._role) is None:
            return ""
        failpoints = self._cluster.role_state(self._role).get("failpoints", {})
        spec = failpoints.get(self._name, {}).get("spec", "off")
        return "" if spec == "off" else f"{self.target} is still {spec!r}"
