from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from chaos.canary import drills
from chaos.canary.drills import (
    DRILLS,
    LATE_READS,
    LATE_REUSE,
    STALE_ENDS,
    Drilled,
    DrillSite,
    _outlasting_s,
    late_read,
    late_reuse,
    run_drill,
    stale_end,
    wrong_outputs,
)
from chaos.errors import FaultNotInjected, ResidualFault

OK, NOT_READY, EXPIRED, EXISTS = 0, -703, -707, -705


@dataclass
class FakeProbe:
    """A client that answers what it is told to."""

    starts: list = field(default_factory=lambda: [(OK, 1), (OK, 2)])
    end: int = -1
    reads: list = field(default_factory=list)
    written: int = OK
    ended: list = field(default_factory=list)

    def start_write(self, _name, *, size_bytes):
        return self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]

    def end_write(self, _name, token):
        self.ended.append(token)
        return self.end

    def write(self, names, **_):
        return [self.written] * len(names)

    def read(self, names, **_):
        code, wrong = self.reads.pop(0)
        return [code] * len(names), wrong


class FakeInjector:
    """Injects nothing and counts that everything is undone."""

    def __init__(self, error=None):
        self.undone, self.slow, self.error = 0, [], error

    @contextmanager
    def bandwidth(self, links, kb_per_s):
        self.slow.append((len(links), kb_per_s))
        if self.error:
            raise self.error
        yield

    def revert_all(self):
        self.undone += 1


@pytest.fixture
def site():
    def make(probe, injector=None):
        links = [
            SimpleNamespace(name=f"store-0.rail{n}", owner="store-0", plane="data")
            for n in range(2)
        ]
        cluster = SimpleNamespace(
            spec=SimpleNamespace(time_scale=0.001),
            limits=SimpleNamespace(lease_ttl_s=0.5),
            stores=("store-0",),
            links=links,
            host_of=lambda _role: "h0",
            kv=lambda _host="": probe,
        )
        return DrillSite(cluster=cluster, inject=injector or FakeInjector())

    return make


def test_a_stale_end_that_is_refused_counts_nothing(site):
    probe = FakeProbe(reads=[(NOT_READY, 0)])

    assert stale_end(site(probe)).counters == {STALE_ENDS: 0}
    assert probe.ended == [1, 2]


@pytest.mark.parametrize(
    ("probe", "broken"),
    [
        (FakeProbe(end=OK, reads=[(NOT_READY, 0)]), 1),
        (FakeProbe(end=OK, reads=[(OK, 1)]), 3),
        (FakeProbe(reads=[(OK, 0)]), 1),
    ],
)
def test_a_stale_end_with_an_effect_is_counted(site, probe, broken):
    assert stale_end(site(probe)).counters == {STALE_ENDS: broken}


def test_a_write_that_never_began_proves_nothing(site):
    found = stale_end(site(FakeProbe(starts=[(OK, 1), (EXISTS, 0)])))

    assert found.counters == {}
    assert "-705" in found.why_not


def test_a_late_read_that_expires_counts_nothing(site):
    injector = FakeInjector()
    probe = FakeProbe(reads=[(OK, 0), (EXPIRED, 0)])

    assert late_read(site(probe, injector)).counters == {LATE_READS: 0}
    # 16 keys of 16 KiB in one and a half leases, over two links.
    assert injector.slow == [(2, int(256 / 0.75 / 2))]


def test_a_late_read_that_is_taken_is_counted(site):
    probe = FakeProbe(reads=[(OK, 0), (OK, 0)])

    assert late_read(site(probe)).counters == {LATE_READS: 16}


@pytest.mark.parametrize(
    "probe",
    [
        FakeProbe(written=-1, reads=[(OK, 0)]),
        FakeProbe(reads=[(NOT_READY, 0)]),
        FakeProbe(reads=[(OK, 0), (-800, 0)]),
    ],
    ids=["not written", "not there", "failed otherwise"],
)
def test_a_late_read_that_was_none_proves_nothing(site, probe):
    assert late_read(site(probe)).counters == {}


def test_a_fault_that_is_not_there_makes_a_drill_prove_nothing(site):
    error = FaultNotInjected(fault="bandwidth", target="store-0", reason="no effect")
    injector = FakeInjector(error)

    found = run_drill(LATE_READS, site(FakeProbe(reads=[(OK, 0)]), injector))

    assert (found.name, found.counters) == (LATE_READS, {})
    assert "no effect" in found.why_not
    assert injector.undone == 1


def test_a_fault_that_stays_is_no_drill_that_could_not_be_done(site):
    error = ResidualFault(fault="bandwidth", target="store-0", reason="stays")

    with pytest.raises(ResidualFault):
        run_drill(LATE_READS, site(FakeProbe(reads=[(OK, 0)]), FakeInjector(error)))


def test_every_drill_fills_a_counter_of_its_own():
    assert set(DRILLS) == {"stale_ends", "late_reads", "late_reuse", "late_pages"}
    assert len(set(DRILLS.values())) == len(DRILLS)
    assert Drilled(name="x", broken=2).counters == {"x": 2}


@pytest.fixture
def slow_engine(monkeypatch, site, fabricate):
    """A site whose engine answers a late read as it is told to."""

    def make(**answer):
        made = site(None)
        made.cluster.engines = ("engine-0", "engine-1")
        made.cluster.spec.page_bytes = 16 << 10
        made.cluster.owners_of = lambda _request: [("store-0",)]
        made.cluster.expected_output = lambda _request: "right"
        asked = fabricate.sample("a", output_hash="right", **answer)
        monkeypatch.setattr(drills, "prompt", lambda *_: asked.request)
        monkeypatch.setattr(drills, "keep", lambda *_: None)
        monkeypatch.setattr(drills, "whole_pages", lambda *_: 64)
        monkeypatch.setattr(drills, "ask", lambda *_: asked)
        return made

    return make


def test_an_engine_that_drops_a_late_read_counts_nothing(slow_engine):
    site = slow_engine(cache_wait_s=0.8, l3=0)

    assert late_reuse(site).counters == {LATE_REUSE: 0}
    # 64 pages of 16 KiB in three leases, over two links.
    assert site.inject.slow == [(2, int(1024 / 1.5 / 2))]


def test_an_engine_that_reuses_a_late_read_is_counted(slow_engine):
    assert late_reuse(slow_engine(cache_wait_s=0.8, l3=512)).broken == 1


@pytest.mark.parametrize("answer", [{"cache_wait_s": 0.4}, {"ok": False}])
def test_a_read_of_an_engine_that_was_not_late_proves_nothing(slow_engine, answer):
    found = late_reuse(slow_engine(**answer))

    assert found.counters == {}
    assert "the lease lasts 0.5 s" in found.why_not


def test_wrong_outputs_are_those_of_good_answers_only(fabricate):
    cluster = SimpleNamespace(expected_output=lambda request: "right")
    samples = [
        fabricate.sample("a", output_hash="right"),
        fabricate.sample("b", output_hash="wrong"),
        fabricate.sample("c", output_hash="wrong", ok=False),
    ]

    assert wrong_outputs(cluster, samples) == 1


def test_a_late_read_outlasts_what_is_computed_and_not_the_longest_deadline():
    def limits(rate, longest_s=3.0):
        return SimpleNamespace(
            prefill_tokens_per_s=rate,
            deadline_max_s=longest_s,
            deadline_s=lambda _tokens: 0.28,
        )

    assert _outlasting_s(limits(200_000), 8192) == pytest.approx(0.543, abs=0.001)
    assert _outlasting_s(limits(16_384), 8192) == pytest.approx(1.92)
    assert _outlasting_s(limits(1_000), 8192) == pytest.approx(2.7)
