"""What every fault is: planned, injected at most once, proved, reverted, verified.

A fault acts on a running `Cluster` through signals to processes that the harness
started, the proxies in front of addresses, and the failpoints of roles. It never
touches anything else. The ledger row is on disk before `inject` acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Proof that a fault had effect. `effect` 0 is none: INCONCLUSIVE, never PASS."""

    measure: str
    effect: float
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Receipt:
    """A fault as it really happened; instants are seconds on the run's clock."""

    fault_id: str
    kind: str
    target: str
    parameters: dict[str, object] = field(default_factory=dict)
    planned_at_s: float = 0.0
    injected_at_s: float | None = None
    reverting_at_s: float | None = None
    reverted_at_s: float | None = None
    evidence: Evidence | None = None
    residual: str = ""

    @property
    def had_effect(self) -> bool:
        return self.evidence is not None and self.evidence.effect > 0


class Fault(Protocol):
    """One fault, one file, idempotent in every step."""

    kind: str
    target: str

    def plan(self) -> list[str]:
        """The exact steps that inject would take, in words an operator can check."""
        ...

    def inject(self) -> None: ...
    def probe(self) -> Evidence:
        """Reads the effect; may be called while active and after the load ran."""
        ...

    def revert(self) -> None: ...
    def verify_reverted(self) -> str:
        """Empty when nothing is left of the fault, else what is left."""
        ...
