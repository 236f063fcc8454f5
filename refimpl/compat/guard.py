"""A breaker around calls of a store: never an exception, never a call while it is open.

SGLang asks its storage from threads that nobody restarts: an exception there ends the
use of the third tier for the life of the process, and a storage that hangs holds up
each request in turn. What goes wrong here is an answer like any other.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from refimpl.core.breaker import Breaker, BreakerSettings, BreakerState, Kind
from refimpl.core.codes import Code, Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG: Final = logging.getLogger(__name__)
_REFUSED: Final = int(Code.UNAVAILABLE_IN_CURRENT_STATUS)


class Guard:
    """Admits calls, judges their codes. Safe from several threads.

    Args:
        settings: of the breaker.
        clock: monotonic seconds.
        rng: jitter of the breaker.
    """

    def __init__(
        self,
        settings: BreakerSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._breaker = Breaker(settings or BreakerSettings(), rng or random.Random())
        self.counts: Counter[str] = Counter()

    @property
    def state(self) -> BreakerState:
        """What the breaker is now."""
        with self._lock:
            self._breaker.tick(self._clock())
            return self._breaker.state

    def call(
        self, kind: Kind, count: int, call: Callable[[], Sequence[int]]
    ) -> list[int]:
        """Makes a call of `count` keys; their codes, or one code for all."""
        with self._lock:
            admission = self._breaker.admit(self._clock())
        if admission is None:
            self._count(kind, "refused")
            return [_REFUSED] * count
        try:
            codes = list(call())
        except Exception:
            _LOG.exception("%s of %d keys broke", kind.value, count)
            codes = [int(Code.INTERNAL_ERROR)] * count
        outcome = worst(codes)
        late = kind is Kind.READ and Code.RPC_TIMEOUT in codes
        with self._lock:
            now = self._clock()
            probes = self._breaker.state is BreakerState.HALF_OPEN
            # The master alone answers a lookup: it says nothing of the stores.
            if probes and kind is Kind.LOOKUP and outcome is not Outcome.FAULT:
                self._breaker.abandon(admission, now)
            else:
                self._breaker.record(
                    admission, outcome, now, read_deadline=late, kind=kind
                )
        self._count(kind, outcome.value)
        return codes

    def _count(self, kind: Kind, what: str) -> None:
        with self._lock:
            self.counts[f"{kind.value}_{what}"] += 1


def worst(codes: Sequence[int]) -> Outcome:
    """The outcome of a call: a fault if any key met one, neutral if nothing else."""
    outcomes = {outcome_of(code) for code in codes}
    order = (Outcome.FAULT, Outcome.SUCCESS, Outcome.MISS, Outcome.ADMISSION)
    return next((one for one in order if one in outcomes), Outcome.CALLER)
