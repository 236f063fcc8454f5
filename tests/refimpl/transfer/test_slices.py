from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refimpl.transfer.frames import MAX_ROWS
from refimpl.transfer.operation import Op, TransferSettings
from refimpl.transfer.slices import cut


def op_of(lengths):
    ends = np.cumsum([0, *lengths])
    return Op(
        segment=SimpleNamespace(),
        rows=np.arange(len(lengths)) * 3,
        offsets=ends[:-1].astype(np.uint64),
        buffers=[memoryview(bytearray(n)) for n in lengths],
    )


@given(
    st.one_of(
        st.lists(st.integers(0, 500), min_size=1, max_size=50),
        st.builds(lambda n, size: [size] * n, st.integers(1, 50), st.integers(1, 500)),
    ),
    st.integers(1, 4),
)
def test_slices_cover_every_byte_of_every_row_once_in_order(lengths, rails):
    settings = TransferSettings(frame_bytes=200, least_frame_bytes=50)
    op = op_of(lengths)

    slices = cut(op, rails, settings)

    seen = {row: [] for row in op.rows.tolist()}
    for piece in slices:
        assert 0 < len(piece.rows) <= MAX_ROWS
        assert int(piece.lengths.sum()) <= 200
        for row, offset, length, view in zip(
            piece.rows, piece.offsets, piece.lengths, piece.views, strict=True
        ):
            assert len(view) == length
            seen[row].append((int(offset), int(length)))
    for row, offset, length in zip(seen, op.offsets.tolist(), lengths, strict=True):
        at = offset
        for start, count in seen[row]:
            assert start == at
            at += count
        assert at == offset + length


def test_a_batch_is_cut_for_as_many_rails_as_there_are():
    op = op_of([1000] * 8)
    settings = TransferSettings(frame_bytes=1 << 20, least_frame_bytes=100)

    assert [len(s.rows) for s in cut(op, 2, settings)] == [4, 4]
    assert [len(s.rows) for s in cut(op, 1, settings)] == [8]


def test_a_small_batch_is_not_cut_for_the_sake_of_rails():
    op = op_of([10] * 4)

    assert len(cut(op, 4, TransferSettings())) == 1


def test_more_rows_than_a_frame_takes_go_in_several():
    sizes = [len(s.rows) for s in cut(op_of([1] * 2500), 1, TransferSettings())]

    assert sizes == [1024, 1024, 452]


def test_nothing_gives_no_slice():
    assert cut(op_of([]), 2, TransferSettings()) == []
