"""The only way from HiCache to the pool: breaker, quarantine and negative cache.

Every storage operation starts and ends here, so that nothing is sent while the breaker
is open and every result is counted once, also that of an operation that never returns.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl.core.breaker import GAUGE, Admission, Breaker, BreakerState, Kind
from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.core.fault_router import FaultRouter
from refimpl.core.negative_cache import NegativeCache
from refimpl.core.quarantine import Quarantine
from refimpl.hicache.storage.base import StorageResult

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from refimpl.failpoints import Failpoints
    from refimpl.hicache.counters import Counters
    from refimpl.hicache.settings import HiCacheSettings

_KINDS = {"exists": Kind.LOOKUP, "get": Kind.READ, "put": Kind.WRITE}
_SLOW_MARGIN = 1.5
_OVERDUE_GRACE_S = 0.1
"""How long after its budget a call may still come back and name the guilty."""


@dataclass(slots=True, eq=False)
class Call:
    """One storage operation under way. `settled`: its result is counted."""

    name: str
    """exists, get or put."""
    admission: Admission
    started: float
    budget_s: float
    avoid: frozenset[str]
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an operation was for the breaker: for the request's own record."""

    outcome: Outcome
    deadline: bool = False
    slow: bool = False
    isolated: frozenset[str] = field(default_factory=frozenset)

    @property
    def fault(self) -> bool:
        """It counted against somebody."""
        return self.outcome is Outcome.FAULT or self.deadline or self.slow


class BreakerHandle:
    """The breaker for operators and reports: thread-safe, on the cache's clock."""

    def __init__(
        self, breaker: Breaker, lock: threading.RLock, clock: Callable[[], float]
    ) -> None:
        self._breaker = breaker
        self._lock = lock
        self._clock = clock

    @property
    def state(self) -> BreakerState:
        """The state of this instant."""
        with self._lock:
            self._breaker.tick(self._clock())
            return self._breaker.state

    @property
    def generation(self) -> int:
        """Grows with every transition."""
        with self._lock:
            return self._breaker.generation

    def force(self, state: BreakerState | str | None) -> None:
        """Holds a state until `force(None)`, which closes the breaker."""
        target = BreakerState(state) if isinstance(state, str) else state
        with self._lock:
            self._breaker.force(target, self._clock())


class Gate:
    """Admits, counts and judges storage operations. Thread-safe."""

    def __init__(
        self,
        settings: HiCacheSettings,
        clock: Callable[[], float],
        failpoints: Failpoints,
        rng: random.Random,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._failpoints = failpoints
        self._counters = counters
        self._lock = threading.RLock()
        self._breaker = Breaker(settings.breaker, rng)
        self._quarantine = Quarantine(settings.quarantine)
        self._router = FaultRouter(self._breaker, self._quarantine)
        self._negative = NegativeCache(
            settings.negative_ttl_s, settings.negative_capacity
        )
        self._calls: dict[int, Call] = {}
        self._calls_while_open = 0
        self._doubt = False
        self._no_doubt_until = float("-inf")
        self.breaker = BreakerHandle(self._breaker, self._lock, clock)

    # --- operations ---

    def passes(self) -> bool:
        """True while ordinary operations are admitted."""
        return self.breaker.state is BreakerState.CLOSED

    def start(self, name: str, budget_s: float) -> Call | None:
        """Leave to send one operation, or None: the breaker is not closed."""
        now = self._clock()
        with self._lock:
            self._breaker.tick(now)
            if self._breaker.state is not BreakerState.CLOSED:
                self._counters.label("storage_operations_refused", name)
                return None
            admission = self._breaker.admit(now)
            assert admission is not None
            call = Call(name, admission, now, budget_s, self._quarantine.blocked(now))
            self._calls[id(call)] = call
        self._count(name)
        return call

    def settle(
        self,
        call: Call,
        result: StorageResult,
        *,
        cancelled: bool = False,
        deadline: bool = False,
        tokens: int = 0,
        elapsed_s: float | None = None,
        quiet: bool = False,
    ) -> Verdict:
        """Counts the result of a call and judges it.

        Args:
            call: what `start` answered.
            result: checked codes.
            cancelled: the caller took it back early, for reasons of its own.
            deadline: the request's deadline ended it.
            tokens: what recomputing its pages would cost, for the slow rule.
            elapsed_s: if more than this call belongs to the read.
            quiet: a good result is no sample, another operation follows that is.
        """
        now = self._clock()
        kind = _KINDS[call.name]
        read = kind is not Kind.WRITE
        outcome = worst(result.codes, avoided=bool(call.avoid))
        took = now - call.started
        late = read and (deadline or _timed_out(result.codes, took, call.budget_s))
        slow = read and self._slow(tokens, took if elapsed_s is None else elapsed_s)
        ours = cancelled and not deadline
        with self._lock:
            self._calls.pop(id(call), None)
            if not ours:
                self._count_codes(call, result, late, slow)
            if call.settled:
                return Verdict(outcome=outcome, deadline=late, slow=slow)
            call.settled = True
            good = not (outcome is Outcome.FAULT or late or slow)
            if quiet and good:
                self._breaker.good(call.admission, kind, now)
            if ours or (quiet and good) or self._blind(good):
                self._breaker.abandon(call.admission, now)
                return Verdict(outcome=Outcome.SUCCESS if ours else outcome)
            isolated = self._router.record(
                call.admission,
                outcome,
                now,
                endpoints=(
                    self._slow_endpoints(result, tokens)
                    if slow and outcome is not Outcome.FAULT
                    else _endpoints(result)
                ),
                slow=slow,
                read_deadline=late,
                kind=kind,
            )
            self._doubt |= bool(isolated) or late
            return Verdict(outcome=outcome, deadline=late, slow=slow, isolated=isolated)

    def settle_overdue(self) -> int:
        """Counts calls that do not come back, without a name; answers how many."""
        now = self._clock()
        with self._lock:
            overdue = [
                c
                for c in self._calls.values()
                if now > c.started + c.budget_s + _OVERDUE_GRACE_S and not c.settled
            ]
            for call in overdue:
                call.settled = True
                if self._blind(False):
                    continue
                self._router.record(
                    call.admission,
                    Outcome.FAULT,
                    now,
                    read_deadline=call.name != "put",
                    kind=_KINDS[call.name],
                )
                self._doubt |= call.name != "put"
        for call in overdue:
            self._counters.label("timeouts", call.name)
        return len(overdue)

    def guarded(
        self, count: int, ask: Callable[[], object], *, bare: bool = False
    ) -> StorageResult:
        """Calls the backend; whatever it does becomes `count` codes.

        Args:
            count: keys asked.
            ask: the call.
            bare: it answers codes, not a `StorageResult`.
        """
        try:
            answer = ask()
        except Exception as error:
            # A cache may fail in any way, and no way may reach the request. Counted
            # by type, so that it does not go unseen.
            self._counters.label("exceptions", type(error).__name__)
            return failed(count)
        return _checked(answer, count, bare=bare)

    # --- keys that failed ---

    def failed_before(self, keys: bytes) -> NDArray[np.bool_]:
        """One flag a key: it failed lately and is not to be asked for."""
        with self._lock:
            return self._negative.contains(keys, self._clock())

    def remember_failed(self, keys: bytes) -> None:
        """Keys that were located and could not be read."""
        with self._lock:
            self._negative.add(keys, self._clock())

    def forget_failed(self, keys: bytes) -> None:
        """Keys that were read or written well."""
        with self._lock:
            self._negative.discard(keys)

    # --- probes ---

    def start_probe(self) -> Admission | None:
        """The half-open slot, when the breaker is ready to be probed."""
        now = self._clock()
        with self._lock:
            self._breaker.tick(now)
            if self._breaker.state is not BreakerState.HALF_OPEN:
                return None
            return self._breaker.admit(now)

    def end_probe(self, admission: Admission, result: StorageResult) -> None:
        """Judges a probe; what is neutral gives the slot back."""
        now = self._clock()
        outcome = worst(result.codes)
        with self._lock:
            never = self._failpoints.enabled("defect.breaker_never_closes")
            if never and outcome is not Outcome.FAULT:
                self._breaker.abandon(admission, now)
                return
            self._breaker.record(admission, outcome, now)
            if self._breaker.state is BreakerState.CLOSED:
                self._negative.clear()

    def due_endpoint(self) -> str | None:
        """A quarantined endpoint to probe now; its slot is taken."""
        now = self._clock()
        with self._lock:
            if self._breaker.state is not BreakerState.CLOSED:
                return None
            for name in sorted(self._quarantine.blocked(now)):
                if self._quarantine.probe(name, now):
                    return name
        return None

    def end_endpoint_probe(self, endpoint: str, code: int) -> None:
        """Judges the probe of an endpoint."""
        now = self._clock()
        with self._lock:
            if code == Code.SEGMENT_NOT_FOUND:
                self._quarantine.forget(endpoint, now)
            elif outcome_of(code) in (Outcome.ADMISSION, Outcome.CALLER):
                self._quarantine.abandon(endpoint, now)
            else:
                ok = outcome_of(code) is not Outcome.FAULT
                self._quarantine.record(endpoint, ok, now)
            if endpoint not in self._quarantine.blocked(now):
                self._negative.clear()

    def doubted(self) -> bool:
        """True when witnesses should be heard: is it the pool that fails?

        After a read ran into its deadline or a store was isolated, once an interval.
        """
        now = self._clock()
        with self._lock:
            closed = self._breaker.state is BreakerState.CLOSED
            if not (self._doubt and closed) or now < self._no_doubt_until:
                return False
            self._doubt = False
            self._no_doubt_until = now + self._settings.quarantine.probe_interval_s
            return True

    def trip(self, reason: str) -> None:
        """Opens the breaker on better evidence than its window."""
        with self._lock:
            if not self._blind(False):
                self._breaker.trip(self._clock(), reason)

    def blocked(self) -> frozenset[str]:
        """Endpoints to avoid."""
        with self._lock:
            return self._quarantine.blocked(self._clock())

    def may_probe(self, name: str) -> bool:
        """Counts an operation that goes past `start`; False: open meanwhile."""
        with self._lock:
            self._breaker.tick(self._clock())
            if self._breaker.state is BreakerState.OPEN:
                return False
            self._count(name)
            return True

    # --- upkeep ---

    def tick(self) -> bool:
        """Lets time act; answers whether something waits for time."""
        now = self._clock()
        with self._lock:
            self._breaker.tick(now)
            self._negative.expire(now)
            busy = self._breaker.state is not BreakerState.CLOSED
            held = bool(self._quarantine.blocked(now))
            return busy or held or self._doubt or bool(self._calls)

    def reset(self) -> None:
        """Trusts everybody again."""
        now = self._clock()
        with self._lock:
            self._breaker.force(None, now)
            self._quarantine.clear(now)
            self._router.clear()
            self._negative.clear()
            self._breaker.transitions.clear()
            self._quarantine.events.clear()
            self._doubt = False
            self._calls_while_open = 0

    def state(self) -> dict[str, Any]:
        """Breaker, quarantine and negative cache, JSON-able."""
        now = self._clock()
        with self._lock:
            b, q = self._breaker, self._quarantine
            b.tick(now)
            return {
                "breaker": {
                    "state": b.state.value,
                    "gauge": GAUGE[b.state],
                    "generation": b.generation,
                    "forced": b.forced,
                    "probing": b.probing,
                    "open_until": b.open_until,
                    "inconclusive_probes": b.inconclusive_probes,
                    "transition_count": b.transition_count,
                    "transitions": [
                        {
                            "at": t.at,
                            "from": t.from_.value,
                            "to": t.to.value,
                            "reason": t.reason,
                        }
                        for t in b.transitions
                    ],
                    "storage_calls_while_open": self._calls_while_open,
                },
                "quarantine": {
                    "blocked": sorted(q.blocked(now)),
                    "events": [
                        {
                            "at": e.at,
                            "endpoint": e.endpoint,
                            "kind": e.kind,
                            "reason": e.reason,
                        }
                        for e in q.events
                    ],
                },
                "negative_cache": {"keys": len(self._negative)},
                "now": now,
            }

    # --- inside ---

    def _count(self, kind: str) -> None:
        self._counters.label("storage_operations", kind)
        with self._lock:
            self._calls_while_open += self._breaker.state is BreakerState.OPEN

    def _blind(self, good: bool) -> bool:
        """The mutant that never opens does not hear of faults."""
        return not good and self._failpoints.enabled("defect.breaker_never_opens")

    def _slow(self, tokens: int, took_s: float) -> bool:
        """Slower than recomputing by a clear margin; measured times are noisy."""
        speed = self._settings.prefill_tokens_per_s
        if not speed or not tokens:
            return False
        floor_s = _SLOW_MARGIN * self._settings.slow_floor_s
        floor_s = min(floor_s, 0.75 * self._settings.prefetch.base_s)
        return took_s > max(floor_s, _SLOW_MARGIN * tokens / speed)

    def _slow_endpoints(self, result: StorageResult, tokens: int) -> Mapping[str, bool]:
        """Of a slow read: the stores that were slow themselves are under suspicion.

        All that were asked are, where none is known to have been.
        """
        slow = {n for n, at_s in result.heard_s.items() if self._slow(tokens, at_s)}
        guilty = slow & set(result.asked) or set(result.asked)
        return {name: name not in guilty for name in result.asked}

    def _count_codes(
        self, call: Call, result: StorageResult, late: bool, slow: bool
    ) -> None:
        values, counts = np.unique(result.codes, return_counts=True)
        for code, count in zip(values.tolist(), counts.tolist(), strict=True):
            outcome = outcome_of(code)
            if outcome is Outcome.FAULT:
                self._counters.label("fault_keys", _name(code), count)
            elif outcome is Outcome.MISS:
                self._counters.add("miss_keys", count)
        if worst(result.codes, avoided=bool(call.avoid)) is Outcome.FAULT:
            self._counters.label("faults", _name(_worst_code(result.codes)))
        if late:
            self._counters.label("timeouts", call.name)
        if slow:
            self._counters.label("slow_operations", call.name)


def failed(count: int, code: int = Code.INTERNAL_ERROR) -> StorageResult:
    """A result in which every key has the same code."""
    return StorageResult(codes=np.full(count, code, np.int16))


def worst(codes: NDArray[np.int16], *, avoided: bool = False) -> Outcome:
    """The outcome of an operation: its worst fault, else its best news.

    A key whose replicas are all on avoided stores (REPLICA_NOT_FOUND) is a miss.
    """
    outcomes = {outcome_of(int(c)) for c in _distinct(codes, avoided=avoided)}
    for outcome in (Outcome.FAULT, Outcome.SUCCESS, Outcome.MISS, Outcome.ADMISSION):
        if outcome in outcomes:
            return outcome
    return Outcome.CALLER if outcomes else Outcome.SUCCESS


def _distinct(codes: NDArray[np.int16], *, avoided: bool) -> NDArray[np.int16]:
    found = np.unique(codes)
    return found[found != Code.REPLICA_NOT_FOUND] if avoided else found


def _worst_code(codes: NDArray[np.int16]) -> int:
    faults: list[int] = [c for c in codes.tolist() if outcome_of(c) is Outcome.FAULT]
    return min(faults)


def _name(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)


def _timed_out(codes: NDArray[np.int16], took_s: float, budget_s: float) -> bool:
    return took_s >= 0.9 * budget_s and bool((codes == Code.RPC_TIMEOUT).any())


def _endpoints(result: StorageResult) -> Mapping[str, bool]:
    """Who answered well."""
    return {
        name: outcome_of(code) is not Outcome.FAULT
        for name, code in result.endpoints.items()
    }


def _checked(answer: object, count: int, *, bare: bool) -> StorageResult:
    """What a backend answered, or INTERNAL_ERROR for every key if it makes no sense."""
    codes = answer if bare else getattr(answer, "codes", None)
    try:
        array = np.asarray(codes, np.int16)
    except (TypeError, ValueError, OverflowError):
        return failed(count)
    if array.shape != (count,):
        return failed(count)
    if bare or not isinstance(answer, StorageResult):
        return StorageResult(codes=array)
    return StorageResult(
        codes=array,
        endpoints=answer.endpoints,
        asked=answer.asked,
        heard_s=answer.heard_s,
    )
