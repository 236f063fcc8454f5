"""Replica descriptors with upstream's methods, out of a lookup's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from refimpl.compat.config import ReplicaStatus
from refimpl.core.codes import Code

if TYPE_CHECKING:
    from refimpl.client import Lookup


@dataclass(kw_only=True, slots=True)
class Descriptor:
    """One buffer: `buffer_address` is the offset within its segment here."""

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescriptor:
    """One replica. The pool has memory replicas only."""

    memory: MemoryDescriptor
    segment_name: str
    """Which segment it is in; what `preferred_segment` takes."""
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Always."""
        return True

    def is_disk_replica(self) -> bool:
        """Never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Never."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Where it is."""
        return self.memory


def described(found: Lookup, row: int) -> list[ReplicaDescriptor]:
    """The readable replicas of one row; none when it has another code than OK."""
    if found.status[row] != Code.OK:
        return []
    size = int(found.size[row])
    places = zip(found.segment[row].tolist(), found.offset[row].tolist(), strict=True)
    replicas = []
    for number, offset in places:
        segment = found.segments.get(number)
        if segment is None:
            continue
        endpoint = segment.rails[0][1] if segment.rails else ""
        at = Descriptor(size=size, buffer_address=offset, transport_endpoint=endpoint)
        replicas.append(
            ReplicaDescriptor(memory=MemoryDescriptor(at), segment_name=segment.name)
        )
    return replicas
