"""One connection at work for one call: requests out, replies in, nothing copied.

A lane never blocks. It tells its owner of each finished request; whatever breaks it is
an OSError or a FrameError out of `step`, and the requests that it still holds are in
`held`.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np

from refimpl.core.codes import Code
from refimpl.security.handshake import GREETING, CallerHandshake, HandshakeRefused
from refimpl.transfer.frames import (
    HEAD_BYTES,
    FrameError,
    FrameOp,
    ReplyHead,
    decode_reply,
    encode_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refimpl.security.secret import Secret
    from refimpl.transfer.slices import Slice

_NOT_AUTHENTICATED: Final = int(Code.NOT_AUTHENTICATED)
_IOV: Final = 256
"""Views a system call takes; the kernel's limit is 1,024 and listing them costs."""
_WAKE_BYTES: Final = 256 << 10
"""A reader of a large payload sleeps until so much is there."""


class Lane:
    """A socket with requests in flight.

    Args:
        sock: non-blocking, connected or on its way.
        op: what all requests of this lane do.
        segment: id that the requests name.
        finished: called with a slice and its codes, one a row, or one code for all.
        landed: called with rows (or pieces) of a read whose bytes are in place, each
            once, before its request is finished.
        secret: what a new connection proves before its first request; None for none.
    """

    __slots__ = (
        "_at",
        "_codes",
        "_expect",
        "_finished",
        "_greeting",
        "_handshake",
        "_head",
        "_landed",
        "_landing",
        "_left",
        "_now",
        "_op",
        "_out",
        "_out_at",
        "_parked",
        "_reply",
        "_segment",
        "_sequence",
        "_small_at",
        "_stage",
        "_statuses",
        "_views",
        "_wake_at",
        "address",
        "bytes_in",
        "bytes_out",
        "connected",
        "first_byte_at",
        "held",
        "last_progress",
        "opened_at",
        "polls_write",
        "rail",
        "reused",
        "sock",
        "wants_write",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        op: FrameOp,
        segment: int,
        rail: str,
        address: str,
        reused: bool,
        now: float,
        finished: Callable[[Lane, Slice, int | list[int]], None],
        landed: Callable[[Lane, Sequence[int]], None] | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.sock = sock
        self.rail = rail
        self.address = address
        self.reused = reused
        self.connected = reused
        self.held: deque[Slice] = deque()
        self.last_progress = now
        self.opened_at = now
        self.first_byte_at = math.inf
        self._now = now
        self.wants_write = not reused
        """True while connecting, and while bytes wait for room in the socket."""
        self.polls_write = False
        """What the owner last told the kernel of it."""
        self.bytes_in = 0
        self.bytes_out = 0
        self._op = op
        self._segment = segment
        self._finished = finished
        self._landed = landed
        self._landing: list[int] = []
        self._sequence = 0
        self._expect = 0
        self._out: list[memoryview] = []
        self._out_at = 0
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._statuses = self._head
        self._small_at = 0
        self._reply: ReplyHead | None = None
        self._codes: int | list[int] = Code.OK
        self._views: list[memoryview] = []
        self._at = 0
        self._left = 0
        self._wake_at = 1
        self._stage: Callable[[], bool] = self._head_stage
        self._handshake: CallerHandshake | None = None
        self._greeting = self._head
        self._parked = self._out
        """Where requests wait: what is sent next, or behind a handshake."""
        if secret is not None and not reused:
            self._begin_handshake(CallerHandshake(secret, segment))

    def dispatch(self, piece: Slice, now: float) -> None:
        """Queues a request and sends what the socket takes."""
        if not self.held:
            self.last_progress = now
        piece.attempts += 1
        self.held.append(piece)
        head = encode_request(
            self._op, self._sequence, self._segment, piece.offsets, piece.lengths
        )
        self._sequence += 1
        self._parked.append(memoryview(head))
        if self._op is FrameOp.WRITE:
            self._parked.extend(piece.views)
        if self.connected:
            self._send(now)

    def step(self, readable: int, writable: int, now: float) -> None:
        """Moves bytes while the socket lets.

        Raises:
            OSError: the connection broke, or never came about.
            FrameError: the peer does not speak our language.
            HandshakeRefused: the peer is not, or cannot prove to be, who is wanted.
        """
        if writable:
            if not self.connected:
                self._finish_connect()
            self._send(now)
        if readable and self.connected:
            self._receive(now)

    def _finish_connect(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code), self.address)
        self.connected = True

    def _begin_handshake(self, handshake: CallerHandshake) -> None:
        """Sends a hello first; requests wait for the answer."""
        self._handshake = handshake
        self._greeting = memoryview(bytearray(GREETING.size))
        self._parked = []
        self._out.append(memoryview(handshake.hello))
        self._stage = self._greeting_stage

    def _greeting_stage(self) -> bool:
        """The store's proof is coming in; ours and the requests go out behind it."""
        self._small_at += self._counted(
            self.sock.recv_into(self._greeting[self._small_at :])
        )
        if self._small_at < len(self._greeting):
            return False
        assert self._handshake is not None
        proof = self._handshake.answer(self._greeting)
        self._handshake = None
        self._small_at = 0
        self._stage = self._head_stage
        self._out = [memoryview(proof), *self._parked]
        self._parked = self._out
        self._send(self._now)
        return False

    @property
    def is_clean(self) -> bool:
        """Nothing in flight: the connection may be used again."""
        is_quiet = not self.held and not self._out and self._handshake is None
        return self.connected and is_quiet

    def release(self) -> list[Slice]:
        """Lets go of all buffers and answers the requests that were in flight.

        The socket stays open: whoever owns the lane closes it or keeps it.
        """
        held = list(self.held)
        self.held.clear()
        self._out = self._parked = []
        self._views = []
        self._stage = _released
        return held

    def _send(self, now: float) -> None:
        out, at = self._out, self._out_at
        try:
            while at < len(out):
                sent = self.sock.sendmsg(out[at : at + _IOV])
                self.bytes_out += sent
                self.last_progress = now
                at = _advance(out, at, sent)
        except BlockingIOError:
            self._out_at = at
            self.wants_write = True
            return
        out.clear()
        self._out_at = 0
        self.wants_write = False

    def _receive(self, now: float) -> None:
        self._now = now
        try:
            while self._stage():
                if self._stage == self._head_stage and not self.held:
                    break
        except BlockingIOError:
            pass

    def _head_stage(self) -> bool:
        """Each stage is one system call; False when the socket is drained for now."""
        self._small_at += self._counted(
            self.sock.recv_into(self._head[self._small_at :])
        )
        if self._small_at < HEAD_BYTES:
            return False
        self._small_at = 0
        reply = decode_reply(self._head)
        if not self.held or reply.sequence != self._expect or reply.op is not self._op:
            raise FrameError(f"reply {reply.sequence} to nothing that was asked")
        if reply.code == _NOT_AUTHENTICATED:
            what = "the store asks for a secret that we do not have"
            raise HandshakeRefused(Code.NOT_AUTHENTICATED, what)
        self._reply = reply
        if reply.has_statuses:
            self._statuses = memoryview(bytearray(2 * len(self.held[0].rows)))
            self._stage = self._statuses_stage
            return True
        is_good_read = self._op is FrameOp.READ and reply.code == Code.OK
        piece = self.held[0]
        views, rows = (piece.views, piece.rows) if is_good_read else ([], [])
        self._expect_payload(views, rows, reply.code)
        return True

    def _statuses_stage(self) -> bool:
        rest = self._statuses[self._small_at :]
        self._small_at += self._counted(self.sock.recv_into(rest))
        if self._small_at < len(self._statuses):
            return False
        self._small_at = 0
        codes = np.frombuffer(self._statuses, "<i2").tolist()
        piece = self.held[0]
        good = [i for i, code in enumerate(codes) if code == Code.OK]
        if self._op is not FrameOp.READ:
            good = []
        rows = [piece.rows[i] for i in good]
        self._expect_payload([piece.views[i] for i in good], rows, codes)
        return True

    def _payload_stage(self) -> bool:
        views, at = self._views, self._at
        if at == len(views) - 1:
            got = self.sock.recv_into(views[at])
        else:
            got = self.sock.recvmsg_into(views[at : at + _IOV])[0]
        self._counted(got)
        whole = got == self._left
        self._at = len(views) if whole else _advance(views, at, got)
        if self._landed is not None and self._at > at:
            self._landed(self, self._landing[at : self._at])
        if self._at < len(views):
            self._left -= got
            if self._left < self._wake_at:
                self._wake_when(self._left)
            return False
        self._finish()
        return True

    def _expect_payload(
        self, views: Sequence[memoryview], rows: list[int], codes: int | list[int]
    ) -> None:
        """Sets where the payload goes; a reply without any is finished at once."""
        expected = sum(map(len, views))
        assert self._reply is not None
        got = self._reply.payload_bytes
        if got != expected:
            raise FrameError(f"reply has {got} bytes, {expected} were asked")
        self._codes = codes
        if not expected:
            self._finish()
            return
        self._views = list(views)
        self._landing = rows
        self._at = 0
        self._left = expected
        if expected > _WAKE_BYTES:
            self._wake_when(_WAKE_BYTES)
        self._stage = self._payload_stage

    def _finish(self) -> None:
        """The oldest request is answered."""
        self._stage = self._head_stage
        self._views = []
        self._expect += 1
        if self._wake_at > 1:
            self._wake_when(1)
        self._finished(self, self.held.popleft(), self._codes)

    def _wake_when(self, count: int) -> None:
        """Asks to be woken when so many bytes are there, not for each packet."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        self._wake_at = count

    def _counted(self, got: int) -> int:
        if got == 0:
            raise ConnectionResetError(errno.ECONNRESET, "closed by peer", self.address)
        if not self.bytes_in:
            self.first_byte_at = self._now
        self.bytes_in += got
        self.last_progress = self._now
        return got


def _released() -> bool:
    """The stage of a lane that is of no more use (and breaks its reference cycle)."""
    return False


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
