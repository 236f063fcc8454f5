"""An arm that we start ourselves: a cluster of the reference system, or of Mooncake.

Two arms share one ledger, because both are started by this process, and nothing else:
each has a block of addresses, a fault proxy and a cluster of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from chaos.canary.arms import is_hang
from chaos.canary.recorder import Row
from chaos.canary.schedule import length_class
from chaos.clusters import Clusters
from chaos.errors import ChaosError, HarnessError
from chaos.load.sample import Ending
from chaos.steps.prompts import becomes_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from chaos.canary.schedule import Numbered
    from chaos.faults.toxic import ToxicControl
    from chaos.load.sample import Sample
    from chaos.safety.ledger import Ledger
    from chaos.systems.base import Answer, Cluster, ClusterSpec, KvProbe, Request
    from chaos.targets.place import Place

REQUEST_TIMEOUT_S = 30.0
IDLE_S = 20.0
"""Seconds after the last request until an engine that still works is one that hangs."""
WRONG_BYTES, HANGS, RESIDUAL = "wrong_bytes", "hangs", "residual_faults"
BROKEN_LAWS, OPEN_BREAKERS = "broken_laws", "open_breakers"
_OPEN_AFTER_S = 30.0
_LOOKED_UP = 8
"""Keys of one lookup of `look_up`: a batch, as engines send it."""


class ArmClusters(Clusters):
    """Clusters whose ledger belongs to somebody else, who closes it."""

    def __init__(self, *, ledger: Ledger, **settings: Any) -> None:
        super().__init__(**settings)
        self._shared_ledger = ledger

    @property
    def ledger(self) -> Ledger:
        return self._shared_ledger


class ClusterArm:
    """One cluster, started here; see `Arm`."""

    def __init__(
        self,
        *,
        label: str,
        system: str,
        build: str,
        spec: ClusterSpec,
        place: Place,
        ledger: Ledger,
        run_dir: Path,
        command: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.label = label
        self.system = system
        self.build = build
        self.time_scale = spec.time_scale
        self.spec = spec
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._clock = clock
        self._wait = wait
        self._clusters = ArmClusters(
            ledger=ledger,
            system=system,
            run_dir=run_dir,
            command=command,
            place=place,
            seed=spec.seed,
        )
        self._cluster: Cluster | None = None
        self._probe: KvProbe | None = None
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._outputs: dict[str, str] = {}

    # -- life ----------------------------------------------------------------------

    def start(self) -> None:
        """A new cluster, and a client of the harness beside it."""
        self._cluster = self._clusters.get(self.spec)
        self._probe = self._cluster.kv()
        self.add({HANGS: 0, RESIDUAL: 0})

    def close(self) -> None:
        self._cluster, self._probe = None, None
        self._clusters.close()

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def control(self) -> Callable[[], ToxicControl | None]:
        """The fault proxy of this arm, for an injector."""
        return lambda: self._clusters.control

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.cluster.engines)

    # -- requests --------------------------------------------------------------------

    def expect(self, requests: tuple[Request, ...]) -> None:
        """Computes the outputs of a run without any cache: takes a while."""
        for request in requests:
            if request.request_id not in self._outputs:
                output = self.cluster.expected_output(request)
                self._outputs[request.request_id] = output

    def send(self, member: str, request: Request) -> Answer:
        return self.cluster.prefill(member, request, timeout_s=self._timeout_s)

    def abort(self, member: str, request_id: str) -> None:
        self.cluster.abort(member, request_id)

    def row(self, numbered: Numbered, sample: Sample, *, turn: int, at_s: float) -> Row:
        """A row, and the invariants of one request: its bytes, and that it ended."""
        self.judge_bytes(sample)
        host = self.host_of(sample.engine)
        return row_of(numbered, sample, host=host, turn=turn, at_s=at_s)

    def host_of(self, engine: str) -> str:
        """What rows are clustered by: the engine, or its machine where it has one.

        Two groups of machines are told apart by this: a slow machine may look like a
        slow build there, and the gate allows for it.
        """
        hosts = self.cluster.hosts
        return engine if hosts is None else hosts.of(engine).name

    def judge_bytes(self, sample: Sample) -> None:
        """Counts wrong outputs and hangs; a request without output has no bytes."""
        limits, answer = self.cluster.limits, sample.answer
        hung = sample.ending is Ending.HUNG
        if answer is not None:
            promise_s = limits.deadline_s(sample.request.input_length)
            hung = hung or is_hang(answer.cache_wait_s, promise_s, limits.poll_s)
        self._count(HANGS, int(hung))
        expected = self._outputs.get(sample.request.request_id)
        if answer is None or not answer.ok or expected is None:
            return
        self._count(WRONG_BYTES, int(answer.output_hash != expected))

    # -- questions -------------------------------------------------------------------

    def calls(self) -> int | None:
        """Calls of clients that the master has answered, of any kind.

        Mounts and listings of segments are the harness's and the stores' own.
        """
        try:
            calls = self.cluster.role_state(self.cluster.masters[0])["calls"]
        except (ChaosError, KeyError, IndexError):
            return None
        return calls_of(calls)

    def look_up(self, request: Request) -> float | None:
        """One batch of keys that nobody holds, there and back, in seconds."""
        assert self._probe is not None
        names = [f"look-{request.request_id}-{i}" for i in range(_LOOKED_UP)]
        begin_s = self._clock()
        self._probe.exists(names, timeout_s=self._timeout_s)
        return self._clock() - begin_s

    def settle(self) -> None:
        """Waits for the engines to be idle.

        Raises:
            HarnessError: One never is. That is a hang and counted, and the arm is not
                measured any further: what it would still show is not its build's.
        """
        for engine in self.cluster.engines:
            if not becomes_idle(self.cluster, engine, timeout_s=self._idle_s):
                self._count(HANGS, 1)
                message = f"{engine} is not idle {self._idle_s:g} s after its requests"
                raise HarnessError(message)

    def counters(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._counts)

    def add(self, counters: Mapping[str, int]) -> None:
        """Counts of drills and plays on this arm."""
        for name, number in counters.items():
            self._count(name, number)

    def finish(self) -> None:
        """In the end every law of conservation holds and every breaker is closed."""
        self.settle()
        self._count(BROKEN_LAWS, len(self.cluster.conservation()))
        self._count(OPEN_BREAKERS, self._open_breakers())

    def facts(self) -> Mapping[str, object]:
        return {
            "members": list(self.members),
            "stores": list(self.cluster.stores),
            "defects": list(self.spec.defects),
            "overrides": {k: dict(v) for k, v in self.spec.overrides.items()},
        }

    # -- inside ----------------------------------------------------------------------

    def _open_breakers(self) -> int:
        """Breakers that do not close by themselves in the time that they are given."""
        limits = self.cluster.limits
        patience_s = max(20 * limits.breaker_open_for_s, 1.0)
        begin_s = self._clock()
        while True:
            states: list[str] = [
                self.cluster.engine_state(engine).get("breaker", "closed")
                for engine in self.cluster.engines
            ]
            opened = len([state for state in states if state != "closed"])
            waited_s = self._clock() - begin_s
            if not opened or waited_s >= min(patience_s, _OPEN_AFTER_S):
                return opened
            self._wait(limits.breaker_open_for_s / 4)

    def _count(self, name: str, number: int) -> None:
        with self._lock:
            self._counts[name] += number


def row_of(
    numbered: Numbered, sample: Sample, *, host: str, turn: int, at_s: float
) -> Row:
    """The row of a request that an engine served, or failed to serve."""
    answer = sample.answer
    ok = answer is not None and answer.ok
    hit = None if answer is None else _hit_tokens(answer)
    return Row(
        request=numbered.number,
        session=sample.request.session,
        host=host,
        klass=length_class(sample.request.input_length),
        arm_turn=turn,
        start_s=at_s,
        ok=ok,
        cause="" if ok else cause_of(sample),
        ttft_s=sample.ttft_s,
        e2e_s=sample.latency_s,
        cache_wait_s=None if answer is None else answer.cache_wait_s,
        prompt_tokens=sample.request.input_length,
        hit_tokens=hit if ok else 0,
        lag_s=sample.lag_s,
        metrics={"stores": float(len(answer.stores)) if ok and answer else None},
    )


def cause_of(sample: Sample) -> str:
    """Why a request failed, in one word or two; "" when it did not."""
    if sample.ending is not Ending.DONE or sample.answer is None:
        return sample.ending.value
    return sample.answer.error.partition(":")[0][:80] or "failed"


def calls_of(calls: Mapping[str, Any]) -> int:
    """The sum of all calls that clients make on behalf of requests."""
    return sum(
        int(count["requests"] if isinstance(count, dict) else count)
        for name, count in calls.items()
        if name.startswith("batch_")
    )


def _hit_tokens(answer: Answer) -> int:
    return answer.l1_tokens + answer.l2_tokens + answer.l3_tokens
