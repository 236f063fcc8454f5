from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.codes import Code
from refimpl.transfer import frames
from refimpl.transfer.frames import FrameError, FrameOp


def request(op=FrameOp.READ, rows=2, length=10):
    offsets = np.arange(rows, dtype=np.uint64)
    lengths = np.full(rows, length, np.uint32)
    return frames.encode_request(op, 3, 9, offsets, lengths)


def test_a_request_comes_back_as_it_was_sent():
    data = request(FrameOp.WRITE)

    head = frames.decode_request(data[:32])
    offsets, lengths = frames.decode_extents(data[32:])

    assert (head.op, head.count, head.sequence, head.segment) == (2, 2, 3, 9)
    assert head.payload_bytes == 20
    assert offsets.tolist() == [0, 1]
    assert lengths.tolist() == [10, 10]


def test_a_reply_comes_back_as_it_was_sent():
    statuses = np.array([0, -600], np.int16)

    data = frames.encode_reply(
        FrameOp.READ, 5, 9, code=-800, payload_bytes=7, statuses=statuses
    )
    head = frames.decode_reply(data[:32])

    assert (head.op, head.sequence, head.segment, head.code) == (1, 5, 9, -800)
    assert head.payload_bytes == 7
    assert head.has_statuses
    assert np.frombuffer(data[32:], "<i2").tolist() == [0, -600]


@given(st.binary(min_size=32, max_size=32))
def test_noise_is_a_frame_error_and_nothing_else(noise):
    for decode in (frames.decode_request, frames.decode_reply):
        with pytest.raises(FrameError):
            decode(noise)


@pytest.mark.parametrize(
    ("count", "payload", "op"),
    [
        (0, 0, 1),
        (frames.MAX_ROWS + 1, 0, 1),
        (1, frames.MAX_FRAME_BYTES + 1, 2),
        (1, 1, 1),
        (1, 0, 3),
    ],
)
def test_a_request_beyond_the_bounds_is_refused(count, payload, op):
    head = frames.REQUEST_HEAD.pack(b"MQD1", op, 0, count, 0, 9, payload)

    with pytest.raises(FrameError):
        frames.decode_request(head)


def test_a_request_at_the_bounds_is_taken():
    head = frames.REQUEST_HEAD.pack(
        b"MQD1", 2, 0, frames.MAX_ROWS, 0, 9, frames.MAX_FRAME_BYTES
    )

    assert frames.decode_request(head).count == frames.MAX_ROWS


def test_extents_outside_are_named_and_cannot_overflow():
    offsets = np.array([0, 90, 91, 2**64 - 1, 0, 5], np.uint64)
    lengths = np.array([100, 10, 10, 10, 101, 0], np.uint32)

    statuses = frames.extent_statuses(offsets, lengths, 100)

    bad = int(Code.INVALID_PARAMS)
    assert statuses.tolist() == [0, 0, bad, bad, bad, bad]
    assert frames.extent_statuses(offsets[:2], lengths[:2], 100) is None
