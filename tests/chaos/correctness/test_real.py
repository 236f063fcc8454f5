"""Short real runs: random schedules catch what is wrong with the reference system."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from chaos.correctness.bench import Bench
from chaos.correctness.findings import Kind
from chaos.correctness.schedule import Do
from chaos.correctness.shrink import Budget
from chaos.correctness.soak import drawn
from chaos.correctness.spaces import modes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def bench_with(tmp_path):
    """A bench whose reference clusters have these defects."""
    with contextlib.ExitStack() as stack:

        def make(*defects):
            bench = Bench("refimpl", tmp_path / "results", defects=defects)
            stack.callback(bench.close)
            return bench

        yield make


def schedule_with(*phrases, steps=16):
    (mode,) = modes_of("refimpl")
    space = dataclasses.replace(
        mode.space, phrases=dict.fromkeys(phrases, 1), steps=steps
    )
    return drawn(dataclasses.replace(mode, space=space), 1, 0)


@pytest.mark.parametrize(
    ("defect", "phrase", "kind"),
    [
        ("stale_end_accepted", "announce", Kind.STALE_END),
        ("checksum_not_checked", "corrupt", Kind.TORN),
        ("lease_not_checked", "slow", Kind.LATE_READ),
    ],
)
def test_a_defect_of_the_reference_system_is_found(bench_with, defect, phrase, kind):
    outcome = bench_with(defect).play(schedule_with(phrase))
    assert outcome.played.settled
    assert kind in outcome.kinds


def test_without_defects_the_same_schedules_show_nothing(bench_with):
    outcome = bench_with().play(schedule_with("announce", "corrupt", "slow", steps=48))
    assert outcome.played.settled
    assert outcome.played.skipped == []
    assert list(outcome.findings) == []


def test_a_stale_end_is_cut_down_to_the_four_steps_that_show_it(bench_with):
    bench = bench_with("stale_end_accepted")
    schedule = schedule_with("announce", steps=6)
    finding = next(
        one for one in bench.play(schedule).findings if one.kind is Kind.STALE_END
    )
    shrunk = bench.shrink(schedule, finding, budget=Budget(tests=40))
    steps = [step.do for step in shrunk.steps]
    assert steps == [Do.ANNOUNCE, Do.WAIT, Do.ANNOUNCE, Do.END]
