"""Which replica of each key to read, and which one next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code
from refimpl.transfer.operation import Op

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from refimpl.client.results import Lookup
    from refimpl.core.segments import SegmentInfo
    from refimpl.transfer.rails import Rails


class ReadPlan:
    """The replicas of a batch in the order in which they are worth asking.

    Order: stores with a rail in health, then those on the reader's own host, then the
    rest, rotated by row so that replicas share the load. Avoided stores are left out.
    """

    def __init__(
        self,
        lookup: Lookup,
        views: Sequence[memoryview],
        *,
        rails: Rails,
        host_id: str,
        avoid: Collection[str],
        now: float,
    ) -> None:
        self.lookup = lookup
        self._views = views
        self._rank: dict[int, int] = {}
        for number, segment in lookup.segments.items():
            if segment.name in avoid or not segment.rails:
                continue
            healthy = rails.usable(segment, now)
            near = bool(host_id) and segment.host_id == host_id
            self._rank[number] = (0 if healthy else 2) + (0 if near else 1)

    def first(
        self, rows: NDArray[np.intp], silence_s: float
    ) -> tuple[list[Op], dict[int, int]]:
        """Ops for the best replica of each row, and codes of rows that have none."""
        if self.lookup.segment.shape[1] == 1:
            return self._single(rows)
        chosen: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        codes: dict[int, int] = {}
        for row in rows.tolist():
            order = self._order(row)
            if not order:
                codes[row] = self._absent(row)
                continue
            segment = int(self.lookup.segment[row, order[0]])
            chosen.setdefault((segment, len(order) > 1), []).append((row, order[0]))
        ops = [
            self._op(segment, pairs, silence_s if has_other else math.inf)
            for (segment, has_other), pairs in chosen.items()
        ]
        return ops, codes

    def other(self, rows: Iterable[int], tried: int) -> list[Op]:
        """Ops for rows whose replica in segment `tried` failed."""
        chosen: dict[int, list[tuple[int, int]]] = {}
        for row in rows:
            for replica in self._order(row):
                segment = int(self.lookup.segment[row, replica])
                if segment != tried:
                    chosen.setdefault(segment, []).append((row, replica))
                    break
        return [self._op(number, pairs, math.inf) for number, pairs in chosen.items()]

    def _single(self, rows: NDArray[np.intp]) -> tuple[list[Op], dict[int, int]]:
        """No key has a second replica: whole columns at once."""
        held_by = self.lookup.segment[rows, 0]
        ops: list[Op] = []
        codes: dict[int, int] = {}
        for number in np.unique(held_by).tolist():
            mine = rows[held_by == number]
            if number not in self._rank:
                codes.update((row, self._absent(row)) for row in mine.tolist())
                continue
            ops.append(
                Op(
                    segment=self._segment(number),
                    rows=mine,
                    offsets=self.lookup.offset[mine, 0],
                    buffers=[self._views[row] for row in mine.tolist()],
                )
            )
        return ops, codes

    def _order(self, row: int) -> list[int]:
        """Columns of the replicas of a row, the best first."""
        numbers = self.lookup.segment[row].tolist()
        known = [i for i, number in enumerate(numbers) if number in self._rank]
        count = len(numbers)
        return sorted(known, key=lambda i: (self._rank[numbers[i]], (i - row) % count))

    def _absent(self, row: int) -> int:
        """Why no replica may be read: all avoided, or nobody knows where they are."""
        numbers = self.lookup.segment[row].tolist()
        known = any(number in self.lookup.segments for number in numbers)
        # "Not now" is a healthy miss; nothing was asked of the avoided store.
        return Code.REPLICA_IS_NOT_READY if known else Code.REPLICA_NOT_FOUND

    def _op(
        self, number: int, pairs: Sequence[tuple[int, int]], silence_s: float
    ) -> Op:
        rows = np.array([row for row, _replica in pairs], np.intp)
        replicas = np.array([replica for _row, replica in pairs], np.intp)
        return Op(
            segment=self._segment(number),
            rows=rows,
            offsets=self.lookup.offset[rows, replicas],
            buffers=[self._views[row] for row, _replica in pairs],
            silence_s=silence_s,
        )

    def _segment(self, number: int) -> SegmentInfo:
        return self.lookup.segments[number]
