"""Which rails of a store to use, in which order, and what each has carried."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from refimpl.core.rails import RailHealth, RailSettings

if TYPE_CHECKING:
    from refimpl.core.rails import Topology
    from refimpl.core.segments import SegmentInfo
    from refimpl.transfer.lane import Lane

_COUNTED: Final = 1024
"""Rails whose bytes are remembered, the longest unused are forgotten."""


class Rails:
    """Health and counters of all rails that an engine talks to, under one lock.

    A rail is named by the id of its segment: what befell a store that is gone says
    nothing of the one that took its name and address.

    Args:
        settings: of the pauses.
        topology: NICs by storage location; None treats all rails alike.
        location: where this process's buffers are, "cpu:0".
    """

    def __init__(
        self,
        settings: RailSettings | None = None,
        *,
        topology: Topology | None = None,
        location: str = "*",
    ) -> None:
        self._lock = threading.Lock()
        self._health = RailHealth(settings or RailSettings())
        self._topology = topology
        self._location = location
        self._turn = 0
        self._bytes: OrderedDict[str, list[int]] = OrderedDict()
        self.not_authenticated = 0
        """Handshakes in which the store did not prove that it knows the secret."""

    def choose(
        self, segment: SegmentInfo, now: float
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """(name, address) of the rails to use, and of those to use only in need.

        Whoever comes first changes from call to call, so that single requests are
        spread too.
        """
        near, far = self._by_distance(segment)
        names = {rail: _name(segment, rail) for rail, _address in segment.rails}
        with self._lock:
            self._turn += 1
            turn = self._turn % len(near) if near else 0
            near = near[turn:] + near[:turn]
            rested = {
                rail
                for rail, name in names.items()
                if not self._health.paused(name, now)
            }
        usable = [r for r in near if r[0] in rested]
        if not usable:
            usable, far = [r for r in far if r[0] in rested], []
        reserve = far + [r for r in segment.rails if r[0] not in rested]
        return usable, reserve

    def usable(self, segment: SegmentInfo, now: float) -> bool:
        """False when every rail of a store rests."""
        names = [_name(segment, rail) for rail, _address in segment.rails]
        with self._lock:
            return bool(self._health.usable(names, now))

    def failed(
        self, segment: SegmentInfo, rail: str, now: float, *, had_other: bool
    ) -> None:
        """A transport error; with another way to go the rail is paused at once."""
        with self._lock:
            self._health.record(_name(segment, rail), False, now, alternative=had_other)

    def unproved(self) -> None:
        """Counts a handshake that proved nothing."""
        with self._lock:
            self.not_authenticated += 1

    def worked(self, segment: SegmentInfo, rail: str, now: float) -> None:
        """A call over the rail ended well."""
        with self._lock:
            self._health.record(_name(segment, rail), True, now)

    def count(self, segment: SegmentInfo, lane: Lane) -> None:
        """Adds what a lane carried."""
        name = f"{segment.name}@{lane.rail}"
        with self._lock:
            total = self._bytes.setdefault(name, [0, 0])
            total[0] += lane.bytes_in
            total[1] += lane.bytes_out
            self._bytes.move_to_end(name)
            while len(self._bytes) > _COUNTED:
                self._bytes.popitem(last=False)

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Bytes by `store@rail`."""
        with self._lock:
            return {
                name: {"in": total[0], "out": total[1]}
                for name, total in sorted(self._bytes.items())
            }

    def _by_distance(
        self, segment: SegmentInfo
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Rails that the topology prefers here, and the others."""
        rails = list(segment.rails)
        if self._topology is None:
            return rails, []
        preferred = set(self._topology.choices(self._location).preferred)
        near = [rail for rail in rails if rail[0] in preferred]
        if not near:
            return rails, []
        return near, [rail for rail in rails if rail[0] not in preferred]


def _name(segment: SegmentInfo, rail: str) -> str:
    return f"{segment.id:016x}@{rail}"
