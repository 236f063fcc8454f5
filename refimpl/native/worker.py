"""The process that Mooncake's native client lives in; `process.py` starts it.

Standard input is a socket of messages: first the worker says that it is ready, or what
is wrong with its installation. Then it is told to open the client, to map the
memory of the lanes, and to take a connection, on which one thread of the engine calls;
memory and connections come as descriptors. When that socket ends, so does the worker.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refimpl.native.client import MooncakeClient, NativeOptions, NotConnected, load

if TYPE_CHECKING:
    from collections.abc import Sequence

READY: Final = "ready"
OPEN: Final = b"open"
MAP: Final = b"map"
TAKE: Final = b"take"
MESSAGE_BYTES: Final = 4096

_NICE: Final = 10
"""Threads of the client spin while they wait: they take what engines leave."""
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_PR_SET_PDEATHSIG: Final = 1
_CLOSE_S: Final = 0.5


class Worker:
    """Serves one engine.

    Args:
        module: the wheel's `mooncake.store`.
        options: arguments of its setup.
        control: see above.
    """

    def __init__(
        self, module: Any, options: NativeOptions, control: socket.socket
    ) -> None:
        self._module = module
        self._options = options
        self._control = control
        self._client: MooncakeClient | None = None
        self._memory: mmap.mmap | None = None
        self._base = 0
        self._busy = 0
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until the engine closes, or is no more."""
        while True:
            said, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
            if not said:
                return
            if said == OPEN:
                self._answer(self._open())
            elif said == MAP:
                self._answer(self._map(descriptors[0]))
            elif said == TAKE:
                calls = Connection(descriptors[0])
                threading.Thread(target=self._calls, args=[calls], daemon=True).start()

    def close(self) -> None:
        """Takes leave of the pool, if no call hangs and it is quick."""
        with self._lock:
            client, busy = self._client, self._busy
        if client is not None and not busy:
            ending = threading.Thread(target=client.close, daemon=True)
            ending.start()
            ending.join(_CLOSE_S)

    def _answer(self, code: int) -> None:
        self._control.send(str(code).encode())

    def _open(self) -> int:
        try:
            self._client = MooncakeClient(self._module, self._options)
        except NotConnected as error:
            return error.code
        return 0

    def _map(self, descriptor: int) -> int:
        assert self._client is not None
        self._memory = memory = mmap.mmap(descriptor, 0)  # ends with what holds it
        os.close(descriptor)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return self._client.register(self._base, len(memory))

    # --- a thread of calls ---

    def _calls(self, calls: Connection) -> None:
        """Answers (whether it went well, the result or what was raised)."""
        calls.send(threading.get_native_id())
        while True:
            try:
                name, arguments = calls.recv()
            except (EOFError, OSError):
                return
            with self._lock:
                self._busy += 1
            try:
                answer = True, getattr(self, name)(*arguments)
            except Exception as error:
                # Whatever a native call raises is that call's result.
                answer = False, f"{type(error).__name__}: {error}"
            with self._lock:
                self._busy -= 1
            try:
                calls.send(answer)
            except OSError:
                return

    def exist(self, names: Sequence[str]) -> list[int]:
        return list(self._native.exist(names))

    def places(self, names: Sequence[str]) -> list[str]:
        return list(self._native.places(names))

    def read(
        self, names: Sequence[str], starts: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        addresses = [self._base + start for start in starts]
        return list(self._native.read(names, addresses, sizes))

    def write(
        self,
        names: Sequence[str],
        starts: Sequence[int],
        sizes: Sequence[int],
        replicas: int,
        segment: str,
    ) -> list[int]:
        addresses = [self._base + start for start in starts]
        return list(
            self._native.write(
                names, addresses, sizes, replicas=replicas, segment=segment
            )
        )

    def remove(self, name: str) -> int:
        return self._native.remove(name)

    @property
    def _native(self) -> MooncakeClient:
        assert self._client is not None, "calls come after open"
        return self._client


def main() -> int:
    """Runs until the engine that started this is gone."""
    _end_with_the_engine()
    _make_way()
    control = socket.socket(fileno=0)
    options = NativeOptions(**json.loads(sys.argv[1]))
    try:
        module = load(options)
    except (ImportError, OSError) as error:
        control.send(str(error).encode()[:MESSAGE_BYTES])
        return 1
    control.send(READY.encode())
    try:
        worker = Worker(module, options, control)
        worker.serve()
        worker.close()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # native threads may be at work: they break down in an orderly end


def _end_with_the_engine() -> None:
    """Also where a native call keeps the interpreter, so that no message is heard.

    A Ctrl-C in the terminal of an engine is the engine's to answer.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _make_way() -> None:
    """Of less weight than the engine, also where the kernel weighs by session."""
    os.nice(_NICE)
    try:
        _AUTOGROUP.write_text(str(_NICE))
    except OSError:
        return  # a kernel without them: the nice value counts


if __name__ == "__main__":
    sys.exit(main())
