"""Reading byte ranges of objects that were looked up before.

The lookup is the caller's, of this batch or of one long ago: its lease is what makes
the bytes trustworthy, so it is judged when they are all there. A range that is a whole
object is verified by its checksum; of a part of an object there is none. What stands in
a store that was restarted since is gone: nobody is asked where the object is now.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl.client.get import Get
from refimpl.client.results import filled
from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from refimpl.client.results import Lookup
    from refimpl.transfer.operation import Op


class RangeGet(Get):
    """One batch of ranges; a row is a range.

    Args:
        found: where the objects are.
        rows: of each range, the row of its object in `found`.
        offsets: of each range, its first byte within the object.
        parts: what `Get` takes, without keys.
    """

    def __init__(
        self,
        *,
        found: Lookup,
        rows: NDArray[np.intp],
        offsets: NDArray[np.uint64],
        views: Sequence[memoryview],
        **parts: Any,
    ) -> None:
        sizes = np.fromiter(map(len, views), np.uint64, len(views))
        placed = _placed(found, rows, offsets, sizes)
        super().__init__(keys=b"", views=views, found=placed, **parts)
        whole = (offsets == 0) & (sizes == found.size[rows])
        self._whole: frozenset[int] = frozenset(np.flatnonzero(whole).tolist())

    def _refresh(self, rows: NDArray[np.intp]) -> None:
        """The location is all that the caller has."""
        self._codes[rows] = Code.REPLICA_IS_GONE

    def _fitting(self, lookup: Lookup, rows: NDArray[np.intp]) -> NDArray[np.int16]:
        """A buffer is as large as its range."""
        return filled(len(rows), Code.OK)

    def landed(self, op: Op, rows: Sequence[int]) -> None:
        """Takes checksums of whole objects."""
        super().landed(op, [row for row in rows if row in self._whole])

    def arrived(self, op: Op, rows: Sequence[int]) -> Mapping[int, int]:
        """Compares checksums of whole objects."""
        whole = [row for row in rows if row in self._whole]
        return super().arrived(op, whole) if whole else {}


def _placed(
    found: Lookup,
    rows: NDArray[np.intp],
    offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
) -> Lookup:
    """Columns of ranges out of columns of objects; what overruns is refused."""
    status = found.status[rows].copy()
    held = found.size[rows].astype(np.uint64)
    inside = (offsets <= held) & (sizes <= held - np.minimum(offsets, held))
    status[(status == Code.OK) & ~inside] = Code.INVALID_PARAMS
    return dataclasses.replace(
        found,
        status=status,
        segment=found.segment[rows],
        offset=found.offset[rows] + offsets[:, None],
        size=sizes.astype(np.uint32),
        checksum=found.checksum[rows],
        parts=found.parts[rows],
    )
