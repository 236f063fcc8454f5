"""What each toxic does to one direction of one connection: pure, driven by `now`.

A link's toxics form a chain of stages. Data enters the first as chunks with their
arrival time and leaves the last towards the socket; a stage holds what it delays in a
bounded queue and says when it wants to be called again. Nothing here knows a socket.
"""

from __future__ import annotations

import random
from collections import deque
from enum import Enum, unique
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from chaos.proxy.toxics import Counter, Toxic

    Data = bytes | bytearray | memoryview

#: Most bytes a stage holds before it stops accepting: then TCP pushes back.
HELD_BYTES = 256 << 10
#: A latency stage holds a bandwidth-delay product instead: 160 MB/s at 100 ms.
LATENCY_HELD_BYTES = 16 << 20
#: A rate-limited stage never makes up for more idle or blocked time than this, seconds.
CATCH_UP_S = 0.05


@unique
class Demand(Enum):
    """What a stage wants done to its whole connection."""

    NONE = "none"
    CLOSE = "close"
    CLOSE_AFTER_FLUSH = "close after flush"
    RESET = "reset"


class Sink(Protocol):
    """Where a stage puts its output: the next stage, or the socket's queue."""

    ended: bool

    def accepts(self) -> bool: ...
    def put(self, data: Data, stamp: float) -> None: ...
    def end(self, now: float) -> None: ...


class Stage:
    """Passes data through unchanged; the toxics are its subclasses.

    `ended` says that the end of the stream came in, `closed` that it went out.
    `lost` counts bytes that went in and will never come out.
    """

    capacity: ClassVar[int] = HELD_BYTES

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        self.toxic = toxic
        self.rng = rng
        self.started = now
        self.inbox: deque[tuple[Data, float]] = deque()
        self.held = 0
        self.ended = False
        self.ended_at = 0.0
        self.closed = False
        self.lost = 0
        self.hits = 0
        self.hit_bytes = 0
        self.demand = Demand.NONE

    def accepts(self) -> bool:
        return self.held < self.capacity

    def put(self, data: Data, stamp: float) -> None:
        self.inbox.append((data, stamp))
        self.held += len(data)

    def end(self, now: float) -> None:
        if not self.ended:
            self.ended = True
            self.ended_at = now

    def step(self, now: float, sink: Sink) -> bool:
        """Moves what is due to the sink; True when anything moved."""
        moved = self._work(now, sink)
        if self.ended and not self.inbox and not self.closed and self._may_end(now):
            self.closed = True
            sink.end(now)
            return True
        return moved

    def due(self) -> float | None:
        """When to call `step` again although nothing came in; None for never."""
        return None

    def changed(self, now: float) -> None:
        """The toxic's attributes were updated."""

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        while self.inbox and sink.accepts():
            data, stamp = self._pop()
            sink.put(data, stamp)
            moved = True
        return moved

    def _may_end(self, now: float) -> bool:
        return True

    def _pop(self) -> tuple[Data, float]:
        data, stamp = self.inbox.popleft()
        self.held -= len(data)
        return data, stamp

    def _push_back(self, data: Data, stamp: float) -> None:
        self.inbox.appendleft((data, stamp))
        self.held += len(data)

    def _hit(self, size: int) -> None:
        self.hits += 1
        self.hit_bytes += size
        self._counter().hit(size)

    def _counter(self) -> Counter:
        return self.toxic.counter


class LatencyStage(Stage):
    """Delays every chunk by latency +/- jitter milliseconds, in order.

    A chunk counts as hit when it comes in: its receiver may give up before it leaves.
    """

    capacity = LATENCY_HELD_BYTES

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._delay_s: float | None = None

    def put(self, data: Data, stamp: float) -> None:
        super().put(data, stamp)
        if any(self.toxic.attributes.values()):
            self._hit(len(data))

    def due(self) -> float | None:
        if not self.inbox:
            return None
        return self.inbox[0][1] + self._delay()

    def changed(self, now: float) -> None:
        self._delay_s = None

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        while self.inbox and sink.accepts():
            due = self.inbox[0][1] + self._delay()
            if due > now:
                break
            data, _ = self._pop()
            self._delay_s = None
            sink.put(data, due)
            moved = True
        return moved

    def _delay(self) -> float:
        if self._delay_s is None:
            latency_ms = self.toxic.attributes["latency"]
            jitter_ms = self.toxic.attributes["jitter"]
            if jitter_ms > 0:
                latency_ms += self.rng.randrange(-jitter_ms, jitter_ms)
            self._delay_s = max(0.0, latency_ms / 1000)
        return self._delay_s


class BandwidthStage(Stage):
    """Lets `rate` KB/s (1 KB = 1000 bytes) through, in pieces of 10 ms; 0 stalls."""

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._paid_until = now

    def due(self) -> float | None:
        rate = self._rate()
        if not self.inbox or rate <= 0:
            return None
        return self._piece(rate)[1]

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        rate = self._rate()
        if rate <= 0:
            return False
        self._paid_until = max(self._paid_until, now - CATCH_UP_S)
        while self.inbox and sink.accepts():
            size, due = self._piece(rate)
            if due > now:
                break
            self._paid_until = due
            data, stamp = self._pop()
            if size < len(data):
                view = memoryview(data)
                self._push_back(view[size:], stamp)
                data = view[:size]
            self._hit(size)
            sink.put(data, due)
            moved = True
        return moved

    def _piece(self, rate: int) -> tuple[int, float]:
        data, stamp = self.inbox[0]
        size = min(len(data), max(1, rate // 100))
        return size, max(self._paid_until, stamp) + size / rate

    def _rate(self) -> int:
        """Bytes per second."""
        return self.toxic.attributes["rate"] * 1000


class SlowCloseStage(Stage):
    """Passes the end of the stream on `delay` ms late."""

    def due(self) -> float | None:
        if self.ended and not self.closed and not self.inbox:
            return self._end_at()
        return None

    def _may_end(self, now: float) -> bool:
        if now < self._end_at():
            return False
        self._hit(0)
        return True

    def _end_at(self) -> float:
        return self.ended_at + self.toxic.attributes["delay"] / 1000


class TimeoutStage(Stage):
    """Drops all data; closes the connection after `timeout` ms, 0 for never.

    The clock starts when the toxic meets the connection. With 0 it is a black hole:
    connected, silent, for ever. The end of a stream passes, as in Toxiproxy.
    """

    def due(self) -> float | None:
        deadline = self._deadline()
        return None if self.demand is not Demand.NONE else deadline

    def changed(self, now: float) -> None:
        self.started = now

    def _work(self, now: float, sink: Sink) -> bool:
        moved = bool(self.inbox)
        while self.inbox:
            data, _ = self._pop()
            self.lost += len(data)
            self._hit(len(data))
        deadline = self._deadline()
        if deadline is not None and now >= deadline:
            self.demand = Demand.CLOSE
        return moved

    def _deadline(self) -> float | None:
        timeout_ms = self.toxic.attributes["timeout"]
        return self.started + timeout_ms / 1000 if timeout_ms > 0 else None


class ResetStage(Stage):
    """Resets the connection, both ends, `timeout` ms after it met it; holds data.

    Toxiproxy waits for data first, and sends RST only on connections younger than the
    toxic; here the reset needs neither.
    """

    def due(self) -> float | None:
        return self._deadline() if self.demand is Demand.NONE else None

    def changed(self, now: float) -> None:
        self.started = now

    def _work(self, now: float, sink: Sink) -> bool:
        if self.demand is Demand.NONE and now >= self._deadline():
            self.demand = Demand.RESET
            self._hit(self.held)
        return False

    def _deadline(self) -> float:
        return self.started + max(0, self.toxic.attributes["timeout"]) / 1000


class SlicerStage(Stage):
    """Cuts chunks into pieces of average_size +/- size_variation, `delay` us apart."""

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._next_at = now

    def due(self) -> float | None:
        return self._next_at if self.inbox else None

    def _work(self, now: float, sink: Sink) -> bool:
        if self.toxic.attributes["average_size"] <= 0:
            return super()._work(now, sink)
        moved = False
        self._next_at = max(self._next_at, now - CATCH_UP_S)
        delay_s = max(0, self.toxic.attributes["delay"]) / 1e6
        while self.inbox and sink.accepts() and self._next_at <= now:
            self._slice(sink)
            self._next_at += delay_s
            moved = True
        return moved

    def _slice(self, sink: Sink) -> None:
        data, stamp = self._pop()
        size = self._size()
        if size < len(data):
            view = memoryview(data)
            self._push_back(view[size:], stamp)
            data = view[:size]
        self._hit(len(data))
        sink.put(data, stamp)

    def _size(self) -> int:
        average = self.toxic.attributes["average_size"]
        variation = min(self.toxic.attributes["size_variation"], average - 1)
        if variation <= 0:
            return average
        return self.rng.randint(average - variation, average + variation)


class LimitStage(Stage):
    """Closes the connection after `bytes` bytes went through."""

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._passed = 0

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        while self.inbox and sink.accepts() and self.demand is Demand.NONE:
            data, stamp = self._pop()
            left = max(0, self.toxic.attributes["bytes"] - self._passed)
            if left < len(data):
                self.lost += len(data) - left
                data = memoryview(data)[:left]
            if data:
                sink.put(data, stamp)
                self._passed += len(data)
            if self._passed >= self.toxic.attributes["bytes"]:
                self.demand = Demand.CLOSE_AFTER_FLUSH
                self._hit(self._passed)
            moved = True
        return moved


class StallStage(Stage):
    """Lets `bytes` bytes through and holds the rest: nothing lost, nobody closes."""

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._passed = 0

    def put(self, data: Data, stamp: float) -> None:
        super().put(data, stamp)
        if self._passed + self.held > self.toxic.attributes["bytes"]:
            self._hit(len(data))

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        while self.inbox and sink.accepts():
            left = self.toxic.attributes["bytes"] - self._passed
            if left <= 0:
                break
            data, stamp = self._pop()
            if left < len(data):
                view = memoryview(data)
                self._push_back(view[left:], stamp)
                data = view[:left]
            self._passed += len(data)
            sink.put(data, stamp)
            moved = True
        return moved


class CorruptStage(Stage):
    """Flips one bit in every `every_bytes` bytes after the first `skip_bytes`.

    The place in each window and the bit are drawn from the connection's generator;
    `every_bytes` 0 flips one bit, once, right after the skip. `count` bounds the flips.
    """

    def __init__(self, toxic: Toxic, rng: random.Random, now: float) -> None:
        super().__init__(toxic, rng, now)
        self._seen = 0
        self._flips = 0
        self._window = 0
        self._next = self._draw()

    def changed(self, now: float) -> None:
        self._window = self._flips = 0
        self._seen = 0
        self._next = self._draw()

    def _work(self, now: float, sink: Sink) -> bool:
        moved = False
        while self.inbox and sink.accepts():
            data, stamp = self._pop()
            sink.put(self._flip(data), stamp)
            moved = True
        return moved

    def _flip(self, data: Data) -> Data:
        end = self._seen + len(data)
        if self._exhausted() or self._next >= end:
            self._seen = end
            return data
        changed = bytearray(data)
        while not self._exhausted() and self._next < end:
            changed[self._next - self._seen] ^= 1 << self.rng.randrange(8)
            self._flips += 1
            self._window += 1
            self._next = self._draw()
        self._seen = end
        self._hit(len(data))
        return changed

    def _draw(self) -> int:
        """Offset in the stream of the next bit to flip."""
        skip = max(0, self.toxic.attributes["skip_bytes"])
        every = self.toxic.attributes["every_bytes"]
        if every <= 0:
            return skip
        return skip + self._window * every + self.rng.randrange(every)

    def _exhausted(self) -> bool:
        limit = self.toxic.attributes["count"]
        if self.toxic.attributes["every_bytes"] <= 0:
            limit = 1
        return limit > 0 and self._flips >= limit


_STAGES: dict[str, type[Stage]] = {
    "latency": LatencyStage,
    "bandwidth": BandwidthStage,
    "slow_close": SlowCloseStage,
    "timeout": TimeoutStage,
    "reset_peer": ResetStage,
    "slicer": SlicerStage,
    "limit_data": LimitStage,
    "stall_after": StallStage,
    "corrupt": CorruptStage,
}


def stage_for(toxic: Toxic, seed: str, now: float) -> Stage | None:
    """A fresh stage; None for a type that acts on connections, not on their data."""
    kind = _STAGES.get(toxic.type)
    return None if kind is None else kind(toxic, random.Random(seed), now)
