"""The master's heartbeat door: a TCP port and a thread of its own.

A beat must be answered while every worker of the gRPC service is busy, sleeping or
stuck (Mooncake#3937, #1753): this thread takes no lock of the data path. It reads one
published set (who is known) and writes one dict (who was heard when); both are single
bytecode operations. The maintenance thread drains that dict into the pool.

Wire, little-endian. Request `<8sQQ`: magic, client, sequence. Answer `<8sQBQ`: magic,
client, status (0 known, 1 NEED_REMOUNT), view. Anything else closes the connection.

Under mutual TLS beats are signed, with the key that the client mounted with (it came
over TLS). The door greets each connection with `<8s16s>`: `MQHEART2`, a fresh nonce.
Request `<8sQQ32s>` and answer `<8sQBQ32s>` are those above with `MQHEART2` and, last,
an HMAC-SHA256 over the nonce and all their numbers. Sequences rise in a connection, so
neither a recorded beat nor a recorded answer is good elsewhere or twice. A client that
is not known has no key here: its NEED_REMOUNT is not signed. A store asks the master
itself, over TLS, before it believes one.
"""

from __future__ import annotations

import errno
import hmac
import resource
import secrets
import selectors
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = b"MQHEART1"
REQUEST: Final = struct.Struct("<8sQQ")
REPLY: Final = struct.Struct("<8sQBQ")
SIGNED_MAGIC: Final = b"MQHEART2"
GREETING: Final = struct.Struct("<8s16s")
SIGNED_REQUEST: Final = struct.Struct("<8sQQ32s")
SIGNED_REPLY: Final = struct.Struct("<8sQBQ32s")
KEY_BYTES: Final = 32
STATUS_OK: Final = 0
STATUS_NEED_REMOUNT: Final = 1

_NO_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NO_MAC: Final = bytes(32)
_READ_BYTES = 4096
_POLL_S = 0.2
"""How often silent connections are looked for; the machine's patience, never scaled."""


class Beats:
    """Who is known and who was heard when, shared without a lock.

    Each method is one atomic dict or attribute operation of CPython, so neither side
    can make the other wait. Bounded: only known clients are recorded.
    """

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()
        self._heard: dict[int, float] = {}
        self._drained: dict[int, float] = {}
        self._keys: dict[int, bytes] = {}
        self.answered = 0
        self.refused = 0
        self.forged = 0
        """Signed beats whose signature or sequence was wrong."""

    def admit(self, client: int, key: bytes) -> None:
        """Keeps the key of a client that is about to be published as known."""
        if key:
            self._keys[client] = key

    def key_of(self, client: int) -> bytes | None:
        """What the client's beats are signed with; None when it is not known."""
        return self._keys.get(client)

    def publish(self, known: frozenset[int]) -> None:
        """Makes `known` the clients whose beats are answered with OK."""
        self._known = known
        for client in self._keys.keys() - known:
            del self._keys[client]

    def beat(self, client: int, now: float) -> bool:
        """Records a beat; False tells the client to mount again."""
        if client not in self._known:
            self.refused += 1
            return False
        self._heard[client] = now
        self.answered += 1
        return True

    def drain(self) -> dict[int, float]:
        """Beats heard since the last drain, the latest of each client.

        For one caller only. Entries stay in place, because taking one out could lose
        a beat that arrives in the same instant; they leave when the client is unknown.
        """
        heard = self._heard.copy()
        fresh = {c: at for c, at in heard.items() if self._drained.get(c) != at}
        for client in heard.keys() - self._known:
            self._heard.pop(client, None)
        self._drained = heard
        return fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """Bounds of the heartbeat door."""

    max_connections: int = 4096
    idle_s: float = 30.0
    """A connection without a whole beat for this long is closed."""


@dataclass(slots=True)
class _Peer:
    sock: socket.socket
    heard_at: float
    pending: bytes = b""
    nonce: bytes = b""
    sequence: int = 0


class HeartbeatServer:
    """Answers beats on `listener` until `stop`.

    Args:
        listener: bound and listening TCP socket; owned from here on.
        beats: where beats are recorded.
        view: number of this master's term, in every answer.
        clock: seconds, like `time.monotonic`.
        settings: bounds.
        signed: whether beats are signed; others are refused then.
    """

    def __init__(
        self,
        listener: socket.socket,
        beats: Beats,
        *,
        view: int,
        clock: Callable[[], float],
        settings: HeartbeatSettings | None = None,
        signed: bool = False,
    ) -> None:
        self._listener = listener
        self._beats = beats
        self._view = view
        self._clock = clock
        self._signed = signed
        self._magic = SIGNED_MAGIC if signed else MAGIC
        self._request = SIGNED_REQUEST if signed else REQUEST
        self._settings = settings or HeartbeatSettings()
        self._most = min(self._settings.max_connections, _descriptors() // 2)
        self._peers: dict[int, _Peer] = {}
        self._is_deaf = False
        """No descriptor was left for a caller: the listener waits for the next reap."""
        self._stopping = False
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def connections(self) -> int:
        """Open connections now."""
        return len(self._peers)

    def start(self) -> None:
        """Starts the thread."""
        self._listener.setblocking(False)
        self._wake.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Closes every connection and ends the thread; idempotent."""
        self._stopping = True
        if self._thread.is_alive():
            self._waker.send(b"\0")
            self._thread.join(timeout=2.0)
        for sock in (self._listener, self._wake, self._waker):
            sock.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ, self._accept)
            selector.register(self._wake, selectors.EVENT_READ, None)
            reap_at = self._clock() + _POLL_S
            while not self._stopping:
                for key, _ in selector.select(_POLL_S):
                    self._serve(selector, key)
                now = self._clock()
                if now >= reap_at:
                    self._reap(selector, now)
                    self._listen_again(selector)
                    reap_at = now + _POLL_S
            for peer in list(self._peers.values()):
                self._close(selector, peer)

    def _serve(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey
    ) -> None:
        if isinstance(key.data, _Peer):
            if not self._answer(key.data):
                self._close(selector, key.data)
        elif key.data is not None:
            self._accept(selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Takes one waiting connection; one too many is closed at once."""
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # Else the caller is gone again. One that still waits would wake the
            # selector without end.
            if error.errno in _NO_ROOM:
                self._is_deaf = True
                selector.unregister(self._listener)
            return
        if len(self._peers) >= self._most:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock=sock, heard_at=self._clock())
        if self._signed:
            peer.nonce = secrets.token_bytes(16)
            _send_all(sock, GREETING.pack(SIGNED_MAGIC, peer.nonce))
        self._peers[sock.fileno()] = peer
        selector.register(sock, selectors.EVENT_READ, peer)

    def _listen_again(self, selector: selectors.BaseSelector) -> None:
        if self._is_deaf:
            self._is_deaf = False
            selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _answer(self, peer: _Peer) -> bool:
        """Answers the whole beats that have arrived; False closes the connection."""
        try:
            data = peer.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not data:
            return False
        data = peer.pending + data
        whole = len(data) - len(data) % self._request.size
        peer.pending = data[whole:]
        answer = self._signed_replies if self._signed else self._replies
        replies = answer(peer, data[:whole])
        if replies is None or not self._magic.startswith(peer.pending[:8]):
            return False
        if replies:
            peer.heard_at = self._clock()
        return _send_all(peer.sock, replies)

    def _replies(self, _peer: _Peer, beats: bytes) -> bytes | None:
        """Answers to whole beats, or None when one is malformed."""
        now = self._clock()
        replies = []
        for magic, client, _sequence in REQUEST.iter_unpack(beats):
            if magic != MAGIC:
                return None
            known = self._beats.beat(client, now)
            status = STATUS_OK if known else STATUS_NEED_REMOUNT
            replies.append(REPLY.pack(MAGIC, client, status, self._view))
        return b"".join(replies)

    def _signed_replies(self, peer: _Peer, beats: bytes) -> bytes | None:
        """The same of signed beats; None also for a signature that is not good."""
        now = self._clock()
        replies = []
        for magic, client, sequence, mac in SIGNED_REQUEST.iter_unpack(beats):
            if magic != SIGNED_MAGIC:
                return None
            key = self._beats.key_of(client)
            if key is None:
                self._beats.refused += 1
                status, signature = STATUS_NEED_REMOUNT, _NO_MAC
            elif not _is_genuine(peer, key, client, sequence, mac):
                self._beats.forged += 1
                return None
            else:
                peer.sequence = sequence
                known = self._beats.beat(client, now)
                status = STATUS_OK if known else STATUS_NEED_REMOUNT
                text = reply_text(peer.nonce, client, sequence, status, self._view)
                signature = hmac.digest(key, text, "sha256")
            replies.append(
                SIGNED_REPLY.pack(SIGNED_MAGIC, client, status, self._view, signature)
            )
        return b"".join(replies)

    def _reap(self, selector: selectors.BaseSelector, now: float) -> None:
        limit = now - self._settings.idle_s
        for peer in [p for p in self._peers.values() if p.heard_at < limit]:
            self._close(selector, peer)

    def _close(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        self._peers.pop(peer.sock.fileno(), None)
        selector.unregister(peer.sock)
        peer.sock.close()


def request_text(nonce: bytes, client: int, sequence: int) -> bytes:
    """What the signature of a beat is over."""
    return struct.pack("<8s16sQQ", b"beat", nonce, client, sequence)


def reply_text(
    nonce: bytes, client: int, sequence: int, status: int, view: int
) -> bytes:
    """What the signature of an answer is over."""
    return struct.pack("<8s16sQQBQ", b"answer", nonce, client, sequence, status, view)


def _is_genuine(
    peer: _Peer, key: bytes, client: int, sequence: int, mac: bytes
) -> bool:
    text = request_text(peer.nonce, client, sequence)
    signature = hmac.digest(key, text, "sha256")
    return hmac.compare_digest(signature, mac) and sequence > peer.sequence


def _descriptors() -> int:
    """How many files this process may open; heartbeats take at most half of them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _send_all(sock: socket.socket, data: bytes) -> bool:
    """Sends without waiting; False for a peer that does not read its answers.

    A socket buffer holds thousands of answers, so a full one is never a healthy peer.
    """
    try:
        return not data or sock.send(data) == len(data)
    except OSError:
        return False
