"""One property as it was measured once, in a form that a history keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self

from chaos.conformance.properties import NAMES, Arm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.conformance.profile import Key

OPERATION: Final = "conformance"
"""The name of such a row in a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`held` None: it could not be told, and `reason` says why.

    `stall_s` is the longest wait of a read that began under the fault, the number that
    stands side by side; NaN where the property is not about waiting.
    """

    system: str
    version: str
    settings: str
    arm: Arm
    fault: str
    law: str
    held: bool | None
    observed: str
    limit: str = "-"
    samples: int = 0
    reason: str = ""
    reproduce: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return (self.fault, self.law, self.arm.value, self.settings)

    @property
    def name(self) -> str:
        """As people read it: fault and property."""
        return f"{self.fault}/{self.law}"

    @property
    def who(self) -> str:
        """As people read it: the system, and how it was used."""
        return self.system if self.arm is Arm.BARE else f"{self.system} + HiCache"

    def to_row(self) -> dict[str, Any]:
        """As plain JSON."""
        return {**asdict(self), "arm": self.arm.value}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read back.

        Raises:
            ValueError: It is no such row.
        """
        known = {each.name for each in fields(cls)}
        lacking = sorted(known - row.keys())
        if lacking or row["law"] not in NAMES:
            raise ValueError(f"no row of a measured property: lacks {lacking}")
        values = {name: row[name] for name in known}
        return cls(**{**values, "arm": Arm(row["arm"])})
