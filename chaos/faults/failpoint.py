"""failpoint: a role answers with an error code, or late, at a named point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.faults.base import Evidence

if TYPE_CHECKING:
    from chaos.systems.base import Cluster

_OFF = "off"


class Failpoint:
    """Switches a failpoint of a role on (grammar of fail-rs) and off again."""

    kind = "failpoint"

    def __init__(self, cluster: Cluster, role: str, name: str, spec: str) -> None:
        self.target = f"{role}/{name}"
        self._cluster = cluster
        self._role = role
        self._name = name
        self._spec = spec
        self._hits_before = 0

    def plan(self) -> list[str]:
        return [
            f"PUT /failpoints/{self._name} = {self._spec!r} on {self._role}",
            f"PUT /failpoints/{self._name} = 'off' to revert",
        ]

    def inject(self) -> None:
        self._hits_before = self._cluster.failpoint_hits(self._role, self._name)
        self._cluster.set_failpoint(self._role, self._name, self._spec)

    def probe(self) -> Evidence:
        """Hits since the injection; a role that was replaced meanwhile counts anew."""
        hits = self._cluster.failpoint_hits(self._role, self._name)
        new = hits - self._hits_before if hits >= self._hits_before else hits
        return Evidence(
            measure="failpoint hits", effect=float(new), detail=f"{new} of {self._spec}"
        )

    def revert(self) -> None:
        """A role that is gone took its failpoints with it."""
        if self._cluster.process(self._role) is not None:
            self._cluster.set_failpoint(self._role, self._name, _OFF)

    def verify_reverted(self) -> str:
        if self._cluster.process(self._role) is None:
            return ""
        failpoints = self._cluster.role_state(self._role).get("failpoints", {})
        spec = failpoints.get(self._name, {}).get("spec", _OFF)
        return "" if spec == _OFF else f"{self.target} is still {spec!r}"
