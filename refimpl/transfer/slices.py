"""Cutting the rows of an op into requests of a good size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.transfer.frames import MAX_FRAME_BYTES, MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from refimpl.transfer.operation import Op, TransferSettings


class Slice:
    """Pieces of rows that travel in one request; `attempts` counts dispatches."""

    __slots__ = ("attempts", "lengths", "offsets", "rows", "views")

    def __init__(
        self,
        rows: list[int],
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint32],
        views: Sequence[memoryview],
    ) -> None:
        self.rows = rows
        self.offsets = offsets
        self.lengths = lengths
        self.views = views
        self.attempts = 0


def cut(op: Op, rails: int, settings: TransferSettings) -> list[Slice]:
    """Slices of an op: as many as rails at least, when there are bytes enough.

    A row that is longer than a slice is cut into pieces; the row is done when all its
    pieces are. An empty row is a piece too: the store refuses it by its own rules.
    """
    if not len(op.rows):
        return []
    lengths = np.fromiter(map(len, op.buffers), np.int64, len(op.buffers))
    limit = _limit(int(lengths.sum()), rails, settings)
    longest = int(lengths.max())
    if longest == int(lengths.min()) and 0 < longest <= limit:
        return _cut_even(op, lengths.astype(np.uint32), min(limit // longest, MAX_ROWS))
    return _cut_uneven(op, limit)


def _cut_even(op: Op, lengths: NDArray[np.uint32], count: int) -> list[Slice]:
    """The usual case: pages of one size."""
    rows = op.rows.tolist()
    return [
        Slice(
            rows[at : at + count],
            op.offsets[at : at + count],
            lengths[at : at + count],
            op.buffers[at : at + count],
        )
        for at in range(0, len(rows), count)
    ]


def _cut_uneven(op: Op, limit: int) -> list[Slice]:
    """Rows of different sizes, or longer than a slice."""
    pieces = [
        (row, offset + at, view[at : at + limit])
        for row, offset, view in zip(
            op.rows.tolist(), op.offsets.tolist(), op.buffers, strict=True
        )
        for at in range(0, max(1, len(view)), limit)
    ]
    groups: list[list[tuple[int, int, memoryview]]] = []
    room = 0
    for piece in pieces:
        size = len(piece[2])
        if not groups or size > room or len(groups[-1]) == MAX_ROWS:
            groups.append([])
            room = limit
        groups[-1].append(piece)
        room -= size
    return [_slice_of(group) for group in groups]


def _slice_of(group: list[tuple[int, int, memoryview]]) -> Slice:
    rows, offsets, views = zip(*group, strict=True)
    return Slice(
        list(rows),
        np.array(offsets, np.uint64),
        np.array([len(view) for view in views], np.uint32),
        views,
    )


def _limit(total: int, rails: int, settings: TransferSettings) -> int:
    """Bytes of a slice."""
    share = -(-total // max(1, rails))
    frame = min(settings.frame_bytes, MAX_FRAME_BYTES)
    return max(min(frame, share), min(frame, settings.least_frame_bytes))
