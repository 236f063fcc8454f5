"""What the pool answers: columns, one row a key, in the order of the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from refimpl.core.segments import Freed, SegmentInfo

Codes = NDArray[np.int16]
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where the objects of a batch are. Columns of a key that is not OK are 0."""

    status: Codes
    segment: Words
    """Instance ids (n, R), readable ones first, 0 for none; no object has more than R
    replicas."""
    offset: Words
    size: NDArray[np.uint32]
    checksum: Words
    parts: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Where to write. Token and place are 0 for a key that is not OK."""

    status: Codes
    token: Words
    segment: Words
    offset: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """What one bounded slice did, and when the next one is due."""

    again_in_s: float
    """0 when there is more to do at once."""
    freed: list[Freed] = field(default_factory=list)
    """Buffers for `Pool.release`, which may run outside the locked section."""
    evicted: int = 0
    swept: int = 0
    """Slots looked at for replicas of removed segments."""
    unmounted: tuple[int, ...] = ()
    """Segments whose grace ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counters and gauges by full metric name, derived from live state."""

    counters: dict[str, float]
    gauges: dict[str, float]
    segments: tuple[SegmentInfo, ...]
