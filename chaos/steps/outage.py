"""Steps of the breaker's pages: prompts kept in the pool, its log, what was sent.

Everything here reads the engine's own state log and counters; times are seconds on the
monotonic clock that harness and engines share.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from chaos.errors import HarnessError
from chaos.judge.breaker import changes_of
from chaos.load.routing import SessionAffine, evenly
from chaos.safety.identity import wait_until
from chaos.steps import (
    again,
    ask,
    ask_together,
    data_links,
    prompt,
    wait_for,
    wait_idle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.driver import LoadDriver
    from chaos.faults.injector import Injection, Injector
    from chaos.judge.breaker import Change
    from chaos.load.sample import LoadRun, Sample
    from chaos.systems.base import Cluster, Request

WATCH_STEP_S = 0.02
WATCH_KEPT = 20_000
QUIET_STEP_S = 0.03
QUIET_READINGS = 4
QUIET_WAIT_S = 0.3
_KEEP_TRIES = 6
_KEEP_GAP_S = 0.005
_KEEP_WAIT_S = 0.5


def breaker_of(cluster: Cluster, engine: str) -> Mapping[str, Any]:
    """The breaker's part of an engine's state."""
    found: Mapping[str, Any] = cluster.engine_state(engine)["hicache"]["breaker"]
    return found


def breaker_log(
    cluster: Cluster, engine: str, *, since_s: float = float("-inf")
) -> list[Change]:
    """The transitions of one engine's breaker, without what the operator did."""
    return changes_of(breaker_of(cluster, engine)["transitions"], since_s=since_s)


def reaches(
    cluster: Cluster, engine: str, state: str, *, timeout_s: float = 20.0
) -> bool:
    """Waits until a breaker is in a state ("open", "closed"); False when never.

    Never getting there is a verdict, not an error.
    """
    return holds(
        lambda: breaker_of(cluster, engine)["state"] == state,
        f"the breaker of {engine} to be {state}",
        timeout_s=timeout_s,
    )


def holds(state: Callable[[], object], what: str, *, timeout_s: float = 5.0) -> bool:
    """Waits for a state of the cluster; False when it does not come in time."""
    try:
        wait_for(lambda: bool(state()), what, timeout_s=timeout_s)
    except HarnessError:
        return False
    return True


def operations(cluster: Cluster, engine: str, *, probes: bool = True) -> int:
    """Storage operations that an engine has sent so far; its own probes with them."""
    counters = cluster.engine_state(engine)["hicache"]["counters"]
    return _sent(counters, probes=probes)


def quarantine_events(cluster: Cluster, engine: str, kind: str) -> dict[str, float]:
    """Endpoint -> when it was first quarantined (or readmitted)."""
    events = cluster.engine_state(engine)["hicache"]["quarantine"]["events"]
    found: dict[str, float] = {}
    for event in events:
        if event["kind"] == kind:
            found.setdefault(event["endpoint"], float(event["at"]))
    return found


def keep_prompts(
    cluster: Cluster, load: LoadDriver, requests: Sequence[Request]
) -> None:
    """Has every prompt computed and kept in the pool, and empties L1 and L2.

    A write-back that failed while the cluster was cold is left to the next request for
    the same prompt, as the system does it. An engine that had trouble meanwhile is
    replaced by a new one: what is judged begins with nothing behind it. Every try asks
    at half the rate of the one before, as a busy machine needs it, and waits twice as
    long: a put that was started and never ended holds its name until it is discarded.

    Raises:
        HarnessError: One of them is not there: nothing could be judged.
    """
    missing = list(requests)
    for attempt in range(_KEEP_TRIES):
        _compute(cluster, load, missing, share=0.5**attempt)
        flush(cluster)
        missing = _lacking(cluster, missing, wait_s=_KEEP_WAIT_S * 2**attempt)
        if not missing:
            _without_past(cluster)
            return
        for engine in cluster.engines:
            reaches(cluster, engine, "closed")
    counters = [
        cluster.engine_state(engine)["hicache"]["counters"]
        for engine in cluster.engines
    ]
    message = f"{len(missing)} prompts are not in the pool: {counters}"
    raise HarnessError(message)


def _lacking(
    cluster: Cluster, requests: Sequence[Request], *, wait_s: float
) -> list[Request]:
    """The prompts that are not whole in the pool, nor in a while."""
    missing = list(requests)

    def whole() -> bool:
        missing[:] = [r for r in missing if not all(cluster.owners_of(r))]
        return not missing

    wait_until(whole, timeout_s=wait_s)
    return missing


def _without_past(cluster: Cluster) -> None:
    """Restarts the engines that met faults of a slow machine; the pool stays."""
    for engine in cluster.engines:
        counters = cluster.engine_state(engine)["hicache"]["counters"]
        if counters.get("faults") or breaker_log(cluster, engine):
            cluster.stop_role(engine)
            cluster.start_role(engine)


def _compute(
    cluster: Cluster, load: LoadDriver, requests: Sequence[Request], *, share: float
) -> None:
    """Asks for every prompt, at a share of the rate that the engines can compute."""
    speed = len(cluster.engines) * cluster.limits.prefill_tokens_per_s
    due, at_s = [], 0.0
    for request in requests:
        due.append(_at(request, at_s))
        at_s += (request.input_length / speed + _KEEP_GAP_S) / share
    run = load(due, arm="keep", route=route(cluster, requests))
    bad = [s.request.request_id for s in run.samples if not (s.answer and s.answer.ok)]
    if bad:
        message = f"{len(bad)} prompts were not computed, first {bad[0]}"
        raise HarnessError(message)


def flush(cluster: Cluster) -> None:
    """Empties L1 and L2 of every engine: the next hit must come from the pool."""
    for engine in cluster.engines:
        wait_idle(cluster, engine)
        cluster.flush_local(engine)


def route(cluster: Cluster, requests: Sequence[Request]) -> SessionAffine:
    """Session-affine, every engine the same number of sessions."""
    engines = tuple(cluster.engines)
    sessions = [request.session for request in requests]
    return SessionAffine(engines=engines, explicit=evenly(sessions, engines))


def prompts(
    cluster: Cluster, name: str, count: int, tokens: int, *, per_s: float, sessions: int
) -> list[Request]:
    """Prompts that share nothing, one every 1/`per_s` seconds, in turn by session."""
    return [
        _at(
            prompt(
                cluster,
                f"{name}-{number}",
                tokens,
                session=f"{name}-s{number % sessions}",
            ),
            number / per_s,
        )
        for number in range(count)
    ]


def ask_each(
    cluster: Cluster, engine: str, requests: Sequence[Request]
) -> list[Sample]:
    """One after the other: the order of operations is the order of requests."""
    return [ask(cluster, engine, request) for request in requests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The arms without a fault, on one trace from one state."""

    healthy: LoadRun
    local_only: LoadRun


@dataclass(slots=True)
class Arms:
    """Healthy and local-only arms, run once a suite and trace, then kept.

    Every arm starts from one state: the trace's prompts in an otherwise empty pool,
    L1 and L2 empty. The arms without a fault leave the pool as they found it.
    """

    _kept: dict[str, Baseline] = field(default_factory=dict)

    def baseline(
        self, cluster: Cluster, load: LoadDriver, trace: Sequence[Request]
    ) -> Baseline:
        """Both arms of this trace; leaves the cluster ready for the fault arm."""
        key = f"{cluster.spec} {[request.request_id for request in trace]}"
        keep_prompts(cluster, load, trace)
        if key not in self._kept:
            self._kept[key] = Baseline(
                local_only=_local_only(cluster, load, trace),
                healthy=_arm(cluster, load, trace, "healthy"),
            )
        return self._kept[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a breaker; `sent` are operations of requests, probes not counted."""

    at_s: float
    state: str
    sent: int


class StateWatch:
    """Looks at one engine's breaker all the time while its block runs."""

    def __init__(self, cluster: Cluster, engine: str) -> None:
        self.seen: list[Seen] = []
        self._cluster = cluster
        self._engine = engine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._body, name="state", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(10.0)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two looks in a row."""
        gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(self.seen)]
        return max(gaps, default=float("inf"))

    def sent_until_closed(self) -> tuple[int, float]:
        """Operations sent between the first look that was not closed and the last.

        State and counters of one look are read one after the other, so the counters of
        a look count only if the next look is not closed either.

        Returns:
            (operations, seconds watched).
        """
        rows = list(
            itertools.takewhile(
                lambda look: look.state != "closed",
                itertools.dropwhile(lambda look: look.state == "closed", self.seen),
            )
        )[:-1]
        if len(rows) < 2:
            return 0, 0.0
        return rows[-1].sent - rows[0].sent, rows[-1].at_s - rows[0].at_s

    def _body(self) -> None:
        while not self._ended.wait(WATCH_STEP_S) and len(self.seen) < WATCH_KEPT:
            cache = self._cluster.engine_state(self._engine)["hicache"]
            look = Seen(
                at_s=time.monotonic(),
                state=str(cache["breaker"]["state"]),
                sent=_sent(cache["counters"], probes=False),
            )
            self.seen.append(look)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStretch:
    """What was sent between two readings, both taken in one and the same OPEN.

    `flowed` is what the links themselves counted: bytes in proxies, packets on hosts.
    """

    operations: int = 0
    flowed: int = 0
    open_s: float = 0.0
    samples: tuple[Sample, ...] = ()


def while_open(
    cluster: Cluster,
    engine: str,
    requests: Sequence[Request],
    flowed_so_far: Callable[[], int],
    *,
    tries: int = 4,
) -> OpenStretch:
    """Asks for prompts while the breaker is open and counts what was sent meanwhile.

    A stretch in which it stopped being open says nothing: the next one is taken.
    Without any good one the answer is empty, which judges as inconclusive.
    """
    for turn in range(tries):
        if not reaches(cluster, engine, "open"):
            break
        wait_idle(cluster, engine)
        cluster.flush_local(engine)
        before = breaker_of(cluster, engine)
        flowed = _when_quiet(flowed_so_far)
        begin_s, sent = time.monotonic(), operations(cluster, engine)
        asked = [again(request, f"open-{turn}") for request in requests]
        samples = ask_each(cluster, engine, asked)
        flowed = flowed_so_far() - flowed
        sent = operations(cluster, engine) - sent
        end_s, after = time.monotonic(), breaker_of(cluster, engine)
        if before["state"] == "open" and after["generation"] == before["generation"]:
            return OpenStretch(
                operations=sent,
                flowed=flowed,
                open_s=end_s - begin_s,
                samples=tuple(samples),
            )
    return OpenStretch()


def _when_quiet(flowed_so_far: Callable[[], int]) -> int:
    """The count once it stands still: what was sent before may reach a link late.

    A put that failed gives its places back without being waited for, and TCP
    acknowledges up to 40 ms later. What never stands still is no leftover, and counts.
    """
    latest = deque([flowed_so_far()], QUIET_READINGS)

    def still() -> bool:
        latest.append(flowed_so_far())
        return len(latest) == QUIET_READINGS and len(set(latest)) == 1

    wait_until(still, timeout_s=QUIET_WAIT_S, poll_s=QUIET_STEP_S)
    return latest[-1]


def flowed_through(
    cluster: Cluster, tap: Injection, silence: Injection
) -> Callable[[], int]:
    """Counts what flowed through a tapped link and into silent ones.

    On hosts the tap alone counts: there the kernel itself sends again, for a while,
    what was lost in the silence before. Every read of a pool begins with a lookup, so
    whoever taps the lookups misses nothing.
    """
    counted = [tap] if cluster.hosts is not None else [tap, silence]
    return lambda: int(sum(each.sample().effect for each in counted))


def open_by_silence(
    cluster: Cluster, inject: Injector, engine: str, requests: Sequence[Request]
) -> Injection:
    """Silences every store and asks at once for kept prompts until the breaker opens.

    Returns the running fault. A breaker that stays closed shows in what follows.
    """
    silence = inject.blackhole(data_links(cluster))
    silence.start()
    ask_together(cluster, [(engine, request) for request in requests])
    reaches(cluster, engine, "open", timeout_s=2.0)
    return silence


def ask_with_faults(
    cluster: Cluster,
    engine: str,
    requests: Sequence[Request],
    *,
    faults: int,
    of: int,
) -> tuple[list[Sample], set[str]]:
    """Asks one by one; `faults` in every `of` reads fail, on store after store.

    An exact pattern, no dice: before such a read one store that holds pages of the
    prompt is told to refuse reads, the one that was told so least often. Returns the
    samples and the stores that did refuse one.
    """
    samples, told, hurt = [], dict.fromkeys(cluster.stores, 0), set[str]()
    for index, request in enumerate(requests):
        if index % of >= faults:
            samples.append(ask(cluster, engine, request))
            continue
        owners = {name for page in cluster.owners_of(request) for name in page}
        store = min(sorted(owners), key=told.__getitem__)
        told[store] += 1
        cluster.set_failpoint(store, "store.read", "return(-800)")
        samples.append(ask(cluster, engine, request))
        if cluster.failpoint_hits(store, "store.read"):
            hurt.add(store)
        cluster.set_failpoint(store, "store.read", "off")
    return samples, hurt


def _local_only(
    cluster: Cluster, load: LoadDriver, trace: Sequence[Request]
) -> LoadRun:
    for engine in cluster.engines:
        cluster.local_only(engine, True)
    try:
        return _arm(cluster, load, trace, "local_only")
    finally:
        for engine in cluster.engines:
            cluster.local_only(engine, False)


def _arm(
    cluster: Cluster, load: LoadDriver, trace: Sequence[Request], arm: str
) -> LoadRun:
    run = load(trace, arm=arm, route=route(cluster, trace))
    flush(cluster)
    return run


def _at(request: Request, at_s: float) -> Request:
    return replace(request, at_s=at_s)


def _sent(counters: Mapping[str, Any], *, probes: bool) -> int:
    sent: Mapping[str, int] = counters.get("storage_operations", {})
    kinds = sent if probes else ("exists", "get", "put")
    return sum(int(sent.get(kind, 0)) for kind in kinds)
