"""The mounted segments as protobuf messages, built once a mount, not once a lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from refimpl.core.segments import SegmentInfo
from refimpl.proto import pool_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

_PEELS: Final = 8
"""Ids taken off one at a time before a real `unique`: a prefix lies on few stores."""

Directory = dict[int, pool_pb2.Segment]
"""Messages by segment id. Replaced as a whole, never changed in place, so that an
answer under way keeps the directory that it was located with."""


def directory_of(
    segments: Iterable[SegmentInfo], former: Mapping[int, object]
) -> Directory:
    """Messages of `segments`, those of `former` used again."""
    return {
        s.id: former[s.id] if s.id in former else to_message(s)  # type: ignore[misc]
        for s in segments
    }


def named_in(ids: NDArray[np.uint64], directory: Directory) -> list[pool_pb2.Segment]:
    """The segments named in an id column (0 is none), each once."""
    return [directory[i] for i in _distinct(ids.ravel()) if i in directory]


def _distinct(ids: NDArray[np.uint64]) -> list[int]:
    """Distinct values; comparing away a few ids costs less than sorting thousands."""
    distinct: list[int] = []
    for _ in range(_PEELS):
        if not ids.size:
            return distinct
        first = ids[0]
        distinct.append(int(first))
        ids = ids[ids != first]
    return distinct + [int(i) for i in np.unique(ids)]


def to_message(segment: SegmentInfo) -> pool_pb2.Segment:
    """A segment for the wire."""
    return pool_pb2.Segment(
        id=segment.id,
        name=segment.name,
        host_id=segment.host_id,
        size=segment.size,
        rails=[pool_pb2.Rail(name=n, address=a) for n, a in segment.rails],
        numa_node=segment.numa_node,
        allocated=segment.allocated,
        status=segment.status,
    )


def from_message(message: pool_pb2.Segment) -> SegmentInfo:
    """A segment from the wire, as a store mounts it: nothing allocated yet."""
    return SegmentInfo(
        id=message.id,
        name=message.name,
        host_id=message.host_id,
        size=message.size,
        rails=tuple((rail.name, rail.address) for rail in message.rails),
        numa_node=message.numa_node,
    )
