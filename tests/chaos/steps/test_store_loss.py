from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.judge.blast import PageMap, judge_prediction
from chaos.judge.verdict import Verdict
from chaos.load.sample import LoadRun
from chaos.steps.store_loss import Lost, Placed

PAGE, PAGES, REQUESTS = 64, 16, 20
MAPS = tuple(
    PageMap(
        request_id=f"r{number}",
        owners=tuple((f"store-{(number + page) % 4}",) for page in range(PAGES)),
    )
    for number in range(REQUESTS)
)
VICTIM = "store-3"


@pytest.fixture
def lost_one(fabricate):
    """Both arms as the maps say, but for requests cut short before the fault."""

    def arm(victim, cut=(), outcome="complete"):
        samples = []
        for one in MAPS:
            short = one.request_id in cut
            pages = 0 if short else one.reusable(victim)
            sample = fabricate.sample(one.request_id, tokens=2048, l3=pages * PAGE)
            said = outcome if short else "complete"
            answer = replace(sample.answer, prefetch_outcome=said)
            samples.append(replace(sample, answer=answer))
        return LoadRun(samples=tuple(samples), lag_s=())

    def build(*, healthy_cut=(), fault_cut=(), outcome="timeout"):
        owned = dict.fromkeys((f"store-{number}" for number in range(4)), 100)
        return Lost(
            placed=Placed(maps=MAPS, owned_bytes=owned, writers={}),
            victim=VICTIM,
            healthy=arm("", healthy_cut, outcome),
            fault=arm(VICTIM, fault_cut, outcome),
            page_tokens=PAGE,
        )

    return build


def judged(lost):
    return judge_prediction(lost.predicted(), lost.measured(), needed=8)


@pytest.mark.parametrize("outcome", ["timeout", "best_effort"])
def test_a_read_that_a_busy_machine_cut_before_the_fault_tells_nothing(
    lost_one, outcome
):
    lost = lost_one(healthy_cut=("r0", "r1", "r2"), outcome=outcome)

    assert judged(lost).verdict is Verdict.PASS
    assert lost.measured().requests == REQUESTS - 3


def test_with_too_few_that_tell_something_nothing_is_told(lost_one):
    cut = tuple(f"r{number}" for number in range(REQUESTS - 7))

    assert judged(lost_one(healthy_cut=cut)).verdict is Verdict.INCONCLUSIVE


def test_reads_that_the_fault_cut_short_are_its_cost(lost_one):
    lost = lost_one(fault_cut=tuple(f"r{number}" for number in range(1, 9)))

    assert judged(lost).verdict is Verdict.FAIL


def test_reuse_that_is_less_than_the_map_without_a_deadline_is_no_excuse(lost_one):
    cut = tuple(f"r{number}" for number in range(3, REQUESTS, 4))
    lost = lost_one(healthy_cut=cut, outcome="complete")

    assert judged(lost).verdict is Verdict.FAIL
