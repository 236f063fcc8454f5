"""What the pool client answers: columns, one row a key, in request order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code, Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.core.segments import SegmentInfo

MASTER = "master"
"""The name under which a failed lookup stands among the endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Where a batch is. `code` is of the call itself; rows are void when it is bad."""

    code: int
    status: NDArray[np.int16]
    segment: NDArray[np.uint64]
    """(n, R) ids, 0 for none."""
    offset: NDArray[np.uint64]
    size: NDArray[np.uint32]
    checksum: NDArray[np.uint64]
    parts: NDArray[np.uint8]
    segments: Mapping[int, SegmentInfo]
    lease_until: float
    """On the client's clock, counted from before the call was sent."""

    def only(self, rows: Sequence[int]) -> Lookup:
        """Some of the rows."""
        if rows == list(range(len(self.status))):
            return self
        at = np.array(rows, np.intp)
        names = ("status", "segment", "offset", "size", "checksum", "parts")
        columns = {name: getattr(self, name)[at] for name in names}
        return dataclasses.replace(self, **columns)

    def owners(self) -> list[tuple[str, ...]]:
        """The names of the stores that hold each key, () where it is not readable."""
        if self.code != Code.OK:
            return [() for _ in range(len(self.status))]
        names = {0: "", **{key: info.name for key, info in self.segments.items()}}
        return [
            tuple(names[place] for place in row if place) if status == Code.OK else ()
            for status, row in zip(
                self.status.tolist(), self.segment.tolist(), strict=True
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetResult:
    """Codes per key; only rows that are OK hold bytes that may be used."""

    codes: NDArray[np.int16]
    endpoints: Mapping[str, Code]
    """Every store asked, and "master" when the lookup failed: OK or its first fault."""
    lookup_s: float = 0.0
    transfer_s: float = 0.0
    asked: tuple[str, ...] = ()
    heard_s: Mapping[str, float] = field(default_factory=dict)
    """When the last bytes of each store came, in seconds from the start of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """Codes per key; OBJECT_ALREADY_EXISTS is success for a cache."""

    codes: NDArray[np.int16]
    endpoints: Mapping[str, Code]


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFacts:
    """What a newcomer has to know before it can contribute."""

    heartbeat: str
    """HOST:PORT as bound: on 0.0.0.0 it is the host that the RPC was dialled at."""
    time_scale: float
    lease_s: float
    view: int
    """Number of the master's term."""


@dataclass(slots=True)
class Endpoints:
    """Collects how each store behaved during one call."""

    found: dict[str, Code] = field(default_factory=dict)

    def asked(self, name: str) -> None:
        """Bytes are asked of it."""
        self.found.setdefault(name, Code.OK)

    def blame(self, name: str, code: int) -> None:
        """Keeps the first fault; misses and callers' mistakes are no fault of it."""
        if outcome_of(code) is Outcome.FAULT and self.found.get(name, 0) == Code.OK:
            self.found[name] = code_of(code)


def code_of(number: int) -> Code:
    """The code of a number; one that upstream never had is an INTERNAL_ERROR."""
    try:
        return Code(number)
    except ValueError:
        return Code.INTERNAL_ERROR


def filled(count: int, code: int) -> NDArray[np.int16]:
    """A column of one code."""
    return np.full(count, code, np.int16)
