"""Open-loop replay: the schedule is fixed before the run and nothing moves it.

Requests are sent at their intended instants whether or not earlier ones came back. The
in-flight cap sheds and counts, it never queues. A request without an answer in time is
recorded as hung with at least its timeout, it never disappears. Sending is blocking and
so done by a bounded set of daemon threads: one that never comes back keeps its slot and
cannot keep the process.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.load.sample import Ending, LoadRun, Sample
from chaos.systems.base import Answer, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Ending", "LoadRun", "OpenLoop", "Sample"]

Send = Callable[[str, Request], Answer]
Route = Callable[[Request], str]
OnSample = Callable[[Sample], None]
OnSend = Callable[[Request, str, float], None]

# How long one wait of the dispatcher lasts at most: hung requests are found this late.
SWEEP_S = 0.05
# Head start of the schedule, so that the threads stand ready at the first instant.
LEAD_S = 0.02
SWITCH_S = 0.0005


@dataclass(slots=True, eq=False)
class _Call:
    """A request on its way. `sample` is set once, under the lock of the run."""

    request: Request
    engine: str
    intended_s: float
    sent_s: float | None = None
    sample: Sample | None = None


@dataclass(slots=True)
class _Ledger:
    """What the threads of a run share; every field under `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    open_calls: set[_Call] = field(default_factory=set)
    in_flight: int = 0
    late: int = 0
    callback_errors: int = 0
    changed: threading.Event = field(default_factory=threading.Event)


class OpenLoop:
    """Replays requests against `send(engine, request)`.

    Args:
        send: Blocks until the system answered; the engine comes from `route`.
        requests: Sorted by `at_s`, seconds from the start of the run.
        route: Engine of a request, see `chaos.load.routing`.
        rate_scale: 2.0 offers the same requests twice as fast.
        clock: Seconds, monotonic.
        wait: Sleeps up to the given seconds, true when the run was stopped.
        max_in_flight: Cap on requests under way; more are shed and counted.
        timeout_s: From the intended start; later answers count as hung.
        on_sample: Called once for every sample, from a thread of the run.
        on_send: Called with (request, engine, now) just before a request is sent.
        abort: Tells the system that we stopped waiting: `abort(engine, request_id)`.
    """

    def __init__(
        self,
        send: Send,
        requests: Sequence[Request],
        *,
        route: Route = lambda _request: "",
        rate_scale: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        max_in_flight: int = 64,
        timeout_s: float = 30.0,
        on_sample: OnSample | None = None,
        on_send: OnSend | None = None,
        abort: Callable[[str, str], None] | None = None,
    ) -> None:
        if rate_scale <= 0 or max_in_flight < 1 or timeout_s <= 0:
            msg = "need rate_scale > 0, max_in_flight >= 1, timeout_s > 0"
            raise ValueError(msg)
        self._send, self._clock = send, clock
        self._plan = [
            (request.at_s / rate_scale, request, route(request))
            for request in sorted(requests, key=lambda request: request.at_s)
        ]
        self._max_in_flight, self._timeout_s = max_in_flight, timeout_s
        self._on_sample, self._on_send, self._abort = on_sample, on_send, abort
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._ledger = _Ledger()
        self._calls: list[_Call] = []
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    @property
    def in_flight(self) -> int:
        return self._ledger.in_flight

    def stop(self) -> None:
        """Ends the run early, from any thread: what is open becomes CANCELLED."""
        self._stop.set()
        self._ledger.changed.set()

    def run(self) -> LoadRun:
        """Replays everything and returns when every request has its sample."""
        with _prompt_threads():
            self._start_threads()
            start_s = self._clock() + LEAD_S
            try:
                self._dispatch(start_s)
                self._drain()
            finally:
                self._stop.set()
                self._close_open(Ending.CANCELLED)
                self._end_threads()
        return self._result(start_s)

    def _dispatch(self, start_s: float) -> None:
        """Sends every request at its instant; stops early only when told to."""
        for offset_s, request, engine in self._plan:
            call = _Call(request, engine, start_s + offset_s)
            while (rest_s := call.intended_s - self._clock()) > 0:
                if self._wait(min(rest_s, SWEEP_S)):
                    return
                self._sweep()
            if self._stop.is_set():
                return
            self._offer(call)

    def _offer(self, call: _Call) -> None:
        ledger = self._ledger
        with ledger.lock:
            full = ledger.in_flight >= self._max_in_flight
            if not full:
                ledger.in_flight += 1
            ledger.open_calls.add(call)
        self._calls.append(call)
        if full:
            self._settle(call, Ending.SHED, None)
        else:
            self._work.put(call)

    def _drain(self) -> None:
        """Waits for the open requests, each no longer than its timeout."""
        ledger = self._ledger
        while ledger.open_calls and not self._stop.is_set():
            ledger.changed.wait(SWEEP_S)
            ledger.changed.clear()
            self._sweep()

    def _sweep(self) -> None:
        """Records the requests whose time is up as hung."""
        now = self._clock()
        with self._ledger.lock:
            due = [
                call
                for call in self._ledger.open_calls
                if now - call.intended_s >= self._timeout_s
            ]
        self._give_up(due, Ending.HUNG)

    def _close_open(self, ending: Ending) -> None:
        with self._ledger.lock:
            rest = list(self._ledger.open_calls)
        self._give_up(rest, ending)

    def _give_up(self, calls: list[_Call], ending: Ending) -> None:
        for call in calls:
            if self._settle(call, ending, None) and self._abort is not None:
                self._guard(self._abort, call.engine, call.request.request_id)

    def _settle(self, call: _Call, ending: Ending, answer: Answer | None) -> bool:
        """Writes the one sample of a call; false when it already has one."""
        now = self._clock()
        with self._ledger.lock:
            if call.sample is not None:
                self._ledger.late += ending is Ending.DONE
                return False
            done_s = now
            if ending is Ending.HUNG:
                done_s = max(now, call.intended_s + self._timeout_s)
            call.sample = Sample(
                request=call.request,
                engine=call.engine,
                intended_s=call.intended_s,
                sent_s=now if call.sent_s is None else call.sent_s,
                done_s=done_s,
                answer=answer,
                ending=ending,
            )
            self._ledger.open_calls.discard(call)
        self._ledger.changed.set()
        if self._on_sample is not None:
            self._guard(self._on_sample, call.sample)
        return True

    def _serve(self) -> None:
        """Body of a sending thread."""
        while (call := self._work.get()) is not None:
            try:
                self._call(call)
            finally:
                with self._ledger.lock:
                    self._ledger.in_flight -= 1

    def _call(self, call: _Call) -> None:
        call.sent_s = self._clock()
        if call.sample is not None:  # stopped or out of time before it was sent
            return
        if self._on_send is not None:
            self._guard(self._on_send, call.request, call.engine, call.sent_s)
        try:
            answer = self._send(call.engine, call.request)
        except Exception as error:  # a failed send is a failed request, with its cause
            answer = failed(call.request, f"{type(error).__name__}: {error}")
        late = self._clock() - call.intended_s >= self._timeout_s
        self._settle(
            call, Ending.HUNG if late else Ending.DONE, None if late else answer
        )

    def _guard(self, function: Callable[..., None], *args: object) -> None:
        """A broken callback costs a counter, never a sample."""
        try:
            function(*args)
        except Exception:
            with self._ledger.lock:
                self._ledger.callback_errors += 1

    def _start_threads(self) -> None:
        count = min(self._max_in_flight, max(1, len(self._plan)))
        for index in range(count):
            thread = threading.Thread(
                target=self._serve, name=f"load-{index}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _end_threads(self) -> None:
        """Lets idle threads go; one stuck in `send` is a daemon and holds nobody."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _result(self, start_s: float) -> LoadRun:
        samples = tuple(call.sample for call in self._calls if call.sample is not None)
        return LoadRun(
            samples=samples,
            lag_s=tuple(sample.lag_s for sample in samples if sample.judged),
            started_s=start_s,
            late=self._ledger.late,
            callback_errors=self._ledger.callback_errors,
        )


@contextmanager
def _prompt_threads() -> Iterator[None]:
    """Lets a due thread have the interpreter after 0.5 ms instead of 5 ms.

    Busy threads (decoding answers, writing the history) would otherwise hold the
    dispatcher up for 5 ms each; that is lag of the generator itself.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def failed(request: Request, error: str) -> Answer:
    """The answer of a request that failed before any engine could say something."""
    return Answer(
        request_id=request.request_id,
        ok=False,
        error=error,
        queue_s=0.0,
        cache_wait_s=0.0,
        deadline_s=0.0,
        prefill_modelled_s=0.0,
        ttft_modelled_s=0.0,
        input_tokens=request.input_length,
        l1_tokens=0,
        l2_tokens=0,
        l3_tokens=0,
        recomputed_tokens=0,
        output_hash="",
        prefetch_outcome="",
        stores=(),
        touched_fault=False,
    )
