"""A stage without a system: fake cluster, load and faults, and a clock of its own.

Time passes only when the player waits (or a fault takes its time). The real injector
and the real ledger are used, so that what is undone, and in which order, is real.
"""

from __future__ import annotations

import textwrap
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from chaos.faults.base import Evidence
from chaos.faults.injector import Injector
from chaos.judge.verdict import Judgement, Verdict
from chaos.load.sample import Ending, LoadRun, Sample
from chaos.safety.halt import LeverPoll, Levers
from chaos.safety.ledger import Ledger
from chaos.scenario.load import parse_scenario
from chaos.scenario.player import Stage, play
from chaos.scenario.schedule import schedule_of
from chaos.systems.base import Answer, ClusterSpec, Limits

SCENARIO = """
name: a test
timeline:
  - fault: kill
    target: store-1
    at: 10s
    for: 10s
abort:
  - wrong_bytes: 0
load: {rate_per_s: 1, pulse: 0, after: 10s}
judge: [O1]
"""


@dataclass
class Clock:
    """Seconds that pass when somebody waits; `at` runs things on the way."""

    now_s: float = 0.0
    due: list = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += max(seconds, 1e-6)
        while self.due and self.due[0][0] <= self.now_s:
            self.due.pop(0)[1]()

    def at(self, at_s, act) -> None:
        self.due.append((at_s, act))
        self.due.sort(key=lambda entry: entry[0])


@dataclass
class FakeFault:
    """A fault that writes down what happens to it."""

    kind: str
    target: str
    log: list
    clock: Clock
    effect: float = 1.0
    error: Exception | None = None
    residual: str = ""
    takes_s: float = 0.0

    def plan(self):
        return [f"{self.kind} {self.target}"]

    def inject(self):
        self.log.append((round(self.clock(), 2), f"+{self.kind} {self.target}"))
        self.clock.now_s += self.takes_s
        if self.error is not None:
            raise self.error

    def probe(self):
        return Evidence(measure="fake", effect=self.effect)

    def revert(self):
        self.log.append((round(self.clock(), 2), f"-{self.kind} {self.target}"))

    def verify_reverted(self):
        return self.residual


class FakeInjector(Injector):
    """The real one, with faults that do nothing."""

    def __init__(self, ledger, clock) -> None:
        super().__init__(
            lambda: None,
            lambda: None,
            ledger,
            clock=clock,
            wait=clock.wait,
            revert_deadline_s=0.2,
        )
        self.log: list = []
        self.fake_clock = clock
        self.settings: dict = {}
        self.built: list = []

    def _make(self, kind, target, parameters):
        self.built.append((kind, target, parameters))
        extra = self.settings.get(kind, {})
        return self(FakeFault(kind, target, self.log, self.fake_clock, **extra))


def _builder(kind):
    def build(self, target, **parameters):
        return self._make(kind, target, parameters)

    return build


for _kind in ("kill", "pause", "restart", "nic_down", "latency", "bandwidth", "tap"):
    setattr(FakeInjector, _kind, _builder(_kind))


@dataclass
class FakeRunning:
    clock: Clock
    ends_s: float
    samples: list
    stopped_at_s: float | None = None

    @property
    def done(self) -> bool:
        return self.stopped_at_s is not None or self.clock() >= self.ends_s

    @property
    def run(self) -> LoadRun:
        return LoadRun(
            samples=tuple(self.samples), lag_s=tuple(0.0 for _ in self.samples)
        )

    def stop(self) -> None:
        self.stopped_at_s = self.clock()


@dataclass
class FakeLoad:
    """Answers every request `takes_s` after it is due; `answer` may change answers."""

    clock: Clock
    takes_s: float = 0.1
    answer: object = None
    running_now: FakeRunning | None = None
    log: list = field(default_factory=list)

    def expected(self, requests):
        return {request.request_id: "right" for request in requests}

    def __call__(self, requests, *, arm, route):
        self.log.append(arm)
        begin = self.clock()
        samples = [self._sample(request, begin) for request in requests]
        return LoadRun(samples=tuple(samples), lag_s=tuple(0.0 for _ in samples))

    @contextmanager
    def running(self, requests, *, arm, route, timeout_s, on_sample, on_send):
        begin = self.clock()
        ends_s = begin + requests[-1].at_s + self.takes_s
        running = self.running_now = FakeRunning(self.clock, ends_s, [])
        for request in requests:
            at_s = begin + request.at_s
            self.clock.at(at_s, lambda r=request, t=at_s: on_send(r, "engine-0", t))
            self.clock.at(
                at_s + self.takes_s,
                lambda r=request: self._end(running, r, begin, on_sample),
            )
        yield running

    def _end(self, running, request, begin, on_sample) -> None:
        if running.stopped_at_s is not None:
            return
        sample = self._sample(request, begin)
        running.samples.append(sample)
        on_sample(sample)

    def _sample(self, request, begin) -> Sample:
        at_s = begin + request.at_s
        sample = Sample(
            request=request,
            engine="engine-0",
            intended_s=at_s,
            sent_s=at_s,
            done_s=at_s + self.takes_s,
            answer=good_answer(request),
            ending=Ending.DONE,
        )
        return sample if self.answer is None else self.answer(sample)


def good_answer(request) -> Answer:
    return Answer(
        request_id=request.request_id,
        ok=True,
        error="",
        queue_s=0.0,
        cache_wait_s=0.01,
        deadline_s=0.2,
        prefill_modelled_s=0.1,
        ttft_modelled_s=0.1,
        input_tokens=request.input_length,
        l1_tokens=0,
        l2_tokens=0,
        l3_tokens=64,
        recomputed_tokens=request.input_length - 64,
        output_hash="right",
        prefetch_outcome="complete",
        stores=(),
        touched_fault=False,
    )


def failing_between(begin_s, end_s, **changes):
    """Answers of requests that were due between two instants are changed."""

    def change(sample):
        if not begin_s <= sample.intended_s < end_s:
            return sample
        return replace(sample, answer=replace(sample.answer, **changes))

    return change


@dataclass
class FakeCluster:
    spec: ClusterSpec = field(default_factory=lambda: ClusterSpec(time_scale=1.0))
    dead: set = field(default_factory=set)
    broken: list = field(default_factory=list)
    hosts = None
    masters = ("master",)
    stores = ("store-0", "store-1", "store-2", "store-3")
    engines = ("engine-0", "engine-1")
    links = ()
    alone: list = field(default_factory=list)

    @property
    def limits(self) -> Limits:
        return Limits(
            deadline_base_s=2.0,
            deadline_per_ki_token_s=0.01,
            deadline_max_s=3.0,
            poll_s=0.02,
            client_ttl_s=1.0,
            ping_interval_s=0.1,
            lease_ttl_s=0.5,
            breaker_window_s=1.0,
            breaker_open_for_s=0.5,
            breaker_probes_to_close=3,
            prefill_tokens_per_s=10_000.0,
            block_tokens=512,
            page_tokens=64,
        )

    def process(self, role):
        return None if role in self.dead else object()

    def host_of(self, role):
        return role

    def conservation(self):
        return self.broken

    def local_only(self, engine, on):
        self.alone.append((engine, on))

    def flush_local(self, engine):
        pass


@dataclass
class FakeSteady:
    """Steady unless told; remembers how long it was asked to wait."""

    verdicts: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def __call__(self, within_s, claim):
        self.asked.append((within_s, claim))
        verdict = self.verdicts.pop(0) if self.verdicts else Verdict.PASS
        return Judgement(
            oracle="steady",
            claim=claim,
            verdict=verdict,
            observed="",
            threshold="",
            samples=1,
            reason="" if verdict is Verdict.PASS else "store-1 is not mounted",
        )


class FakeLever:
    """Pulled by setting `pulled`."""

    where = "here"
    pulled = None

    def read(self):
        return self.pulled


class Theatre:
    """Everything to play a scenario text with."""

    def __init__(self, ledger) -> None:
        self.clock = Clock()
        self.cluster = FakeCluster()
        self.inject = FakeInjector(ledger, self.clock)
        self.load = FakeLoad(self.clock)
        self.steady = FakeSteady()
        self.lever = FakeLever()

    @staticmethod
    def good_answer(request):
        return good_answer(request)

    @property
    def log(self):
        return self.inject.log

    @property
    def names(self):
        return [what for _, what in self.inject.log]

    def play(self, text=SCENARIO, *, seed=None):
        scenario = parse_scenario(textwrap.dedent(text))
        stage = Stage(
            cluster=self.cluster,
            inject=self.inject,
            load=self.load,
            steady=self.steady,
        )
        return play(
            scenario,
            schedule_of(scenario, seed=seed),
            stage,
            lever=LeverPoll(Levers([self.lever]), clock=self.clock),
            clock=self.clock,
            wait=self.clock.wait,
        )


@pytest.fixture
def theatre(tmp_path):
    ledger = Ledger.create(tmp_path)
    yield Theatre(ledger)
    ledger.close()
