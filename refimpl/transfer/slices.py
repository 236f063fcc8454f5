"""Cutting the rows of an op into requests of a good size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.transfer.frames import MAX_FRAME_BYTES, MAX_ROWS

if TYPE_CHECKING:
    from refimpl.transfer.operation import Op, TransferSettings


class Slice:
    """Pieces of rows that travel in one request; `attempts` counts dispatches."""

    __slots__ = ("attempts", "lengths", "offsets", "payload_bytes", "rows", "views")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.views: list[memoryview] = []
        self.payload_bytes = 0
        self.attempts = 0

    def add(self, row: int, offset: int, view: memoryview) -> None:
        """Appends a piece."""
        self.rows.append(row)
        self.offsets.append(offset)
        self.lengths.append(len(view))
        self.views.append(view)
        self.payload_bytes += len(view)

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and lengths for the wire."""
        return np.array(self.offsets, np.uint64), np.array(self.lengths, np.uint32)


def cut(op: Op, rails: int, settings: TransferSettings) -> list[Slice]:
    """Slices of an op: as many as rails at least, when there are bytes enough.

    A row that is longer than a slice is cut into pieces; the row is done when all its
    pieces are. An empty row is a piece too: the store refuses it by its own rules.
    """
    lengths = [len(view) for view in op.buffers]
    limit = _limit(sum(lengths), rails, settings)
    slices = [Slice()]
    offsets = op.offsets.tolist()
    for row, offset, length, view in zip(
        op.rows.tolist(), offsets, lengths, op.buffers, strict=True
    ):
        at = 0
        while True:
            current = slices[-1]
            room = limit - current.payload_bytes
            piece = length - at
            if current.rows and (piece > room or len(current.rows) == MAX_ROWS):
                slices.append(Slice())
                continue
            piece = min(piece, limit)
            whole = piece == length
            current.add(row, offset + at, view if whole else view[at : at + piece])
            at += piece
            if at >= length:
                break
    return slices if slices[0].rows else []


def _limit(total: int, rails: int, settings: TransferSettings) -> int:
    """Bytes of a slice."""
    share = -(-total // max(1, rails))
    frame = min(settings.frame_bytes, MAX_FRAME_BYTES)
    return max(min(frame, share), min(frame, settings.least_frame_bytes))
