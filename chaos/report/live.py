"""The line that lives while a suite runs: what is broken, since when, at what price.

On a terminal one line is rewritten; elsewhere a plain line is printed now and then.
TTFT is modelled, and the line says so.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.load.sample import Sample

WINDOW = 64
TTY_EVERY_S = 0.2
PLAIN_EVERY_S = 10.0
_CLEAR = "\r\x1b[2K"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    name: str
    since_s: float
    lasts_s: float | None


class LiveLine:
    """Shows the state of the run; any thread may feed it."""

    def __init__(
        self,
        stream: IO[str],
        *,
        tty: bool,
        clock: Callable[[], float] = time.monotonic,
        width: int = 100,
    ) -> None:
        self._stream, self._tty, self._clock, self._width = stream, tty, clock, width
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=WINDOW)
        self._faults: dict[str, _Fault] = {}
        self._test = ""
        self._failed = 0
        self._shown_at_s = float("-inf")
        self._dirty = False

    def test(self, name: str) -> None:
        """Another test begins; what was measured belongs to the one before."""
        with self._lock:
            self._test = name
            self._recent.clear()
            self._faults.clear()
            self._failed = 0
            self._draw(force=self._tty)

    def fault(self, name: str, *, lasts_s: float | None = None) -> None:
        """A fault is active from now on, for `lasts_s` if that is known."""
        with self._lock:
            now = self._clock()
            self._faults[name] = _Fault(name=name, since_s=now, lasts_s=lasts_s)
            self._draw(force=True)

    def healed(self, name: str) -> None:
        with self._lock:
            if self._faults.pop(name, None) is not None:
                self._draw(force=True)

    def sample(self, sample: Sample) -> None:
        """Takes one result of the load; fits `OpenLoop(on_sample=...)`."""
        answer = sample.answer
        with self._lock:
            if answer is None or not answer.ok:
                self._failed += sample.judged
            else:
                reused = answer.l1_tokens + answer.l2_tokens + answer.l3_tokens
                self._recent.append((sample.ttft_s, reused, answer.input_tokens))
            self._draw()

    def tick(self) -> None:
        """Redraws when it is time; call it from a waiting loop."""
        with self._lock:
            self._draw()

    def clear(self) -> None:
        """Takes the line away, so that something else can be printed."""
        with self._lock:
            if self._tty and self._dirty:
                self._stream.write(_CLEAR)
                self._stream.flush()
                self._dirty = False

    def text(self) -> str:
        """The line as it is now."""
        parts = [self._test] if self._test else []
        now = self._clock()
        parts += [_fault_text(fault, now) for fault in self._faults.values()]
        if not self._faults:
            parts.append("healthy")
        if self._recent:
            ttft_s = statistics.median(ttft for ttft, _, _ in self._recent)
            asked = sum(tokens for _, _, tokens in self._recent)
            used = sum(reused for _, reused, _ in self._recent)
            parts.append(f"TTFT p50 {ttft_s:.3f} s (modelled)")
            parts.append(f"hit rate {100 * used / max(1, asked):.0f} %")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return " | ".join(parts)

    def _draw(self, *, force: bool = False) -> None:
        now = self._clock()
        every_s = TTY_EVERY_S if self._tty else PLAIN_EVERY_S
        if not force and now - self._shown_at_s < every_s:
            return
        self._shown_at_s = now
        text = self.text()
        if self._tty:
            self._stream.write(_CLEAR + text[: self._width - 1])
            self._dirty = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def _fault_text(fault: _Fault, now: float) -> str:
    lasts = "" if fault.lasts_s is None else f" of {fault.lasts_s:.1f} s"
    return f"{fault.name} for {now - fault.since_s:.1f} s{lasts}"
