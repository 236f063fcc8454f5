"""The mounted segments as protobuf messages, built once a mount, not once a lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from refimpl.core.segments import SegmentInfo
from refimpl.proto import pool_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_SEND_ALL: Final = 16
"""Up to so many segments an answer describes them all: finding out which of them a
batch names costs more (20 to 130 us) than the few hundred bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Messages by segment id.

    Replaced as a whole, never changed in place, so that an answer under way keeps the
    directory that it was located with.
    """

    messages: dict[int, pool_pb2.Segment]

    def renewed(self, segments: Iterable[SegmentInfo]) -> Directory:
        """A directory of these segments, with the messages that are there already."""
        former = self.messages
        return Directory({s.id: former.get(s.id) or to_message(s) for s in segments})

    def describe(self, ids: NDArray[np.uint64]) -> list[pool_pb2.Segment]:
        """Every segment named in an id column (0 is none), each once; maybe others."""
        messages = self.messages
        if len(messages) <= _SEND_ALL:
            return list(messages.values())
        named = np.unique(ids).tolist()
        return [messages[i] for i in named if i in messages]


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
