"""What the player keeps an eye on while a scenario plays.

Every request is put into the window of the abort conditions at the moment it ends. A
request to an engine that a fault has hit itself is spared: a killed engine fails its
requests, and that is no fault of the cache.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.safety.abort import Measure, Reading, RunWindow, Seen, Snapshot, read
from chaos.scenario.check import roles_in
from chaos.scenario.kinds import OF_THE_PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.load.sample import Sample
    from chaos.safety.abort import Condition
    from chaos.scenario.schedule import PlannedFault
    from chaos.systems.base import Cluster, Request

GRACE_S = 0.5
"""How long the connections to an engine may take to come back after a fault on it."""
HEALTH_S = 0.5
"""How often roles are looked at, which may cost a round trip each."""


@dataclass(slots=True, kw_only=True)
class _Span:
    """When a role was under a fault; open while `end_s` is None."""

    begin_s: float
    end_s: float | None = None

    def touches(self, begin_s: float, end_s: float) -> bool:
        return self.begin_s <= end_s and (self.end_s is None or begin_s <= self.end_s)


class Watch:
    """Feeds a window and reads conditions from it; load threads call `sent`, `sample`.

    Args:
        cluster: the system.
        expected: output hash of every request in a run without a cache.
    """

    def __init__(self, cluster: Cluster, expected: Mapping[str, str]) -> None:
        self.window = RunWindow()
        self.spared = 0
        self._cluster = cluster
        self._expected = expected
        self._roles = frozenset((*cluster.masters, *cluster.stores, *cluster.engines))
        self._lock = threading.Lock()
        self._hit: dict[str, list[_Span]] = {}
        self._under: dict[int, frozenset[str]] = {}
        self._looked_s = float("-inf")

    # -- the load ------------------------------------------------------------------

    def sent(self, request: Request, _engine: str, at_s: float) -> None:
        self.window.sent(request.request_id, at_s)

    def sample(self, sample: Sample) -> None:
        """One request has ended."""
        self.window.ended(sample.request.request_id, self._seen(sample))

    def spares(self, sample: Sample) -> bool:
        """Whether a fault was on the very engine while this request was there."""
        with self._lock:
            spans = list(self._hit.get(sample.engine, ()))
        return any(span.touches(sample.intended_s, sample.done_s) for span in spans)

    # -- the faults ----------------------------------------------------------------

    def begins(self, fault: PlannedFault, now_s: float) -> None:
        """From just before it is injected on."""
        about = roles_in(fault.target, self._roles)
        with self._lock:
            self._under[fault.number] = about
            if fault.kind in OF_THE_PROCESS:
                for role in about:
                    self._hit.setdefault(role, []).append(_Span(begin_s=now_s))

    def ends(self, fault: PlannedFault, now_s: float) -> None:
        """After it was undone."""
        with self._lock:
            about = self._under.pop(fault.number, frozenset())
            for role in about:
                for span in self._hit.get(role, ()):
                    if span.end_s is None:
                        span.end_s = now_s + GRACE_S

    # -- the conditions ------------------------------------------------------------

    def look(self, conditions: Sequence[Condition], now_s: float) -> list[Reading]:
        """Reads every condition now."""
        if any(one.measure is Measure.NOT_HEALTHY for one in conditions):
            self._look_at_roles(now_s)
        snapshot: Snapshot = self.window.snapshot(now_s)
        return [read(condition, snapshot) for condition in conditions]

    def _look_at_roles(self, now_s: float) -> None:
        if now_s - self._looked_s < HEALTH_S:
            return
        self._looked_s = now_s
        self.window.healthy(self._ailing(), now_s)

    def _ailing(self) -> Iterable[str]:
        """Roles that do not run although no fault is on them."""
        with self._lock:
            excused = frozenset[str]().union(*self._under.values())
        return [
            role
            for role in sorted(self._roles - excused)
            if self._cluster.process(role) is None
        ]

    def _seen(self, sample: Sample) -> Seen | None:
        """A sample as the conditions read it, None when it tells them nothing."""
        if not sample.judged:
            return None
        if self.spares(sample):
            self.spared += 1
            return None
        answer = sample.answer
        ok = answer is not None and answer.ok
        used = 0
        wrong = False
        if answer is not None and ok:
            used = answer.l1_tokens + answer.l2_tokens + answer.l3_tokens
            hashed = self._expected.get(sample.request.request_id, answer.output_hash)
            wrong = hashed != answer.output_hash
        return Seen(
            at_s=sample.done_s,
            ok=ok,
            ttft_s=sample.ttft_s,
            reused=used,
            asked=answer.input_tokens if answer is not None and ok else 0,
            wrong=wrong,
        )
