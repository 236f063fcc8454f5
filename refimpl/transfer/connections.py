"""Idle connections to rails, kept for the next call, bounded and checked before use."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TypeAlias

    RailKey: TypeAlias = tuple[int, str]

_CONNECTING: Final = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER value with which close sends RST."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` to its parts.

    Raises:
        ValueError: there is no port.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def start_connect(address: str, buffer_bytes: int) -> socket.socket:
    """A non-blocking socket on its way to `address`; writable when it is there.

    Raises:
        OSError: refused at once, or no such address.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        code = sock.connect_ex((host, port))
        if code not in _CONNECTING:
            raise OSError(code, os.strerror(code), address)
    except BaseException:
        sock.close()
        raise
    return sock


def abort(sock: socket.socket) -> None:
    """Closes with a reset: what was not sent, or not acknowledged, never will be.

    An ordinary close leaves that to the kernel, which sends it when the path is whole
    again: a write that was given up would land in memory that is another object's by
    then.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    sock.close()


class ConnectionPool:
    """Idle sockets by (segment id, address), least recently used go first.

    The id is part of the key: a store that was restarted behind the same address is
    another store, and nothing of the old one may be carried over (Mooncake#736).
    """

    def __init__(self, *, per_rail: int, total: int) -> None:
        self._per_rail = per_rail
        self._total = total
        self._lock = threading.Lock()
        self._idle: OrderedDict[RailKey, list[socket.socket]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, segment: int, address: str) -> socket.socket | None:
        """A connection that was alive a moment ago, or None."""
        while True:
            with self._lock:
                sockets = self._idle.get((segment, address))
                if not sockets:
                    return None
                sock = sockets.pop()
                self._count -= 1
                if not sockets:
                    del self._idle[segment, address]
            if _is_quiet(sock):
                return sock
            sock.close()

    def give(self, segment: int, address: str, sock: socket.socket) -> None:
        """Keeps a connection without a request in flight; may close the oldest."""
        with self._lock:
            sockets = self._idle.setdefault((segment, address), [])
            sockets.append(sock)
            self._count += 1
            self._idle.move_to_end((segment, address))
            surplus = sockets[: -self._per_rail] if self._per_rail else sockets[:]
            del sockets[: len(surplus)]
            self._count -= len(surplus)
            surplus += self._shrink()
        for old in surplus:
            old.close()

    def discard(self, segment: int, address: str) -> None:
        """Closes the idle connections of a rail: one of them turned out to be dead.

        A path that swallows packets leaves all of them half-open, and each would cost
        a call its deadline (Mooncake#2793).
        """
        with self._lock:
            sockets = self._idle.pop((segment, address), [])
            self._count -= len(sockets)
        for sock in sockets:
            sock.close()

    def close(self) -> None:
        """Closes all; the pool may be used again."""
        with self._lock:
            idle, self._idle, self._count = self._idle, OrderedDict(), 0
        for sockets in idle.values():
            for sock in sockets:
                sock.close()

    def _shrink(self) -> list[socket.socket]:
        """Takes out what is beyond the total; the caller holds the lock."""
        out: list[socket.socket] = []
        while self._idle and self._count > self._total:
            key, sockets = next(iter(self._idle.items()))
            out.append(sockets.pop(0))
            self._count -= 1
            if not sockets:
                del self._idle[key]
        return out


def _is_quiet(sock: socket.socket) -> bool:
    """True when the peer neither closed nor sent anything unasked."""
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
