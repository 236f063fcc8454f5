"""The heartbeat of a store: a process of its own, standard library only.

A thread would share the interpreter with the data plane and starve under load
(Ascend/TransferQueue#99), and it would beat on while the store is stuck. This process
beats only while its parent is runnable: one that is stopped, dead or replaced has no
pulse. The kernel kills it together with the parent.

Run as `python -S -E heartbeat.py --parent PID --address HOST:PORT --client N
--interval-s S --timeout-s S`. Every change goes to stdout, a line each: `known`,
`remount` (the master does not know us: mount again), `lost` (no answer). A line on
stdin is the key, in hex, that beats are signed with, and without it they are not; the
wire stands in `refimpl/master/heartbeat.py`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time

MAGIC = b"MQHEART1"
REQUEST = struct.Struct("<8sQQ")
REPLY = struct.Struct("<8sQBQ")
SIGNED_MAGIC = b"MQHEART2"
GREETING = struct.Struct("<8s16s")
SIGNED_REQUEST = struct.Struct("<8sQQ32s")
SIGNED_REPLY = struct.Struct("<8sQBQ32s")
_PR_SET_PDEATHSIG = 1
_STOPPED = frozenset("TtZX")


class Heart:
    """One beat at a time over a connection that is renewed after any trouble."""

    def __init__(
        self,
        address: tuple[str, int],
        client: int,
        timeout_s: float,
        key: bytes = b"",
    ) -> None:
        self._key = key
        self._nonce = b""
        self._address = address
        self._client = client
        self._timeout_s = timeout_s
        self._sequence = 0
        self._sock: socket.socket | None = None

    def beat(self) -> str:
        """`known`, `remount` or `lost`."""
        self._sequence += 1
        try:
            if self._sock is None:
                self._sock = socket.create_connection(self._address, self._timeout_s)
                self._sock.settimeout(self._timeout_s)
                self._nonce = self._greeted(self._sock) if self._key else b""
            said = self._signed(self._sock) if self._key else self._plain(self._sock)
        except (OSError, struct.error):
            said = "lost"
        if said == "lost":
            self.close()
        return said

    def _plain(self, sock: socket.socket) -> str:
        sock.sendall(REQUEST.pack(MAGIC, self._client, self._sequence))
        magic, client, status, _view = REPLY.unpack(self._receive(sock))
        if magic != MAGIC or client != self._client:
            return "lost"
        return "remount" if status else "known"

    def _greeted(self, sock: socket.socket) -> bytes:
        """The nonce of this connection."""
        magic, nonce = GREETING.unpack(self._receive(sock, GREETING.size))
        if magic != SIGNED_MAGIC:
            raise ConnectionAbortedError("no door for signed beats")
        return bytes(nonce)

    def _signed(self, sock: socket.socket) -> str:
        """A beat and its answer; a "known" counts only with a good signature."""
        import hmac  # only here: it costs more than the rest of this process

        head = struct.pack("<QQ", self._client, self._sequence)
        mac = hmac.digest(self._key, b"beat\0\0\0\0" + self._nonce + head, "sha256")
        sock.sendall(
            SIGNED_REQUEST.pack(SIGNED_MAGIC, self._client, self._sequence, mac)
        )
        answer = SIGNED_REPLY.unpack(self._receive(sock, SIGNED_REPLY.size))
        magic, client, status, view, mac = answer
        if magic != SIGNED_MAGIC or client != self._client:
            return "lost"
        if status:
            return "remount"
        tail = struct.pack("<BQ", status, view)
        text = b"answer\0\0" + self._nonce + head + tail
        is_good = hmac.compare_digest(hmac.digest(self._key, text, "sha256"), mac)
        return "known" if is_good else "lost"

    def close(self) -> None:
        """Ends the connection: a late answer must not be taken for the next."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _receive(self, sock: socket.socket, size: int = REPLY.size) -> bytes:
        data = b""
        while len(data) < size:
            some = sock.recv(size - len(data))
            if not some:
                raise ConnectionResetError("closed by the master")
            data += some
        return data


def process_state(pid: int) -> tuple[str, int] | None:
    """(state letter, start time in ticks) of a process, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    # The command name may hold anything, so fields count from its closing bracket.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def is_runnable(pid: int, start: int) -> bool:
    """True while the process lives, is not stopped and is still the same one."""
    found = process_state(pid)
    return found is not None and found[0] not in _STOPPED and found[1] == start


def main(arguments: list[str]) -> int:
    """Beats until the parent goes."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    parent = int(options["--parent"])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    found = process_state(parent)
    if found is None or os.getppid() != parent:
        return 0
    # Signals of a terminal go to the whole group; the parent decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host, _, port = options["--address"].rpartition(":")
    heart = Heart(
        (host.strip("[]"), int(port)),
        int(options["--client"]),
        float(options["--timeout-s"]),
        bytes.fromhex(sys.stdin.readline().strip()),
    )
    _run(heart, parent, found[1], float(options["--interval-s"]))
    return 0


def _run(heart: Heart, parent: int, start: int, interval_s: float) -> None:
    told = ""
    while True:
        began = time.monotonic()
        if is_runnable(parent, start):
            said = heart.beat()
            # Every "remount" is told again: the mount before may have been in vain.
            if said != told or said == "remount":
                sys.stdout.write(said + "\n")
                sys.stdout.flush()
                told = said
        elif os.getppid() != parent:
            return
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
