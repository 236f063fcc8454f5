"""Patience of the pool client."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refimpl.core.rails import RailSettings
from refimpl.core.scaling import scale
from refimpl.transfer.operation import TransferSettings

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Durations at factor 1, seconds."""

    replica_stall_s: float = 1.0
    """A store silent for so long is given up where there is another replica (read) or
    another place (write); at most half of what is left of the deadline."""
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 0.5
    """The master is dialled again after 50 ms to this; gRPC's own 20 s would outlast
    every deadline here."""
    connect_s: float = 1.0
    """Patience with one attempt to connect to the master."""
    names_fresh_s: float = 1.0
    """Which store a segment belongs to is asked anew after so long, for `avoid`."""
    revoke_s: float = 1.0
    """A revocation that nobody waits for may take so long."""
    transfer: TransferSettings = field(default_factory=TransferSettings)
    rails: RailSettings = field(default_factory=RailSettings)

    def scaled(self, factor: float) -> Self:
        """Every duration multiplied; redialling keeps its 50 ms."""
        return dataclasses.replace(
            scale(self, factor, fixed=("reconnect_min_s",)),
            transfer=self.transfer.scaled(factor),
            rails=self.rails.scaled(factor),
        )
