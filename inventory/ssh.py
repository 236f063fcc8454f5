"""Commands on a host of the inventory over SSH: bounded, typed, at most once.

A session connects when it is first used and keeps the connection. One that broke is
replaced by the next call; a call itself is never made twice, whatever happened to its
answer. `SshError.maybe_ran` says whether the host may have executed it.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inventory.channel import Channel, command_name
from inventory.deadline import Deadline, OutOfTime, within
from inventory.dial import dial
from inventory.errors import SshError, SshProblem
from inventory.programs import not_started, python_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import paramiko

    from inventory.schema import HostEntry

OUTPUT_BYTES = 16 << 20
"""Of one stream of one command, unless the caller says otherwise."""
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended; `rc` is -1 when a signal ended it."""

    argv: tuple[str, ...]
    rc: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", errors="replace")

    @property
    def complaint(self) -> str:
        return self.stderr.decode("utf-8", errors="replace")


class SshSession:
    """The one connection to a host. Several threads may run commands on it."""

    def __init__(
        self, entry: HostEntry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.entry = entry
        self._clock = clock
        self._lock = threading.Lock()
        self._transport: paramiko.Transport | None = None

    @property
    def connected(self) -> bool:
        transport = self._transport
        return transport is not None and transport.is_active()

    def connect(self, *, timeout_s: float = CONNECT_S) -> None:
        """Connects now, so that later calls need not.

        Raises:
            SshError: how it failed.
        """
        self._connection(Deadline.after(timeout_s, self._clock))

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Runs a command to its end; the deadline includes connecting.

        A command that ends with an error is no exception here: look at `rc`.

        Raises:
            SshError: it could not be started, or its end was not seen.
        """
        deadline = Deadline.after(timeout_s, self._clock)
        with self._start(argv, deadline) as channel:
            channel.feed(stdin)
            stdout, stderr = channel.collect(deadline, limit_bytes)
            code = channel.wait(timeout_s=deadline.left_s())
        return Completed(argv=tuple(argv), rc=code, stdout=stdout, stderr=stderr)

    def run_python(
        self,
        source: bytes,
        args: Sequence[str] = (),
        *,
        timeout_s: float,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Runs a Python program that the host need not have, sent over stdin.

        With the inventory's interpreter, and as root where the inventory has `sudo`.

        Raises:
            SshError: as `run`, and NO_PYTHON or NO_SUDO when it was not started.
        """
        done = self.run(
            python_argv(self.entry, ["-", *args]),
            stdin=source,
            timeout_s=timeout_s,
            limit_bytes=limit_bytes,
        )
        reason = not_started(self.entry, done.rc, done.complaint)
        if reason is not None:
            raise reason
        return done

    def open(self, argv: Sequence[str], *, timeout_s: float = CONNECT_S) -> Channel:
        """Starts a command and gives its streams; the deadline is for starting it.

        Raises:
            SshError: it could not be started.
        """
        return self._start(argv, Deadline.after(timeout_s, self._clock))

    def close(self) -> None:
        """Ends the connection and every command's streams; again is harmless."""
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            hang_up(transport)

    def __enter__(self) -> SshSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _connection(self, deadline: Deadline) -> paramiko.Transport:
        """The live connection; one caller dials, the others wait, each to its own
        deadline."""
        if not self._lock.acquire(timeout=deadline.left_s()):
            raise self._late(deadline, "another caller's connection attempt", False)
        try:
            if self._transport is not None and not self._transport.is_active():
                hang_up(self._transport)
                self._transport = None
            if self._transport is None:
                self._transport = dial(self.entry, deadline)
            return self._transport
        finally:
            self._lock.release()

    def _start(self, argv: Sequence[str], deadline: Deadline) -> Channel:
        transport = self._connection(deadline)
        start = _Start(transport, shlex.join(argv))
        try:
            raw = within(deadline, start.run, f"ssh start {self.entry.name}")
        except OutOfTime:
            # whoever does not answer this is dead for everybody
            hang_up(transport)
            waited = f"the start of {command_name(argv)}"
            raise self._late(deadline, waited, start.sent) from None
        except Exception as error:  # whatever broke the library's own thread
            raise self._not_started(argv, transport, start.sent, error) from error
        return Channel(self.entry.name, argv, transport, raw)

    def _late(self, deadline: Deadline, waited: str, sent: bool) -> SshError:
        return SshError(
            SshProblem.TIMEOUT,
            host=self.entry.name,
            detail=f"no answer within {deadline.total_s:g} s, waiting for {waited}",
            fix="look whether the host is overloaded or packets to it are dropped",
            phase="the command",
            maybe_ran=sent,
        )

    def _not_started(
        self,
        argv: Sequence[str],
        transport: paramiko.Transport,
        sent: bool,
        error: Exception,
    ) -> SshError:
        alive = transport.is_active()
        kind = SshProblem.AUTH if alive else SshProblem.LOST
        what = "refuses to start" if alive else "was lost before it started"
        fix = (
            "look at ForceCommand, MaxSessions and the login shell of the user"
            if alive
            else "look at sshd's log on the host"
        )
        return SshError(
            kind,
            host=self.entry.name,
            detail=f"{what} {command_name(argv)} ({str(error) or 'connection closed'})",
            fix=fix,
            phase="the command",
            maybe_ran=sent,
        )


class _Start:
    """Opens a channel and asks for the command; `sent` once the asking began."""

    def __init__(self, transport: paramiko.Transport, command: str) -> None:
        self._transport = transport
        self._command = command
        self.sent = False

    def run(self) -> paramiko.Channel:
        channel = self._transport.open_session(timeout=3600)
        self.sent = True
        channel.exec_command(self._command)
        return channel


def hang_up(transport: paramiko.Transport) -> None:
    """Closes a transport and its socket, also when the transport ended by itself."""
    transport.close()
    with contextlib.suppress(OSError):
        transport.sock.close()
