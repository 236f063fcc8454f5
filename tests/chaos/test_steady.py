from __future__ import annotations

from dataclasses import dataclass, field

from chaos.judge.verdict import Verdict
from chaos.steady import SteadyState


@dataclass
class FakeCluster:
    dead: set[str] = field(default_factory=set)
    mounted: dict[str, int] = field(default_factory=lambda: {"store-0": 0})
    breaker: object = "closed"
    laws: list[str] = field(default_factory=list)
    masters = ("master",)
    stores = ("store-0",)
    engines = ("engine-0",)

    def process(self, role):
        return None if role in self.dead else object()

    def owned_bytes(self):
        return self.mounted

    def engine_state(self, engine):
        return {"breaker": self.breaker}

    def conservation(self):
        return self.laws


class Clock:
    def __init__(self, when=None) -> None:
        self.now, self.when = 0.0, when

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.when is not None:
            self.when(self.now)


def steady(cluster, clock=None) -> SteadyState:
    clock = clock or Clock()
    return SteadyState(lambda: cluster, clock=clock, wait=clock.wait)


def test_a_whole_cluster_is_steady_at_once() -> None:
    judgement = steady(FakeCluster())()

    assert judgement.verdict is Verdict.PASS
    assert judgement.numbers["took_s"] == 0


def test_every_way_not_to_be_steady_is_named() -> None:
    cases = {
        "store-0 is not running": FakeCluster(dead={"store-0"}),
        "store-0 is not mounted": FakeCluster(mounted={}),
        "the breaker of engine-0 is open": FakeCluster(breaker={"state": "open"}),
        "pages leak": FakeCluster(laws=["pages leak"]),
    }
    for problem, cluster in cases.items():
        assert steady(cluster).problems() == [problem]


def test_a_state_that_is_not_told_is_not_steady() -> None:
    assert steady(FakeCluster(breaker=None)).problems() == [
        "the breaker of engine-0 is unknown"
    ]


def test_a_system_that_cannot_be_asked_is_not_steady() -> None:
    class Mute(FakeCluster):
        def owned_bytes(self):
            message = "no answer"
            raise OSError(message)

    assert steady(Mute()).problems() == ["could not be asked: no answer"]


def test_it_waits_for_the_state_to_come_back_and_says_how_long() -> None:
    cluster = FakeCluster(dead={"store-0"})
    clock = Clock(lambda now: cluster.dead.clear() if now >= 3 else None)

    judgement = steady(cluster, clock)(within_s=10)

    assert judgement.verdict is Verdict.PASS
    assert 3 <= judgement.numbers["took_s"] < 3.2


def test_a_state_that_does_not_come_back_fails_at_the_deadline() -> None:
    clock = Clock()
    judgement = steady(FakeCluster(dead={"master"}), clock)(within_s=2)

    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == "master is not running"
    assert 2 <= clock.now < 2.2
