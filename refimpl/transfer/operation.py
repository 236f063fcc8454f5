"""What a caller hands to the transfer engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from refimpl.core.scaling import scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

    from refimpl.core.segments import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Limits and patience of the engine; durations at factor 1."""

    rail_stall_s: float = 0.5
    """A rail without a byte for so long gives its rows to another usable rail."""
    frame_bytes: int = 4 << 20
    """Payload that one request asks for; the grain of spreading over rails."""
    least_frame_bytes: int = 64 << 10
    """No request is cut smaller than this to occupy another rail."""
    window: int = 3
    """Requests in flight on one connection."""
    idle_per_rail: int = 4
    idle_total: int = 256
    socket_buffer_bytes: int = 0
    """0 leaves it to the kernel, which adapts; large fixed ones measured slower."""

    def scaled(self, factor: float) -> Self:
        """Every duration multiplied."""
        return scale(self, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Rows of one store. `rows` are the caller's numbers, unique over all ops at once.

    `buffers[i]` are flat byte views as long as the row. After `silence_s` without a
    byte from the whole store its unfinished rows fail with RPC_TIMEOUT: give it when
    there is an alternative, else the op waits until the deadline of the call.
    """

    segment: SegmentInfo
    rows: NDArray[np.intp]
    offsets: NDArray[np.uint64]
    buffers: Sequence[memoryview]
    silence_s: float = math.inf


class Watch(Protocol):
    """A caller that follows a call row by row, in the calling thread."""

    def landed(self, op: Op, rows: Sequence[int]) -> None:
        """Bytes of whole rows are in place: time to look at them while others arrive.

        A row that is read again after its rail broke lands again.
        """
        ...

    def arrived(self, op: Op, rows: Sequence[int]) -> Mapping[int, int]:
        """Rows whose bytes are complete; answers the bad ones and their code."""
        ...

    def idle(self) -> bool:
        """Nothing to move right now: does a little (some 20 us) of other work.

        Answers False when there is none left; then it is not asked again.
        """
        ...

    def failed(self, op: Op, codes: Mapping[int, int]) -> Sequence[Op]:
        """Rows that an op could not move; answers further ops that shall try them."""
        ...
