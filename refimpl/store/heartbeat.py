"""The heartbeat of a store: a process of its own, standard library only.

A thread would share the interpreter with the data plane and starve under load
(Ascend/TransferQueue#99), and it would beat on while the store is stuck. This process
beats only while its parent is runnable: one that is stopped, dead or replaced has no
pulse. The kernel kills it together with the parent.

Run as `python -S -E heartbeat.py --parent PID --address HOST:PORT --client N
--interval-s S --timeout-s S`. Every change goes to stdout, a line each: `known`,
`remount` (the master does not know us: mount again), `lost` (no answer).
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
_PR_SET_PDEATHSIG = 1
_STOPPED = frozenset("TtZX")


class Heart:
    """One beat at a time over a connection that is renewed after any trouble."""

    def __init__(self, address: tuple[str, int], client: int, timeout_s: float) -> None:
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
            self._sock.sendall(REQUEST.pack(MAGIC, self._client, self._sequence))
            magic, client, status, _view = REPLY.unpack(self._receive(self._sock))
        except (OSError, struct.error):
            self.close()
            return "lost"
        if magic != MAGIC or client != self._client:
            self.close()
            return "lost"
        return "remount" if status else "known"

    def close(self) -> None:
        """Ends the connection: a late answer must not be taken for the next."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _receive(self, sock: socket.socket) -> bytes:
        data = b""
        while len(data) < REPLY.size:
            some = sock.recv(REPLY.size - len(data))
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
        (host, int(port)), int(options["--client"]), float(options["--timeout-s"])
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
