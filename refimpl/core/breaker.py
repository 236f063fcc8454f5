"""The circuit breaker between one engine and the pool (system facts 5.8).

Upstream has none; its lessons are others' wrecks: a latch without a way back
(LMCache#4368: 45 h of local-only service), a breaker that ignores misses and so never
closes (erpc#1118), a half-open slot lost for ever (mcp-server#221), a late success that
closes it. Pure: `now` is handed in, jitter comes from the passed generator, and the
caller serialises the calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Self

from refimpl.core.codes import Outcome
from refimpl.core.scaling import scale

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

_NEUTRAL = (Outcome.ADMISSION, Outcome.CALLER)
_NOBODY: Mapping[str, bool] = {}


@unique
class BreakerState(Enum):
    """CLOSED lets everything through, OPEN nothing, HALF_OPEN one probe at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


GAUGE = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}
"""Values of the gauge `hicache_breaker_state`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When to open, how long to stay so, and what it takes to close again."""

    window_s: float = 10.0
    min_samples: int = 20
    fault_ratio: float = 0.5
    consecutive_deadlines: int = 5
    open_for_s: float = 5.0
    open_for_factor: float = 2.0
    open_for_max_s: float = 60.0
    jitter: float = 0.2
    """Share of `open_for` that the generator may add or take away."""
    probes_to_close: int = 3
    probe_deadline_s: float = 1.0
    """The lease of a probe: after it the slot is free for the next one."""
    samples_kept: int = 1024
    transitions_kept: int = 256

    def scaled(self, factor: float) -> Self:
        """Every duration times `factor`."""
        return scale(self, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Leave to make one storage operation; its result counts only in `generation`."""

    generation: int
    probe: bool
    deadline: float
    """Instant at which a probe loses its slot; infinite for ordinary calls."""
    serial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One change of state, for the event log."""

    at: float
    from_: BreakerState
    to: BreakerState
    reason: str


@unique
class Kind(Enum):
    """What an operation does: a lookup only asks whether and where, a read moves data.

    They are kept apart where one path in health could hide that another is dead: misses
    are answered by the master alone, and so say nothing of the stores.
    """

    LOOKUP = "lookup"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    fault: bool
    kind: Kind
    names: frozenset[str]


class Breaker:
    """Decides whether the pool may be asked; one per engine and pool.

    Samples are storage operations. Reads are also judged by themselves, so that neither
    a healthy write path nor timely misses hide a read path that fails.
    """

    def __init__(self, settings: BreakerSettings, rng: random.Random) -> None:
        self.settings = settings
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.transitions: deque[Transition] = deque(maxlen=settings.transitions_kept)
        self.transition_count = 0
        self.inconclusive_probes = 0
        self.forced = False
        self.open_until = 0.0
        self._rng = rng
        self._trips = 0
        self._closed_at = float("-inf")
        self._serial = 0
        self._probe: Admission | None = None
        self._good_probes = 0
        self._samples: deque[_Sample] = deque(maxlen=settings.samples_kept)
        self._runs: dict[Kind, deque[frozenset[str]]] = {
            kind: deque(maxlen=max(1, settings.consecutive_deadlines))
            for kind in (Kind.LOOKUP, Kind.READ)
        }

    def admit(self, now: float) -> Admission | None:
        """Leave for one operation, or None: nothing may be sent."""
        self.tick(now)
        if self.state is BreakerState.CLOSED:
            return Admission(
                generation=self.generation, probe=False, deadline=float("inf")
            )
        if self.state is BreakerState.OPEN or self._probe is not None:
            return None
        self._serial += 1
        self._probe = Admission(
            generation=self.generation,
            probe=True,
            deadline=now + self.settings.probe_deadline_s,
            serial=self._serial,
        )
        return self._probe

    def record(
        self,
        admission: Admission,
        outcome: Outcome,
        now: float,
        *,
        endpoints: Mapping[str, bool] = _NOBODY,
        slow: bool = False,
        read_deadline: bool = False,
        kind: Kind = Kind.READ,
    ) -> None:
        """Counts the result of an admitted operation, unless it comes too late.

        Args:
            admission: what `admit` answered for it.
            outcome: the worst outcome among its keys. Neutral ones are no sample.
            now: the instant of the result.
            endpoints: stores asked, True where the store answered well.
            slow: took longer than recomputing its tokens would have: a fault.
            read_deadline: a read ended by its deadline: a fault, and counted apart.
            kind: what it did; its success ends a run of late ones of its kind.
        """
        self.tick(now)
        if admission.generation != self.generation:
            return
        fault = outcome is Outcome.FAULT or slow or read_deadline
        if not fault and outcome in _NEUTRAL:
            self.abandon(admission, now)
        elif self.state is BreakerState.HALF_OPEN:
            self._judge_probe(admission, fault, now)
        elif self.state is BreakerState.CLOSED:
            names = frozenset(name for name, ok in endpoints.items() if not ok)
            self._samples.append(_Sample(now, fault, kind, names))
            self._count_run(kind, fault, read_deadline or slow, names)
            if reason := self._trip_reason(now):
                self._open(now, reason)

    def good(self, admission: Admission, kind: Kind, now: float) -> None:
        """An operation went well and another one that follows is its sample."""
        self.tick(now)
        if admission.generation == self.generation and kind in self._runs:
            self._runs[kind].clear()

    def abandon(self, admission: Admission, now: float) -> None:
        """Ends an operation that tells nothing; the slot of a probe comes back."""
        self.tick(now)
        if admission.probe and admission == self._probe:
            self._probe = None
            self.inconclusive_probes += 1

    def tick(self, now: float) -> None:
        """Lets time act: OPEN may become HALF_OPEN, a probe may lose its lease."""
        if self.forced:
            return
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self._good_probes = 0
            self._move(BreakerState.HALF_OPEN, now, "open_for elapsed")
        if self._probe is not None and now >= self._probe.deadline:
            self._probe = None
            self.inconclusive_probes += 1

    def trip(self, now: float, reason: str) -> None:
        """Opens at once: somebody has better evidence than the window."""
        self.tick(now)
        if self.state is not BreakerState.OPEN and not self.forced:
            self._open(now, reason)

    def force(self, state: BreakerState | None, now: float = 0.0) -> None:
        """The operator's lever: holds a state until `force(None)`, which closes."""
        self.forced = state is not None
        target = BreakerState.CLOSED if state is None else state
        self._trips = 0
        self._forget()
        if target is not self.state:
            self._move(target, now, "operator" if self.forced else "operator released")

    def forgive(self, endpoint: str) -> None:
        """Takes back the faults of an endpoint that is now quarantined instead."""
        kept = [s for s in self._samples if not (s.fault and endpoint in s.names)]
        self._samples = deque(kept, maxlen=self.settings.samples_kept)
        for kind, run in self._runs.items():
            left = [names for names in run if endpoint not in names]
            self._runs[kind] = deque(left, maxlen=run.maxlen)

    @property
    def probing(self) -> bool:
        """True while a probe holds the half-open slot."""
        return self._probe is not None

    def _judge_probe(self, admission: Admission, fault: bool, now: float) -> None:
        if admission != self._probe:
            return
        self._probe = None
        if fault:
            self._open(now, "probe failed")
            return
        self._good_probes += 1
        if self._good_probes >= self.settings.probes_to_close:
            self._closed_at = now
            self._move(BreakerState.CLOSED, now, f"{self._good_probes} good probes")

    def _count_run(
        self, kind: Kind, fault: bool, too_late: bool, names: frozenset[str]
    ) -> None:
        """A read slower than recomputing stands in a run like one that never came."""
        run = self._runs.get(kind)
        if run is None:
            return
        if too_late:
            run.append(names)
        elif not fault:
            run.clear()

    def _trip_reason(self, now: float) -> str:
        """Why to open now, or "" to stay closed."""
        limit = self.settings.consecutive_deadlines
        for kind, run in self._runs.items():
            if len(run) >= limit:
                return f"{limit} consecutive {kind.value}s too late"
        while self._samples and self._samples[0].at <= now - self.settings.window_s:
            self._samples.popleft()
        return self._bad_ratio("operations", [s.fault for s in self._samples]) or (
            self._bad_ratio(
                "reads", [s.fault for s in self._samples if s.kind is Kind.READ]
            )
        )

    def _bad_ratio(self, what: str, faults: list[bool]) -> str:
        bad, total = sum(faults), len(faults)
        if total < self.settings.min_samples or not bad:
            return ""
        if bad < self.settings.fault_ratio * total:
            return ""
        return f"{bad} of {total} {what} failed"

    def _open(self, now: float, reason: str) -> None:
        """A re-trip soon after closing waits longer, like one from a bad probe."""
        if self.state is BreakerState.CLOSED and (
            now - self._closed_at > self.settings.window_s
        ):
            self._trips = 0
        s = self.settings
        base = min(s.open_for_max_s, s.open_for_s * s.open_for_factor**self._trips)
        self._trips = min(self._trips + 1, 64)
        spread = s.jitter * (2 * self._rng.random() - 1)
        self.open_until = now + base * (1 + spread)
        self._move(BreakerState.OPEN, now, reason)

    def _move(self, to: BreakerState, now: float, reason: str) -> None:
        self.transitions.append(
            Transition(at=now, from_=self.state, to=to, reason=reason)
        )
        self.transition_count += 1
        self.state = to
        self.generation += 1
        self._probe = None
        self._forget()

    def _forget(self) -> None:
        self._samples.clear()
        for run in self._runs.values():
            run.clear()
