"""An engine's end of the worker that its Mooncake client lives in (`worker.py`).

A thread that calls has a connection of its own and waits asleep; the worker answers
each on a thread of its own. A worker that is gone is told as such, and started anew
with the next try to connect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from refimpl.core.codes import Code
from refimpl.errors import UsageError
from refimpl.native.client import Gone, NotConnected, knock, knock_at_admin
from refimpl.native.worker import MAP, MESSAGE_BYTES, OPEN, READY, TAKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refimpl.native.client import Native, NativeOptions
    from refimpl.native.memory import SharedMemory

_REMEDY: Final = (
    "install the wheel (pip install 'moonquake[mooncake]') and its one library "
    "(apt-get install libibverbs1), or choose --storage pool"
)
_START_S: Final = 60.0
_ANSWER_S: Final = 120.0
"""Longer than the minute and a half for which setup tries."""
_CLOSE_S: Final = 1.0
_STDERR: Final = 2
_NOT_KNOWN: Final = 0
_MAKES_WAY: Final = -1
_LEAST_WEIGHT: Final = 19
"""The nice value of a thread whose call was given up: Mooncake's client spins."""


class Worker:
    """One process; ends with this object's `close`, with the engine, or by itself.

    Raises:
        UsageError: the wheel or its library is not installed.
        Gone: it ended before it was ready.
    """

    def __init__(self, options: NativeOptions) -> None:
        self.control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        told = json.dumps(dataclasses.asdict(options))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "refimpl.native.worker", told],
                stdin=theirs.fileno(),
                stdout=_STDERR,  # ours tells addresses
                start_new_session=True,
            )
        self._closing = threading.Lock()
        self.control.settimeout(_START_S)
        try:
            wrong = self.hear()
        except Gone:
            self.close()
            raise
        self.control.settimeout(_ANSWER_S)
        if wrong != READY:
            self.close()
            raise UsageError(f"--storage mooncake: {wrong}; {_REMEDY}")

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._process.pid)

    def ask(self, what: bytes, *descriptors: int) -> int:
        """Says one word, with descriptors, and answers the code that comes back.

        Raises:
            Gone: it ended before it answered.
        """
        self.say(what, *descriptors)
        return int(self.hear())

    def say(self, what: bytes, *descriptors: int) -> None:
        """Says one word.

        Raises:
            Gone: it has ended.
        """
        try:
            socket.send_fds(self.control, [what], descriptors)
        except OSError as error:
            raise Gone(str(error)) from error

    def hear(self) -> str:
        """The next message.

        Raises:
            Gone: there is none any more.
        """
        try:
            said = self.control.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            said = b""
        except OSError as error:  # it says nothing in time, or we closed
            raise Gone(str(error)) from error
        if not said:
            raise Gone("the worker ended")
        return said.decode(errors="replace")

    def wait(self) -> None:
        """Blocks until it has ended."""
        with contextlib.suppress(Gone):
            self.control.settimeout(None)
            self.hear()

    def close(self) -> None:
        """Lets it take its leave, and ends it when it does not. Twice is once."""
        with self._closing:
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self.control.close()


class RemoteClient:
    """`Native` over a worker. Thread-safe."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._base = 0
        self._own = threading.local()
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}
        """Threads that call, and which of the worker's answers each: 0 not yet known,
        -1 that one makes way."""

    def register(self, memory: SharedMemory) -> int:
        self._base = memory.address
        return self._worker.ask(MAP, memory.fd)

    def exist(self, names: Sequence[str]) -> Sequence[int]:
        found: Sequence[int] = self._call("exist", list(names))
        return found

    def places(self, names: Sequence[str]) -> Sequence[str]:
        found: Sequence[str] = self._call("places", list(names))
        return found

    def read(
        self, names: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[int]:
        codes: Sequence[int] = self._call(
            "read", list(names), self._starts(addresses), list(sizes)
        )
        return codes

    def write(
        self,
        names: Sequence[str],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        replicas: int,
        segment: str,
    ) -> Sequence[int]:
        starts = self._starts(addresses)
        codes: Sequence[int] = self._call(
            "write", list(names), starts, list(sizes), replicas, segment
        )
        return codes

    def remove(self, name: str) -> int:
        return int(self._call("remove", name))

    def make_way(self, thread: int) -> None:
        """The call goes on, of the least weight, until it comes back by itself."""
        with self._lock:
            native = self._threads.get(thread)
            if native is None:
                return
            self._threads[thread] = _MAKES_WAY
        if native > 0:
            _weigh_least(native)

    def wait(self) -> None:
        self._worker.wait()

    def close(self) -> None:
        self._worker.close()

    def _starts(self, addresses: Sequence[int]) -> list[int]:
        return [address - self._base for address in addresses]

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            calls = self._calls()
            calls.send((name, arguments))
            well, answer = calls.recv()
        except (EOFError, OSError) as error:
            raise Gone(f"{name}: {error or 'the worker ended'}") from error
        if not well:
            raise RuntimeError(f"{name}: {answer}")
        return answer

    def _calls(self) -> Connection:
        """The connection of this thread; it ends with the thread."""
        calls: Connection | None = getattr(self._own, "calls", None)
        if calls is not None:
            return calls
        thread = threading.get_native_id()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._worker.say(TAKE, theirs.fileno())
            calls = self._own.calls = Connection(ours.detach())
        self._threads[thread] = _NOT_KNOWN
        weakref.finalize(calls, self._threads.pop, thread, None)
        native = calls.recv()
        with self._lock:
            if self._threads[thread] == _NOT_KNOWN:
                self._threads[thread] = native
                return calls
        _weigh_least(native)
        return calls


def _weigh_least(native: int) -> None:
    with contextlib.suppress(OSError):  # it ended meanwhile
        os.setpriority(os.PRIO_PROCESS, native, _LEAST_WEIGHT)


class ProcessOpener:
    """Opens clients in workers. The first starts at once: what is missing is told now.

    Raises:
        UsageError: the wheel or its library is not installed.
    """

    def __init__(self, options: NativeOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._worker = Worker(options)
        except Gone as error:
            text = f"--storage mooncake: its client's process: {error}; {_REMEDY}"
            raise UsageError(text) from error

    def __call__(self) -> Native:
        """See `Opener`.

        Raises:
            NotConnected: no master answered, or the worker ended.
            UsageError: the wheel is not installed any more.
        """
        options = self._options
        knock(options.master)
        if options.admin:
            knock_at_admin(options.admin)
        try:
            worker = self._running()
            try:
                code = worker.ask(OPEN)
            except Gone:
                worker.close()
                raise
        except Gone as error:
            raise NotConnected(Code.INTERNAL_ERROR, f"({error})") from error
        if code:
            raise NotConnected(code)
        return RemoteClient(worker)

    def close(self) -> None:
        """Ends the worker, with whoever still calls; no other is started."""
        self._closed = True
        self._worker.close()
        with self._lock:  # one that was being started
            self._worker.close()

    def _running(self) -> Worker:
        with self._lock:
            if self._closed:
                raise Gone("closed")
            if not self._worker.alive:
                self._worker.close()
                self._worker = Worker(self._options)
            return self._worker
