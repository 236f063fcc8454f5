"""The data plane of a store: its segment's bytes, one listener per rail.

A thread per connection with blocking calls that move a whole request at once: the
interpreter is left before the bytes move and needed again only when they have. (A
selector in one thread was slower, and a slow reader would hold up the others.) Threads
are bounded by the connections allowed; more are refused at the door.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from refimpl.core.codes import Code
from refimpl.security.handshake import (
    HELLO_MAGIC,
    PROOF_BYTES,
    StoreHandshake,
    greeting_without_secret,
)
from refimpl.transfer.frames import (
    EXTENT,
    HEAD_BYTES,
    MAX_FRAME_BYTES,
    FrameError,
    FrameOp,
    HandshakeAsked,
    RequestHead,
    decode_extents,
    decode_request,
    encode_reply,
    extent_statuses,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from refimpl.failpoints import Failpoints
    from refimpl.security.secret import Secret

_IOV: Final = 1024
_SCRATCH_BYTES: Final = 256 << 10
_PATIENCE_S: Final = 5.0
"""With a caller that does not prove itself; the machine's patience, never scaled."""
_LAST_READS: Final = 1024
"""Of a connection that was turned away; they take a few frames on their way."""
_ACCEPT_PAUSE_S: Final = 0.05
"""After accept failed for want of descriptors."""


@dataclass(slots=True)
class RailCounters:
    """What one listener did since the start."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    errors: int = 0
    not_authenticated: int = 0
    """Connections that did not prove to know the secret."""
    bytes_in: int = 0
    bytes_out: int = 0


class DataServer:
    """Serves one segment on all its rails, from `start` until `close`.

    Args:
        segment: its id; requests that name another are refused.
        listeners: by rail name; the server closes them.
        failpoints: `store.read`, `store.write`, `store.corrupt`.
        max_connections: at once, over all rails.
        idle_s: a connection that neither asks nor takes for so long is closed.
        secret: what every caller proves before it is served, and is proved to it.
    """

    def __init__(
        self,
        segment: int,
        listeners: Mapping[str, socket.socket],
        failpoints: Failpoints,
        *,
        max_connections: int = 512,
        idle_s: float = 300.0,
        secret: Secret | None = None,
    ) -> None:
        self._view = memoryview(b"")
        self._segment = segment
        self._failpoints = failpoints
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._secret = secret
        self._lock = threading.Condition()
        self._stopping = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._in_flight = 0
        self._counters = {name: RailCounters() for name in listeners}
        self._listeners = dict(listeners)
        self._accepting: list[threading.Thread] = []

    @property
    def addresses(self) -> dict[str, str]:
        """Where each rail really listens."""
        return {
            name: "{}:{}".format(*listener.getsockname()[:2])
            for name, listener in self._listeners.items()
        }

    @property
    def in_flight(self) -> int:
        """Requests between their head and their last byte."""
        return self._in_flight

    def start(self, view: memoryview) -> None:
        """Begins to accept; `view` is the segment."""
        self._view = view
        for name, listener in self._listeners.items():
            thread = threading.Thread(
                target=self._accept,
                args=(name, listener),
                name=f"accept-{name}",
                daemon=True,
            )
            thread.start()
            self._accepting.append(thread)

    def renew(self, segment: int, timeout_s: float) -> bool:
        """Serves under another id from now on; connections of the old one end.

        Answers once no request of the old id is in flight any more, so that none can
        touch what will be written under the new one; False when one would not end.
        """
        self._segment = segment
        self._hang_up()
        return self.wait_idle(timeout_s)

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no request is in flight."""
        with self._lock:
            return self._lock.wait_for(lambda: self._in_flight == 0, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stops listening, ends connections, joins the threads."""
        self._stopping.set()
        for listener in self._listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._hang_up()
        with self._lock:
            threads = [*self._accepting, *self._threads]
        for thread in threads:
            thread.join(timeout_s)
        self._view = memoryview(b"")

    def snapshot(self) -> dict[str, Any]:
        """Counters for the admin page."""
        with self._lock:
            rails = {
                name: {field: getattr(found, field) for field in found.__slots__}
                for name, found in self._counters.items()
            }
            return {
                "connections": len(self._sockets),
                "in_flight": self._in_flight,
                "rails": rails,
            }

    def _accept(self, rail: str, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _peer = listener.accept()
            except OSError:
                self._stopping.wait(_ACCEPT_PAUSE_S)
                continue
            if not self._admit(rail, sock):
                sock.close()

    def _admit(self, rail: str, sock: socket.socket) -> bool:
        """Starts the thread of a connection, if there may be one more."""
        counters = self._counters[rail]
        with self._lock:
            if self._stopping.is_set() or len(self._sockets) >= self._max_connections:
                counters.refused += 1
                return False
            counters.connections += 1
            thread = threading.Thread(
                target=self._serve, args=(counters, sock), name=f"{rail}", daemon=True
            )
            self._sockets.add(sock)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The host has no thread left; the rail must outlive that.
            with self._lock:
                counters.refused += 1
                self._sockets.discard(sock)
                self._threads.discard(thread)
            return False
        return True

    def _hang_up(self) -> None:
        with self._lock:
            for sock in self._sockets:
                # The thread that owns it closes it; the peer may have gone already.
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _serve(self, counters: RailCounters, sock: socket.socket) -> None:
        """One connection until its end."""
        connection = _Connection(sock)
        try:
            if self._secret is not None and not self._admits(counters, connection):
                return
            _configure(sock, self._idle_s)
            while self._serve_one(counters, connection):
                pass
        except HandshakeAsked:
            # We have no secret to prove: the caller is told, not left waiting.
            with suppress(OSError):
                connection.send([greeting_without_secret(self._segment)])
        except (OSError, FrameError):
            # Broken, idle or speaking another language: the peer will notice.
            with self._lock:
                counters.errors += 1
        finally:
            with self._lock:
                self._sockets.discard(sock)
                self._threads.discard(threading.current_thread())
            sock.close()

    def _admits(self, counters: RailCounters, connection: _Connection) -> bool:
        """The handshake; who does not prove to know the secret is counted."""
        assert self._secret is not None
        try:
            _configure(connection.sock, min(self._idle_s, _PATIENCE_S))
            code = self._shake_hands(self._secret, connection)
        except (OSError, FrameError):
            code = Code.NOT_AUTHENTICATED
        if code == Code.NOT_AUTHENTICATED:
            with self._lock:
                counters.not_authenticated += 1
        return code == Code.OK

    def _shake_hands(self, secret: Secret, connection: _Connection) -> Code:
        head = connection.receive_head()
        if head is None:
            return Code.TRANSFER_FAIL  # it said nothing: a look whether we listen
        if bytes(head[:4]) != HELLO_MAGIC:
            self._turn_away(connection, decode_request(head))
            return Code.NOT_AUTHENTICATED
        handshake = StoreHandshake(secret, head, self._segment)
        connection.send([handshake.greeting])
        if handshake.code != Code.OK:
            return handshake.code  # told and proved: nothing is left to say
        proof = memoryview(bytearray(PROOF_BYTES))
        connection.receive([proof])
        return Code.OK if handshake.admits(proof) else Code.NOT_AUTHENTICATED

    def _turn_away(self, connection: _Connection, request: RequestHead) -> None:
        """A caller without a secret gets its answer: a bare end looks like a fault."""
        connection.receive_extents(request)
        connection.skip(request.payload_bytes)
        connection.send([self._reply(request, code=Code.NOT_AUTHENTICATED)])
        connection.linger()

    def _serve_one(self, counters: RailCounters, connection: _Connection) -> bool:
        """One request; False at an orderly end of the connection."""
        request = connection.receive_request()
        if request is None:
            return False
        with self._lock:
            self._in_flight += 1
        try:
            offsets, lengths = connection.receive_extents(request)
            if request.op is FrameOp.READ:
                code = self._read(connection, request, offsets, lengths)
            else:
                code = self._write(connection, request, offsets, lengths)
        finally:
            with self._lock:
                self._in_flight -= 1
                counters.requests += 1
                counters.bytes_in += connection.bytes_in
                counters.bytes_out += connection.bytes_out
                connection.bytes_in = connection.bytes_out = 0
                if self._in_flight == 0:
                    self._lock.notify_all()
        with self._lock:
            counters.errors += code != Code.OK
        return True

    def _read(
        self,
        connection: _Connection,
        request: RequestHead,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint32],
    ) -> int:
        code = self._refusal("store.read", request)
        if code == Code.OK and int(lengths.sum(dtype=np.uint64)) > MAX_FRAME_BYTES:
            code = Code.INVALID_PARAMS
        if code != Code.OK:
            connection.send([self._reply(request, code=code)])
            return code
        statuses = extent_statuses(offsets, lengths, len(self._view))
        if statuses is not None:
            good = statuses == Code.OK
            offsets, lengths = offsets[good], lengths[good]
        views = self._runs(offsets, lengths)
        if self._failpoints.hit("store.corrupt") is not None and views:
            views[0] = _with_flipped_bit(views[0])
        total = sum(map(len, views))
        head = self._reply(request, payload_bytes=total, statuses=statuses)
        connection.send([head, *views])
        return Code.OK if statuses is None else Code.INVALID_PARAMS

    def _write(
        self,
        connection: _Connection,
        request: RequestHead,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint32],
    ) -> int:
        if request.payload_bytes != int(lengths.sum(dtype=np.uint64)):
            raise FrameError("payload and extents of a write disagree")
        code = self._refusal("store.write", request)
        if code != Code.OK:
            connection.skip(request.payload_bytes)
            connection.send([self._reply(request, code=code)])
            return code
        statuses = extent_statuses(offsets, lengths, len(self._view))
        if statuses is None:
            connection.receive(self._runs(offsets, lengths))
        else:
            for offset, length, status in zip(
                offsets.tolist(), lengths.tolist(), statuses.tolist(), strict=True
            ):
                if status == Code.OK:
                    connection.receive([self._view[offset : offset + length]])
                else:
                    connection.skip(length)
        connection.send([self._reply(request, statuses=statuses)])
        return Code.OK if statuses is None else Code.INVALID_PARAMS

    def _refusal(self, failpoint: str, request: RequestHead) -> int:
        """Why a request is not served, or OK."""
        code = self._failpoints.hit(failpoint)
        if code is not None:
            # A bare `on` brings no code of its own.
            return code if code < 0 else Code.TRANSFER_FAIL
        # After the failpoint: it may have waited while the segment was renewed.
        return Code.OK if request.segment == self._segment else Code.SEGMENT_NOT_FOUND

    def _runs(
        self, offsets: NDArray[np.uint64], lengths: NDArray[np.uint32]
    ) -> list[memoryview]:
        """Views of the segment, neighbours in one."""
        if not len(offsets):
            return []
        ends = offsets + lengths
        gaps = np.flatnonzero(offsets[1:] != ends[:-1])
        starts, stops = offsets.tolist(), ends.tolist()
        view = self._view
        if len(gaps) + 1 < len(starts):
            firsts, lasts = [0, *(gaps + 1).tolist()], [*gaps.tolist(), -1]
            starts, stops = [starts[i] for i in firsts], [stops[i] for i in lasts]
        return [view[a:b] for a, b in zip(starts, stops, strict=True)]

    def _reply(
        self,
        request: RequestHead,
        *,
        code: int = Code.OK,
        payload_bytes: int = 0,
        statuses: NDArray[np.int16] | None = None,
    ) -> bytes:
        return encode_reply(
            request.op,
            request.sequence,
            self._segment,
            code=code,
            payload_bytes=payload_bytes,
            statuses=statuses,
        )


class _Connection:
    """Exact blocking transfers on one socket, and what they moved."""

    __slots__ = ("_head", "_scratch", "bytes_in", "bytes_out", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._scratch: memoryview | None = None
        self.bytes_in = 0
        self.bytes_out = 0

    def receive_request(self) -> RequestHead | None:
        """The next head; None when the peer ended between requests."""
        head = self.receive_head()
        return None if head is None else decode_request(head)

    def receive_head(self) -> memoryview | None:
        """The bytes of the next head, likewise."""
        try:
            got = self.sock.recv_into(self._head, 0, socket.MSG_WAITALL)
        except (BlockingIOError, ConnectionResetError):
            return None  # idle for too long, or gone: neither is an error
        self.bytes_in += got
        if got == 0:
            return None
        if got < HEAD_BYTES:
            self.receive([self._head[got:]])
        return self._head

    def receive_extents(
        self, request: RequestHead
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Offsets and lengths of a request."""
        data = memoryview(bytearray(request.count * EXTENT.itemsize))
        self.receive([data])
        return decode_extents(data)

    def receive(self, views: list[memoryview]) -> None:
        """Fills the views."""
        at = 0
        while at < len(views):
            if at == len(views) - 1:
                got = self.sock.recv_into(views[at], 0, socket.MSG_WAITALL)
            else:
                some = views[at : at + _IOV]
                got = self.sock.recvmsg_into(some, 0, socket.MSG_WAITALL)[0]
            if got == 0:
                raise ConnectionError("closed by peer within a request")
            self.bytes_in += got
            at = _advance(views, at, got)

    def skip(self, count: int) -> None:
        """Takes bytes that nobody wants."""
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while count:
            part = self._scratch[: min(count, _SCRATCH_BYTES)]
            self.receive([part])
            count -= len(part)

    def linger(self) -> None:
        """Ends our half, and takes what is on its way: else a reset eats our answer."""
        self.sock.shutdown(socket.SHUT_WR)
        scratch = bytearray(_SCRATCH_BYTES)
        for _ in range(_LAST_READS):
            if not self.sock.recv_into(scratch):
                return

    def send(self, views: list[Any]) -> None:
        """Sends the views, straight from where they are."""
        views = [memoryview(view) for view in views]
        at = 0
        while at < len(views):
            sent = self.sock.sendmsg(views[at : at + _IOV])
            self.bytes_out += sent
            at = _advance(views, at, sent)


def _advance(views: list[memoryview], at: int, count: int) -> int:
    """Takes `count` bytes off the views from `at` on; answers the new `at`."""
    while count:
        view = views[at]
        if count < len(view):
            views[at] = view[count:]
            break
        count -= len(view)
        at += 1
    return at


def _configure(sock: socket.socket, idle_s: float) -> None:
    """Kernel timeouts instead of Python's: those would cost a poll() each call."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("@ll", int(idle_s), int(idle_s % 1 * 1e6) or 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _with_flipped_bit(view: memoryview) -> memoryview:
    copy = bytearray(view)
    copy[len(copy) // 2] ^= 0x10
    return memoryview(copy)
