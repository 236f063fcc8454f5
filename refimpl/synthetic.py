"""A small synthetic load for `refimpl up`: growing sessions over one system prompt.

Open loop, seeded, for the eye only; the suites have a load of their own.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import numpy as np

from refimpl.engine.model import BLOCK_TOKENS
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

_SESSIONS: Final = 16
_SYSTEM_BLOCKS: Final = 4
_BLOCKS_MOST: Final = 24
_KEPT: Final = 200
_TIMEOUT_S: Final = 60.0
_IN_FLIGHT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """The last answers, in numbers."""

    sent: int
    failed: int
    shed: int
    ttft_p50_s: float
    hit_rate: float


class SyntheticLoad:
    """Sends requests at a steady rate until closed.

    Args:
        engines: gRPC addresses; a session stays with its engine.
        rate: requests per second.
        seed: of session choice and prompt growth.
    """

    def __init__(self, engines: Sequence[str], *, rate: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self._channels = [
            grpc.insecure_channel(address, options=list(GRPC_OPTIONS))
            for address in engines
        ]
        self._stubs = [
            pool_pb2_grpc.EngineStub(c)  # type: ignore[no-untyped-call]
            for c in self._channels
        ]
        self._period_s = 1.0 / rate
        self._sessions: list[list[int]] = [[] for _ in range(_SESSIONS)]
        self._fresh_block = 1000
        self._lock = threading.Lock()
        self._sent = self._failed = self._shed = self._in_flight = 0
        self._answers: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def close(self) -> None:
        """Stops sending and drops what is under way, which then counts as neither."""
        self._closed.set()
        self._thread.join()
        for channel in self._channels:
            channel.close()

    def view(self) -> LoadView:
        """The last answers, in numbers."""
        with self._lock:
            answers = list(self._answers)
            counts = (self._sent, self._failed, self._shed)
        return LoadView(
            sent=counts[0],
            failed=counts[1],
            shed=counts[2],
            ttft_p50_s=statistics.median([a[0] for a in answers] or [0.0]),
            hit_rate=statistics.fmean([a[1] for a in answers] or [0.0]),
        )

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._closed.wait(max(0.0, due_s - time.monotonic())):
            due_s += self._period_s
            self._send()

    def _send(self) -> None:
        with self._lock:
            if self._in_flight >= _IN_FLIGHT:
                self._shed += 1
                return
            self._sent += 1
            self._in_flight += 1
            number = self._sent
        session = self._rng.randrange(_SESSIONS)
        blocks = [*range(_SYSTEM_BLOCKS), *self._grown(session)]
        call = self._stubs[session % len(self._stubs)].Prefill.future(
            pool_pb2.PrefillRequest(
                request_id=f"load-{number}",
                session=f"session-{session}",
                input_length=len(blocks) * BLOCK_TOKENS - self._rng.randrange(64),
                hash_ids=np.array(blocks, "<i8").tobytes(),
            ),
            timeout=_TIMEOUT_S,
        )
        call.add_done_callback(self._done)

    def _grown(self, session: int) -> list[int]:
        """The session's own blocks, one or two more than before; long ones restart."""
        blocks = self._sessions[session]
        if len(blocks) > _BLOCKS_MOST:
            blocks.clear()
        for _ in range(self._rng.randint(1, 2)):
            self._fresh_block += 1
            blocks.append(self._fresh_block)
        return blocks

    def _done(self, call: grpc.Future[pool_pb2.PrefillResponse]) -> None:
        answer = None if call.cancelled() or call.exception() else call.result()
        with self._lock:
            self._in_flight -= 1
            if answer is None and self._closed.is_set():
                return
            if answer is None or not answer.ok:
                self._failed += 1
                return
            hit = 1 - answer.recomputed_tokens / answer.input_tokens
            self._answers.append((answer.ttft_modelled_s, hit))
