"""Length-framed JSON between the harness and a worker: four bytes, then the document.

Both ends are ours and on one machine; a frame beyond the bound, or one that is cut off,
means that the other end is broken or gone.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket

MOST_BYTES: Final = 32 << 20
_LENGTH: Final = struct.Struct("<I")


class Cut(ConnectionError):
    """The other end is gone, or says what is no frame."""


def encode(document: dict[str, Any]) -> bytes:
    """One frame.

    Raises:
        ValueError: It is larger than any frame may be.
    """
    body = json.dumps(document, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        message = f"a frame of {len(body)} bytes is larger than {MOST_BYTES}"
        raise ValueError(message)
    return _LENGTH.pack(len(body)) + body


def receive(sock: socket.socket) -> dict[str, Any]:
    """The next frame; waits for as long as the socket does.

    Raises:
        Cut: There will be none.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > MOST_BYTES:
        message = f"a frame of {length} bytes"
        raise Cut(message)
    document = json.loads(_exactly(sock, length))
    if not isinstance(document, dict):
        message = "a frame without fields"
        raise Cut(message)
    return document


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(1 << 20, count - len(parts)))
        if not part:
            message = "the other end is gone"
            raise Cut(message)
        parts += part
    return bytes(parts)
