from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from refimpl.core.breaker import (
    Admission,
    Breaker,
    BreakerSettings,
    BreakerState,
    Kind,
)
from refimpl.core.codes import Outcome

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def breaker(**changes: object) -> Breaker:
    return Breaker(BreakerSettings(**changes), random.Random(7))


def feed(b: Breaker, outcomes: list[Outcome], start: float = 0.0, step: float = 0.1):
    now = start
    for outcome in outcomes:
        admission = b.admit(now)
        if admission is not None:
            b.record(admission, outcome, now)
        now += step
    return now


def opened(**changes: object) -> tuple[Breaker, float]:
    b = breaker(**changes)
    now = feed(b, [Outcome.FAULT] * 20)

    assert b.state is OPEN
    return b, now


def half_open(**changes: object) -> tuple[Breaker, float]:
    b, _ = opened(**changes)
    now = b.open_until
    b.tick(now)

    assert b.state is HALF_OPEN
    return b, now


def test_opens_at_twenty_samples_with_half_of_them_faults():
    b = breaker()
    feed(b, [Outcome.SUCCESS, Outcome.FAULT] * 9 + [Outcome.SUCCESS])

    assert b.state is CLOSED

    feed(b, [Outcome.FAULT], start=2.0)

    assert b.state is OPEN
    assert b.transitions[-1].reason == "10 of 20 operations failed"


def test_nineteen_faults_are_too_few_to_judge():
    b = breaker()
    feed(b, [Outcome.FAULT] * 19)

    assert b.state is CLOSED


def test_faults_older_than_the_window_do_not_count():
    b = breaker()
    feed(b, [Outcome.FAULT] * 15)
    feed(b, [Outcome.FAULT] * 15, start=20.0)

    assert b.state is CLOSED


@pytest.mark.parametrize("every", [5, 10, 50])
def test_an_exact_rate_below_the_threshold_never_trips(every):
    b = breaker()
    pattern = [Outcome.SUCCESS] * (every - 1) + [Outcome.FAULT]
    feed(b, pattern * (1000 // every), step=0.05)

    assert b.state is CLOSED
    assert not b.transitions


def test_sixty_percent_spread_faults_trip():
    b = breaker()
    feed(b, ([Outcome.FAULT] * 3 + [Outcome.SUCCESS] * 2) * 4)

    assert b.state is OPEN


def test_misses_in_time_are_successes():
    b = breaker()
    feed(b, ([Outcome.MISS] * 3 + [Outcome.FAULT]) * 50)

    assert b.state is CLOSED


@pytest.mark.parametrize("neutral", [Outcome.ADMISSION, Outcome.CALLER])
def test_neutral_outcomes_are_no_samples(neutral):
    b = breaker()
    feed(b, [neutral] * 200 + [Outcome.FAULT] * 19, step=0.01)

    assert b.state is CLOSED

    feed(b, [Outcome.FAULT], start=2.3)

    assert b.state is OPEN


def test_five_consecutive_read_deadlines_open():
    b = breaker()
    for i in range(5):
        assert b.state is CLOSED
        b.record(b.admit(i), Outcome.SUCCESS, float(i), read_deadline=True)

    assert b.state is OPEN
    assert "5 consecutive reads too late" in b.transitions[-1].reason


@pytest.mark.parametrize(
    ("kind", "expected"), [(Kind.READ, CLOSED), (Kind.LOOKUP, OPEN), (Kind.WRITE, OPEN)]
)
def test_only_a_good_read_ends_a_run_of_late_reads(kind, expected):
    b = breaker()
    for i in range(4):
        b.record(b.admit(i), Outcome.FAULT, float(i), read_deadline=True)
    b.record(b.admit(5.0), Outcome.MISS, 5.0, kind=kind)
    b.record(b.admit(6.0), Outcome.FAULT, 6.0, read_deadline=True)

    assert b.state is expected


def test_late_lookups_are_a_run_of_their_own_ended_by_a_good_one():
    for heals, expected in ((True, CLOSED), (False, OPEN)):
        b = breaker()
        for i in range(5):
            if heals and i == 3:
                b.good(b.admit(i), Kind.LOOKUP, float(i))
            late = b.admit(i)
            b.record(
                late, Outcome.FAULT, float(i), read_deadline=True, kind=Kind.LOOKUP
            )

        assert b.state is expected


def test_timely_misses_do_not_hide_a_dead_read_path():
    b = breaker()
    for i in range(20):
        for _ in range(4):
            b.record(b.admit(i / 10), Outcome.MISS, i / 10, kind=Kind.LOOKUP)
        b.record(b.admit(i / 10), Outcome.FAULT, i / 10)

    assert b.state is OPEN
    assert b.transitions[0].reason == "20 of 20 reads failed"


def test_good_writes_do_not_hide_a_dead_read_path():
    b = breaker()
    for i in range(20):
        for _ in range(4):
            b.record(b.admit(i / 10), Outcome.SUCCESS, i / 10, kind=Kind.WRITE)
        if (admission := b.admit(i / 10)) is not None:
            b.record(admission, Outcome.FAULT, i / 10)

    assert b.state is OPEN
    assert b.transitions[0].reason == "20 of 20 reads failed"


def test_slow_writes_are_faults():
    b = breaker()
    for i in range(20):
        assert b.state is CLOSED
        b.record(b.admit(i / 10), Outcome.SUCCESS, i / 10, slow=True, kind=Kind.WRITE)

    assert b.state is OPEN


def test_reads_just_under_the_deadline_for_ever_open_it():
    b = breaker()
    for i in range(5):
        b.record(b.admit(i * 2.7), Outcome.SUCCESS, i * 2.7, slow=True)

    assert b.state is OPEN


def test_nothing_is_admitted_while_open():
    b, now = opened()
    step = (b.open_until - now) / 50

    assert all(b.admit(now + i * step) is None for i in range(50))


def test_open_for_doubles_with_every_bad_probe_up_to_the_limit_with_jitter():
    b, _ = opened()
    waits = [b.open_until - b.transitions[-1].at]
    for _ in range(6):
        now = b.open_until
        b.record(b.admit(now), Outcome.FAULT, now)
        waits.append(b.open_until - now)

    for wait, base in zip(waits, [5, 10, 20, 40, 60, 60, 60], strict=True):
        assert base * 0.8 <= wait <= base * 1.2
    assert (
        len({round(w / b, 6) for w, b in zip(waits, [5, 10, 20, 40], strict=False)}) > 1
    )


def test_three_good_probes_close():
    b, now = half_open()
    for i in range(3):
        assert b.state is HALF_OPEN
        b.record(b.admit(now + i), Outcome.MISS, now + i)

    assert b.state is CLOSED


def test_one_bad_probe_opens_again():
    b, now = half_open()
    b.record(b.admit(now), Outcome.SUCCESS, now)
    b.record(b.admit(now), Outcome.FAULT, now)

    assert b.state is OPEN


def test_one_probe_at_a_time():
    b, now = half_open()

    assert b.admit(now) is not None
    assert b.admit(now) is None


def test_an_abandoned_probe_gives_its_slot_back():
    b, now = half_open()
    b.abandon(b.admit(now), now)

    assert b.admit(now) is not None
    assert b.inconclusive_probes == 1


def test_a_neutral_probe_is_inconclusive_and_gives_its_slot_back():
    b, now = half_open()
    b.record(b.admit(now), Outcome.ADMISSION, now)

    assert b.state is HALF_OPEN
    assert b.admit(now) is not None


def test_a_lost_probe_gives_its_slot_back_at_its_deadline():
    b, now = half_open()
    b.admit(now)

    assert b.admit(now + 0.99) is None
    assert b.admit(now + 1.0) is not None


def test_a_probe_past_its_lease_neither_counts_nor_frees_its_successor():
    b, now = half_open()
    late = b.admit(now)
    current = b.admit(now + 2)
    b.record(late, Outcome.FAULT, now + 2)

    assert b.state is HALF_OPEN
    assert b.admit(now + 2) is None
    b.record(current, Outcome.SUCCESS, now + 2)
    assert b.admit(now + 2) is not None


def test_results_from_before_the_trip_are_ignored():
    b = breaker()
    early = [b.admit(0.0) for _ in range(5)]
    feed(b, [Outcome.FAULT] * 20)
    now = b.open_until
    for admission in early:
        b.record(admission, Outcome.SUCCESS, now)

    assert b.state is HALF_OPEN
    assert b.admit(now) is not None


def test_a_trip_soon_after_closing_waits_longer():
    b, now = half_open()
    for _ in range(3):
        b.record(b.admit(now), Outcome.SUCCESS, now)
    feed(b, [Outcome.FAULT] * 20, start=now)

    assert b.open_until - b.transitions[-1].at >= 8.0


def test_a_trip_long_after_closing_starts_from_the_first_wait():
    b, now = half_open()
    for _ in range(3):
        b.record(b.admit(now), Outcome.SUCCESS, now)
    feed(b, [Outcome.FAULT] * 20, start=now + 100)

    assert b.open_until - b.transitions[-1].at <= 6.0


def test_the_operator_holds_it_open_until_he_lets_go():
    b = breaker()
    b.force(OPEN, 0.0)

    assert b.admit(1e6) is None

    b.force(None, 1e6)

    assert b.state is CLOSED
    assert b.admit(1e6) is not None


def test_forgiven_faults_no_longer_count():
    b = breaker()
    for i in range(19):
        b.record(b.admit(0.0), Outcome.FAULT, 0.0, endpoints={"s1": False, "s2": True})
        b.forgive("s1")
        assert b.state is CLOSED, i
    feed(b, [Outcome.FAULT] * 19)

    assert b.state is CLOSED


@pytest.mark.parametrize("hit_ratio", [0.05, 0.2, 0.8])
def test_recovery_does_not_depend_on_the_hit_ratio(hit_ratio):
    b, now = half_open()
    rng = random.Random(3)
    probes = 0
    while b.state is not CLOSED:
        outcome = Outcome.SUCCESS if rng.random() < hit_ratio else Outcome.MISS
        b.record(b.admit(now), outcome, now)
        probes += 1

    assert probes == 3


def test_events_stay_bounded():
    b = breaker(transitions_kept=4)
    for i in range(50):
        b.force(OPEN if i % 2 == 0 else None, float(i))

    assert len(b.transitions) == 4
    assert b.transition_count == 50


def test_every_duration_scales():
    s = BreakerSettings().scaled(0.1)

    assert (s.window_s, s.open_for_s, s.open_for_max_s) == pytest.approx((1, 0.5, 6))
    assert s.min_samples == 20


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 0.49), st.integers(0, 2**32))
def test_no_exact_rate_below_half_trips(rate, seed):
    b = Breaker(BreakerSettings(min_samples=20), random.Random(seed))
    owed = 0.0
    for i in range(300):
        owed += rate
        fault = owed >= 1
        owed -= fault
        b.record(b.admit(i / 50), Outcome.FAULT if fault else Outcome.MISS, i / 50)

    assert b.state is CLOSED


class BreakerMachine(RuleBasedStateMachine):
    """Any caller at any speed: late, lost, neutral or double results."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.b = Breaker(
            BreakerSettings(min_samples=5, consecutive_deadlines=3),
            random.Random(seed),
        )
        self.now = 0.0
        self.out: list[Admission] = []
        self.probes: list[Admission] = []
        self.good: int = 0

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.b.tick(self.now)

    @rule()
    def admit(self) -> None:
        live = [
            p
            for p in self.probes
            if p.generation == self.b.generation and self.now < p.deadline
        ]
        admission = self.b.admit(self.now)
        if admission is None:
            return
        assert self.b.state is not OPEN
        if admission.probe:
            assert not live, "two probes at once"
            self.probes.append(admission)
        self.out.append(admission)

    @precondition(lambda self: self.out)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        slow=st.booleans(),
        late=st.booleans(),
    )
    def record(self, data, outcome, slow, late) -> None:
        admission = data.draw(st.sampled_from(self.out))
        before, generation = self.b.state, self.b.generation
        self.b.tick(self.now)
        stale = admission.generation != self.b.generation
        state = self.b.state
        self.b.record(admission, outcome, self.now, slow=slow, read_deadline=late)
        if stale:
            assert self.b.state is state, "a stale result moved it"
        if state is HALF_OPEN and self.b.state is CLOSED:
            assert admission.probe
            assert admission.generation == generation or before is OPEN
            assert outcome in (Outcome.SUCCESS, Outcome.MISS)
        self._end(admission)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def abandon(self, data) -> None:
        admission = data.draw(st.sampled_from(self.out))
        state = self.b.state
        self.b.tick(self.now)
        after_tick = self.b.state
        self.b.abandon(admission, self.now)
        assert self.b.state in (state, after_tick)
        self._end(admission)

    def _end(self, admission: Admission) -> None:
        self.out.remove(admission)
        if admission in self.probes:
            self.probes.remove(admission)

    @invariant()
    def always_probes_in_the_end(self) -> None:
        if not hasattr(self, "b") or self.b.state is not OPEN:
            return
        assert self.b.open_until - self.now <= 60 * 1.2

    def teardown(self) -> None:
        if not hasattr(self, "b") or self.b.state is CLOSED:
            return
        later = max(self.now, self.b.open_until) + self.b.settings.probe_deadline_s
        self.b.tick(later)
        admission = self.b.admit(later + 1e-6)
        assert admission is not None, "no probe any more"
        assert admission.probe


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
