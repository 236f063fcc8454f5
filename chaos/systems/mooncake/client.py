"""The harness's end of a worker: calls with deadlines, whatever the native client does.

A worker that does not answer in time is recorded as hung, with how long it was waited
for, killed by its pid, and replaced when the next call comes. Everything else that was
in flight on it is lost with it, and said to be.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import chaos
from chaos.errors import HarnessError
from chaos.safety.identity import start_ticks_of
from chaos.systems.base import Process
from chaos.systems.mooncake.frames import Cut, encode, receive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.systems.mooncake.plan import ClientPlan

HUNG: Final = -9001
"""No answer within the deadline of the harness: the worker was killed."""
LOST: Final = -9002
"""The worker ended during the call, mostly because another call on it hung."""
NOT_JOINED: Final = -9003
"""No client could join: its setup failed, or hung."""
_SETUP_TIMEOUT_S: Final = 8.0
_SEND_TIMEOUT: Final = struct.pack("@ll", 2, 0)
"""Seconds, as the kernel wants them: half a frame is no frame."""
_END_TIMEOUT_S: Final = 5.0
_KEPT: Final = 4096
_LAUNCH: Final = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A call that was given up: at an instant of the clock, after so long."""

    op: str
    names: tuple[str, ...]
    at_s: float
    waited_s: float
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a call came to: its result, or the harness's code for what it lacks.

    `took_s` is the time in the native call as the worker saw it; where there is no
    answer, the time that was waited.
    """

    result: Any = None
    code: int = 0
    error: str = ""
    took_s: float = 0.0
    cpu_s: float = 0.0


class Client:
    """One worker at a time, replaced when it hung or died; any thread may call.

    Args:
        plan: how the client joins.
        python: what runs workers.
        log: their standard error goes there, appended; nowhere without it.
        on_hang: is told of every hang.
    """

    def __init__(
        self,
        plan: ClientPlan,
        *,
        python: str = sys.executable,
        module: str = "chaos.systems.mooncake.worker",
        log: Path | None = None,
        setup_timeout_s: float = _SETUP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        on_hang: Callable[[Hang], None] | None = None,
    ) -> None:
        self.plan = plan
        self.hangs: deque[Hang] = deque(maxlen=_KEPT)
        self._argv = [python, "-m", module, "--plan", plan.to_json()]
        self._log = log
        self._setup_timeout_s = setup_timeout_s
        self._clock = clock
        self._on_hang = on_hang
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._closed = False

    @property
    def process(self) -> Process | None:
        """The live worker, None when there is none."""
        worker = self._worker
        return worker.process if worker is not None and not worker.ended else None

    def call(self, op: str, *, deadline_s: float, **fields: Any) -> Reply:
        """One call; never raises for what Mooncake does, and is back in time.

        Starting a worker has a time limit of its own, and does not count.
        """
        try:
            worker = self._current()
        except _NotJoined as error:
            return Reply(code=NOT_JOINED, error=str(error), took_s=error.took_s)
        begin_s = self._clock()
        try:
            answer = worker.ask({"op": op, **fields}).result(deadline_s)
        except FutureTimeout:
            waited_s = self._clock() - begin_s
            self._give_up(worker, op, fields, waited_s)
            return Reply(
                code=HUNG, error=f"no answer in {waited_s:.2f} s", took_s=waited_s
            )
        except (Cut, OSError) as error:
            return Reply(code=LOST, error=str(error), took_s=self._clock() - begin_s)
        if "error" in answer:
            message = f"the worker's {op} broke: {answer['error']}"
            raise HarnessError(message)
        return Reply(
            result=answer["result"],
            took_s=float(answer["took_s"]),
            cpu_s=float(answer["cpu_s"]),
        )

    def join(self) -> Reply:
        """Has a worker that joined: how long that took, or why there is none."""
        begin_s = self._clock()
        try:
            worker = self._current()
        except _NotJoined as error:
            return Reply(code=NOT_JOINED, error=str(error), took_s=error.took_s)
        return Reply(result=worker.hostname, took_s=self._clock() - begin_s)

    def close(self) -> None:
        """Ends the worker by its pid. Safe to call twice."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def _current(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise HarnessError("this client of Mooncake is closed")
            if self._worker is None or self._worker.ended:
                self._worker = self._start()
            return self._worker

    def _start(self) -> _Worker:
        worker = _Worker(self._argv, _environment(self.plan.env), self._log)
        begin_s = self._clock()
        try:
            first = worker.ready.result(self._setup_timeout_s)
            if "error" not in first:
                worker.hostname = str(first["result"]["hostname"])
                return worker
            problem = str(first["error"])
        except FutureTimeout:
            problem = f"its setup hangs for {self._setup_timeout_s:g} s"
        except (Cut, OSError) as error:
            problem = f"it ended: {error}"
        except BaseException:
            worker.end()
            raise
        worker.end()
        raise _NotJoined(problem, self._clock() - begin_s)

    def _give_up(
        self, worker: _Worker, op: str, fields: Mapping[str, Any], waited_s: float
    ) -> None:
        hang = Hang(
            op=op,
            names=tuple(fields.get("names", ())),
            at_s=self._clock(),
            waited_s=waited_s,
            pid=worker.process.pid if worker.process else 0,
        )
        self.hangs.append(hang)
        worker.end()
        if self._on_hang is not None:
            self._on_hang(hang)


class _NotJoined(Exception):
    """A client could not join; `took_s` is how long it tried."""

    def __init__(self, problem: str, took_s: float) -> None:
        super().__init__(problem)
        self.took_s = took_s


class _Worker:
    """A process, and the thread that starts it, reads its answers, and outlives it.

    The kernel ends the process with that thread (see `launch.py`), so nothing of it
    survives us; it also ends by itself when its socket does.
    """

    def __init__(self, argv: list[str], env: dict[str, str], log: Path | None) -> None:
        self.ready: Future[dict[str, Any]] = Future()
        self.process: Process | None = None
        self.hostname = ""
        self.ended = False
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[dict[str, Any]]] = {0: self.ready}
        self._ours, theirs = socket.socketpair()
        self._ours.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_SNDTIMEO,
            _SEND_TIMEOUT,
        )
        self._thread = threading.Thread(
            target=self._live, args=(argv, env, log, theirs), name="mooncake-worker"
        )
        self._thread.daemon = True
        self._thread.start()

    def ask(self, document: dict[str, Any]) -> Future[dict[str, Any]]:
        """Sends a call; the future has its answer, or the end of the worker."""
        future: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        with self._lock:
            if self.ended:
                future.set_exception(Cut("the worker has ended"))
                return future
            self._pending[number] = future
            try:
                self._ours.sendall(encode({"id": number, **document}))
            except OSError as error:
                self._pending.pop(number)
                self._ours.shutdown(socket.SHUT_RDWR)  # half a frame may be in it
                future.set_exception(Cut(f"the worker takes no call: {error}"))
        return future

    def end(self) -> None:
        """Kills it and waits until it is gone. Safe to call twice."""
        self._kill()
        self._thread.join(_END_TIMEOUT_S)

    def _live(
        self,
        argv: list[str],
        env: dict[str, str],
        log: Path | None,
        theirs: socket.socket,
    ) -> None:
        try:
            with theirs:
                popen = _popen(argv, env, log, theirs.fileno())
            ticks = start_ticks_of(popen.pid) or 0
            self.process = Process(role="worker", pid=popen.pid, start_ticks=ticks)
        except OSError as error:
            self._finish(error)
            return
        try:
            while True:
                self._deliver(receive(self._ours))
        except (Cut, OSError, ValueError) as error:
            popen.kill()  # it may have closed the socket and hang at its end
            code = popen.wait()
            self._finish(Cut(f"{error}; the worker ended with {code}"))

    def _deliver(self, answer: dict[str, Any]) -> None:
        with self._lock:
            future = self._pending.pop(int(answer.get("id", -1)), None)
        if future is not None:
            future.set_result(answer)

    def _finish(self, error: Exception) -> None:
        with self._lock:
            self.ended = True
            pending, self._pending = list(self._pending.values()), {}
            self._ours.close()
        for future in pending:
            future.set_exception(error)

    def _kill(self) -> None:
        """The shut socket wakes its thread, which kills and buries the process."""
        with self._lock:
            if not self.ended:
                self._ours.shutdown(socket.SHUT_RDWR)


def _popen(
    argv: list[str], env: dict[str, str], log: Path | None, descriptor: int
) -> subprocess.Popen[bytes]:
    """Starts it through `launch.py`, so that it dies with the calling thread."""
    launch = [argv[0], "-I", "-S", str(_LAUNCH), "--die-with-parent", str(os.getpid())]
    whole = [*launch, "--", *argv, "--socket", str(descriptor)]
    with Path(os.devnull if log is None else log).open("ab") as file:
        return subprocess.Popen(
            whole,
            env=env,
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    root = str(Path(chaos.__file__).parent.parent)
    logs = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "1"}
    return {**os.environ, **logs, **more, "PYTHONPATH": root}
