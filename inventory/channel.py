"""A command on a host, and the bytes that go in and come out.

The deadline of every wait is the caller's. Closing a channel closes the command's
pipes; a command that ignores that goes on, which is why errors say `maybe_ran`.
"""

from __future__ import annotations

import contextlib
import select
import shlex
import threading
from typing import TYPE_CHECKING

import paramiko

from inventory.deadline import Deadline, OutOfTime, within
from inventory.errors import SshError, SshProblem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

CHUNK_BYTES = 1 << 16
STDERR_BYTES = 1 << 16
"""Of stderr that a stream keeps: the first so many."""
CLOSE_S = 2.0


class Channel:
    """One command's stdin, stdout and stderr; from `SshSession.open`.

    One thread may read while another writes.
    """

    def __init__(
        self,
        host: str,
        argv: Sequence[str],
        transport: paramiko.Transport,
        raw: paramiko.Channel,
    ) -> None:
        self.host = host
        self.argv = tuple(argv)
        self._transport = transport
        self._raw = raw
        self._poll = select.poll()
        self._poll.register(raw.fileno(), select.POLLIN)
        self._stderr = bytearray()
        self._feeder: threading.Thread | None = None

    @property
    def stderr(self) -> bytes:
        """What the command complained of so far, bounded."""
        self._drain_stderr(STDERR_BYTES)
        return bytes(self._stderr)

    def send(self, data: bytes, *, timeout_s: float) -> None:
        """Writes all of it to the command's stdin.

        Raises:
            SshError: TIMEOUT (the channel is of no use any more: part may be sent) or
                LOST.
        """
        deadline = Deadline.after(timeout_s)
        try:
            within(deadline, lambda: self._raw.sendall(data), f"ssh send {self.host}")
        except OutOfTime:
            raise self._late(timeout_s, "takes its input") from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost("while it took its input") from error

    def end_input(self) -> None:
        """The command sees the end of its stdin."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            # a command that is gone needs no end of input; reading tells the loss
            self._raw.shutdown_write()

    def recv(self, size: int = CHUNK_BYTES, *, timeout_s: float) -> bytes:
        """Some bytes of stdout, at least one; empty at its end.

        Raises:
            TimeoutError: nothing came; the channel is as good as before.
            SshError: LOST.
        """
        deadline = Deadline.after(timeout_s)
        while not self._raw.recv_ready():
            self._drain_stderr(STDERR_BYTES)
            if self._ended():
                break
            if not self._wait(deadline):
                raise TimeoutError(f"{self.host}: nothing read in {timeout_s:g} s")
        if self._raw.recv_ready():
            return self._raw.recv(size)
        if self._broken():
            raise self._lost("while it was read")
        return b""

    def wait(self, *, timeout_s: float) -> int:
        """The exit code; -1 when a signal ended the command.

        Raises:
            SshError: TIMEOUT or LOST.
        """
        if not self._raw.status_event.wait(timeout_s):
            raise self._late(timeout_s, "ends")
        code = self._raw.recv_exit_status()
        if code == -1 and not self._transport.is_active():
            raise self._lost("before it ended")
        return code

    def feed(self, data: bytes) -> None:
        """Writes stdin from a thread of its own and ends it: output flows meanwhile."""
        self._feeder = threading.Thread(
            target=self._feed, args=(data,), name=f"ssh feed {self.host}", daemon=True
        )
        self._feeder.start()

    def _feed(self, data: bytes) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            # a command may end without reading all; its exit code tells the rest
            if data:
                self._raw.sendall(data)
            self._raw.shutdown_write()

    def collect(self, deadline: Deadline, limit_bytes: int) -> tuple[bytes, bytes]:
        """All of stdout and stderr.

        Raises:
            SshError: TIMEOUT, LOST, or GARBAGE when there is more than the limit.
        """
        stdout = bytearray()
        while True:
            ended = self._ended()
            while self._raw.recv_ready() and len(stdout) <= limit_bytes:
                stdout += self._raw.recv(CHUNK_BYTES)
            self._drain_stderr(limit_bytes + 1)
            if max(len(stdout), len(self._stderr)) > limit_bytes:
                raise self._error(
                    SshProblem.GARBAGE, f"wrote more than {limit_bytes} bytes"
                )
            if ended:
                break
            if not self._wait(deadline):
                raise self._late(deadline.total_s, "ends")
        if self._broken():
            raise self._lost(f"after {len(stdout)} bytes of its output")
        return bytes(stdout), bytes(self._stderr)

    def close(self) -> None:
        """Lets go of the command; again is harmless."""
        try:
            within(Deadline.after(CLOSE_S), self._raw.close, f"ssh close {self.host}")
        except (OutOfTime, OSError, EOFError, paramiko.SSHException):
            self._transport.close()  # it cannot even be told: the connection is dead
        if self._feeder is not None:
            self._feeder.join(CLOSE_S)

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ended(self) -> bool:
        return bool(self._raw.eof_received or self._raw.closed)

    def _broken(self) -> bool:
        """It ended because the connection did, not because the host said so."""
        return not self._raw.eof_received and not self._transport.is_active()

    def _wait(self, deadline: Deadline) -> bool:
        """False when the deadline passed with nothing to read."""
        left_s = deadline.left_s()
        return left_s > 0 and bool(self._poll.poll(left_s * 1000 + 1))

    def _drain_stderr(self, limit_bytes: int) -> None:
        while self._raw.recv_stderr_ready():
            chunk = self._raw.recv_stderr(CHUNK_BYTES)
            self._stderr += chunk[: max(0, limit_bytes - len(self._stderr))]

    def _late(self, timeout_s: float, what: str) -> SshError:
        return self._error(
            SshProblem.TIMEOUT,
            f"was not done within {timeout_s:g} s (waiting until it {what});"
            " it may still run there",
        )

    def _lost(self, when: str) -> SshError:
        return self._error(SshProblem.LOST, f"was lost with the connection {when}")

    def _error(self, kind: SshProblem, what: str) -> SshError:
        return SshError(
            kind,
            host=self.host,
            detail=f"the command {command_name(self.argv)} {what}",
            fix="read the state of the host before doing anything again",
            phase="the command",
            maybe_ran=True,
        )


def command_name(argv: Sequence[str]) -> str:
    """The beginning of a command, for messages; arguments may be secret or long."""
    return shlex.join(argv[:3]) + (" ..." if len(argv) > 3 else "")
