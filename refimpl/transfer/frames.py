"""The wire of the data plane: batched reads and writes of segment memory over TCP.

A request is a head, `count` extents and, for a write, the payload; a reply is a head,
`count` int16 statuses when the rows differ, and, for a read, the payload of the good
rows in request order. All numbers are little-endian. Every request names the segment
that it means: a store that was restarted under the same name and address has another
id and refuses (Mooncake#736, #3737), so old locations never read new bytes.

| request | | reply | |
|---|---|---|---|
| `<4s` | `MQD1` | `<4s` | `MQR1` |
| `B` | op | `B` | op |
| `B` | 0 | `B` | 1: statuses follow |
| `H` | count of extents | `h` | code of the whole frame |
| `Q` | sequence | `Q` | sequence |
| `Q` | segment | `Q` | segment served |
| `Q` | payload bytes | `Q` | payload bytes |
| `(QI)[count]` | offset, length | `h[count]` | statuses, when flagged |

Bytes that do not fit this table end the connection: nothing after them can be trusted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import TYPE_CHECKING, Final

import numpy as np

from refimpl.core.codes import Code
from refimpl.security.handshake import HELLO_MAGIC

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Buffer: TypeAlias = bytes | bytearray | memoryview

REQUEST_HEAD: Final = struct.Struct("<4sBBHQQQ")
REPLY_HEAD: Final = struct.Struct("<4sBBhQQQ")
HEAD_BYTES: Final = 32
EXTENT: Final = np.dtype([("offset", "<u8"), ("length", "<u4")])

MAX_ROWS: Final = 1024
"""Extents in a frame."""
MAX_FRAME_BYTES: Final = 64 << 20
"""Payload of a frame."""

_REQUEST_MAGIC = b"MQD1"
_REPLY_MAGIC = b"MQR1"
_STATUSES_FOLLOW = 1


class FrameError(ValueError):
    """The peer sent bytes that are no frame; the connection is of no use any more."""


class HandshakeAsked(FrameError):
    """The caller wants a handshake first, and there is no secret here to prove."""


@unique
class FrameOp(IntEnum):
    """What a request asks for."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The fixed part of a request."""

    op: FrameOp
    count: int
    sequence: int
    segment: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """The fixed part of a reply."""

    op: FrameOp
    code: int
    sequence: int
    segment: int
    payload_bytes: int
    has_statuses: bool


def encode_request(
    op: FrameOp,
    sequence: int,
    segment: int,
    offsets: NDArray[np.uint64],
    lengths: NDArray[np.uint32],
) -> bytes:
    """The head and the extents; the payload of a write follows from the caller."""
    extents = np.empty(len(offsets), EXTENT)
    extents["offset"] = offsets
    extents["length"] = lengths
    payload = int(lengths.sum(dtype=np.uint64)) if op is FrameOp.WRITE else 0
    head = REQUEST_HEAD.pack(
        _REQUEST_MAGIC, op, 0, len(offsets), sequence, segment, payload
    )
    return head + extents.tobytes()


def decode_request(head: Buffer) -> RequestHead:
    """Reads a request head and refuses what is out of bounds.

    Raises:
        FrameError: not a frame, or a bigger one than is allowed; HandshakeAsked for a
            hello.
    """
    magic, op, flags, count, sequence, segment, payload = REQUEST_HEAD.unpack(head)
    if magic == HELLO_MAGIC:
        raise HandshakeAsked("a handshake comes first, or not at all")
    if magic != _REQUEST_MAGIC or flags or op not in (FrameOp.READ, FrameOp.WRITE):
        raise FrameError(f"not a request: {bytes(head)[:8]!r}")
    if not 0 < count <= MAX_ROWS or payload > MAX_FRAME_BYTES:
        raise FrameError(f"request of {count} rows, {payload} bytes is out of bounds")
    if op == FrameOp.READ and payload:
        raise FrameError("a read carries no payload")
    return RequestHead(
        op=FrameOp(op),
        count=count,
        sequence=sequence,
        segment=segment,
        payload_bytes=payload,
    )


def decode_extents(data: Buffer) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Offsets and lengths out of the packed extents."""
    extents = np.frombuffer(data, EXTENT)
    return extents["offset"].astype(np.uint64), extents["length"].astype(np.uint32)


def extent_statuses(
    offsets: NDArray[np.uint64], lengths: NDArray[np.uint32], size: int
) -> NDArray[np.int16] | None:
    """INVALID_PARAMS where an extent leaves a segment of `size`; None when all fit."""
    wide = lengths.astype(np.uint64)
    # offset <= size - length cannot overflow, offset + length could.
    fits = (wide > 0) & (wide <= size) & (offsets <= np.uint64(size) - wide)
    if fits.all():
        return None
    return np.where(fits, int(Code.OK), int(Code.INVALID_PARAMS)).astype(np.int16)


def encode_reply(
    op: FrameOp,
    sequence: int,
    segment: int,
    *,
    code: int = Code.OK,
    payload_bytes: int = 0,
    statuses: NDArray[np.int16] | None = None,
) -> bytes:
    """The head and, when rows differ, their statuses."""
    flags = 0 if statuses is None else _STATUSES_FOLLOW
    head = REPLY_HEAD.pack(
        _REPLY_MAGIC, op, flags, code, sequence, segment, payload_bytes
    )
    return head if statuses is None else head + statuses.astype("<i2").tobytes()


def decode_reply(head: Buffer) -> ReplyHead:
    """Reads a reply head.

    Raises:
        FrameError: not a reply.
    """
    magic, op, flags, code, sequence, segment, payload = REPLY_HEAD.unpack(head)
    if magic != _REPLY_MAGIC or op not in (FrameOp.READ, FrameOp.WRITE):
        raise FrameError(f"not a reply: {bytes(head)[:8]!r}")
    if flags > _STATUSES_FOLLOW or payload > MAX_FRAME_BYTES:
        raise FrameError(f"reply with flags {flags}, {payload} bytes is out of bounds")
    return ReplyHead(
        op=FrameOp(op),
        code=code,
        sequence=sequence,
        segment=segment,
        payload_bytes=payload,
        has_statuses=bool(flags),
    )
