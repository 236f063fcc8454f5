from __future__ import annotations

import pytest

from chaos.judge.breaker import (
    CLOSED,
    HALF_OPEN,
    OPEN,
    Change,
    Span,
    changes_of,
    closing_budget_s,
    judge_closes,
    judge_no_flapping,
    judge_opens,
    judge_quarantine,
    judge_same_recovery,
    judge_silent_while_open,
    judge_single_probe,
    judge_stays_closed,
    open_spans,
    retrips,
    trip_budget_s,
)
from chaos.judge.verdict import Verdict


def log(*steps):
    """Changes from (at, state) steps, starting CLOSED."""
    before, changes = CLOSED, []
    for at_s, state in steps:
        changes.append(Change(at_s=at_s, source=before, target=state))
        before = state
    return changes


GOOD = log((1.0, OPEN), (2.0, HALF_OPEN), (2.1, OPEN), (3.0, HALF_OPEN), (3.2, CLOSED))


def test_opening_is_timed_from_the_fault():
    judged = judge_opens(GOOD, fault_at_s=0.4, budget_s=1.0)

    assert judged.verdict is Verdict.PASS
    assert judged.observed == "after 0.600 s"


@pytest.mark.parametrize("changes", [log((9.0, OPEN)), []])
def test_opening_late_or_never_fails(changes):
    """Mutant: breaker never opens."""
    judged = judge_opens(changes, fault_at_s=0.4, budget_s=1.0)

    assert judged.verdict is Verdict.FAIL


def test_an_opening_before_the_fault_does_not_count():
    judged = judge_opens(log((0.1, OPEN)), fault_at_s=0.4, budget_s=1.0)

    assert judged.verdict is Verdict.FAIL


def test_closing_is_timed_from_the_recovery():
    judged = judge_closes(GOOD, healed_at_s=2.5, budget_s=1.0)

    assert judged.verdict is Verdict.PASS
    assert judged.observed == "after 0.700 s"


@pytest.mark.parametrize(
    "changes",
    [GOOD[:-1], [*GOOD[:-1], Change(at_s=9, source=HALF_OPEN, target=CLOSED)]],
)
def test_closing_late_or_never_fails(changes):
    """Mutant: breaker never closes (LMCache#4368: 45 h local-only)."""
    judged = judge_closes(changes, healed_at_s=2.5, budget_s=1.0)

    assert judged.verdict is Verdict.FAIL


OPEN_FOR_S, PROBE_S = 0.5, 1.02
"""Of the fabricated limits: a probe's deadline and one poll."""


def probed(*spans):
    """A breaker opened at 1.0, with failed probes at these (begun, failed)."""
    steps = [(1.0, OPEN)]
    for begun_s, failed_s in spans:
        steps += [(begun_s, HALF_OPEN), (failed_s, OPEN)]
    return log(*steps)


@pytest.mark.parametrize(("failed", "times"), [(0, 1), (2, 4), (4, 12), (9, 12)])
def test_the_closing_budget_doubles_with_every_failed_probe_up_to_a_cap(
    fabricate, failed, times
):
    changes = probed(*((2.0 + n, 2.1 + n) for n in range(failed)))

    budget_s = closing_budget_s(changes, fabricate.limits(), healed_s=50.0)

    assert budget_s == pytest.approx(OPEN_FOR_S * times * 1.2 + 3 * PROBE_S)


@pytest.mark.parametrize(
    ("span", "more_s", "times"),
    [
        ((4.95, 5.05), 0.05, 2),
        ((4.95, 5.0), 0.0, 2),
        ((5.01, 5.05), 0.0, 1),
        ((4.95, 6.0), 1.0, 2),
        ((4.95, 6.01), 0.0, 1),
    ],
    ids=["under way", "at the end", "begun after it", "at its deadline", "later"],
)
def test_a_probe_under_way_at_the_end_is_the_fault_s(fabricate, span, more_s, times):
    """It failed a moment later, and the wait begins there; others are the breaker's."""
    budget_s = closing_budget_s(probed(span), fabricate.limits(), healed_s=5.0)

    assert budget_s == pytest.approx(more_s + OPEN_FOR_S * times * 1.2 + 3 * PROBE_S)


def test_a_log_may_begin_with_a_failed_probe(fabricate):
    """What came before is cut away: the probe had begun before all that is left."""
    (*_, failed) = probed((4.95, 5.05))
    budget_s = closing_budget_s([failed], fabricate.limits(), healed_s=5.0)

    assert budget_s == pytest.approx(0.05 + OPEN_FOR_S * 2 * 1.2 + 3 * PROBE_S)


def test_retrips_are_counted():
    assert retrips(GOOD) == 1


def test_what_was_never_open_cannot_close():
    assert judge_closes([], healed_at_s=2.5, budget_s=1.0).verdict is (
        Verdict.INCONCLUSIVE
    )


def test_open_spans_are_cut_at_the_end():
    assert open_spans(GOOD, 10.0) == [
        Span(start_s=1.0, end_s=2.0),
        Span(start_s=2.1, end_s=3.0),
    ]
    assert open_spans(log((1.0, OPEN)), 4.0) == [Span(start_s=1.0, end_s=4.0)]


@pytest.mark.parametrize(
    ("sent", "open_s", "due", "verdict"),
    [
        (0, 2.0, 30, Verdict.PASS),
        (1, 2.0, 30, Verdict.FAIL),
        (0, 0.0, 30, Verdict.INCONCLUSIVE),
        (0, 2.0, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_nothing_is_sent_while_open(sent, open_s, due, verdict):
    judged = judge_silent_while_open(sent, open_s=open_s, due=due)

    assert judged.verdict is verdict
    assert judged.kind == "counter"


def spans(*pairs):
    return [Span(start_s=start, end_s=end) for start, end in pairs]


def test_two_probes_at_once_fail():
    apart = spans((2.0, 3.0), (0.0, 1.0), (1.0, 2.0))
    herd = spans((0.0, 9.0), (1.0, 2.0), (3.0, 4.0))

    assert judge_single_probe(apart).verdict is Verdict.PASS
    assert judge_single_probe(herd).verdict is Verdict.FAIL
    assert judge_single_probe(herd).numbers["found"] == 2
    assert judge_single_probe([]).verdict is Verdict.INCONCLUSIVE


def test_failed_probes_are_no_flapping_but_a_second_opening_is():
    twice = [*GOOD, Change(at_s=4.0, source=CLOSED, target=OPEN)]

    assert judge_no_flapping(GOOD, outages=1).verdict is Verdict.PASS
    assert judge_no_flapping(twice, outages=1).verdict is Verdict.FAIL
    assert judge_no_flapping(twice, outages=2).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "changes",
    [
        [Change(at_s=1, source=OPEN, target=CLOSED)],
        [
            Change(at_s=1, source=CLOSED, target=OPEN),
            Change(at_s=2, source=HALF_OPEN, target=CLOSED),
        ],
    ],
)
def test_an_impossible_transition_fails(changes):
    judged = judge_no_flapping(changes, outages=1)

    assert judged.verdict is Verdict.FAIL
    assert "illegal" in judged.reason


@pytest.mark.parametrize(
    ("changes", "faults", "verdict"),
    [
        ([], 40, Verdict.PASS),
        ([], 0, Verdict.INCONCLUSIVE),
        (GOOD, 40, Verdict.FAIL),
    ],
)
def test_below_its_threshold_the_breaker_stays_closed(changes, faults, verdict):
    judged = judge_stays_closed(changes, faults=faults, operations=200, why="20 %")

    assert judged.verdict is verdict


@pytest.mark.parametrize(
    ("seen", "taken_s", "verdict"),
    [
        ({"store-2"}, 0.3, Verdict.PASS),
        ({"store-2"}, 0.6, Verdict.FAIL),
        (set(), 0.3, Verdict.FAIL),
        ({"store-2", "store-3"}, 0.3, Verdict.FAIL),
    ],
)
def test_exactly_the_bad_endpoint_is_quarantined(seen, taken_s, verdict):
    judged = judge_quarantine(seen, bad={"store-2"}, taken_s=taken_s, budget_s=0.5)

    assert judged.verdict is verdict


def test_recovery_does_not_depend_on_the_hit_ratio():
    same = {"5 %": 1.0, "20 %": 1.1, "80 %": 1.05}

    assert judge_same_recovery(same, probe_interval_s=0.2).verdict is Verdict.PASS
    slow = same | {"5 %": 3.0}
    assert judge_same_recovery(slow, probe_interval_s=0.2).verdict is Verdict.FAIL
    one = {"5 %": 1.0}
    assert judge_same_recovery(one, probe_interval_s=0.2).verdict is (
        Verdict.INCONCLUSIVE
    )


@pytest.mark.parametrize("state", ["OPEN", "open", "BreakerState.OPEN", 1])
def test_states_are_read_by_name_enum_and_gauge(state):
    (change,) = changes_of([{"at": 1.5, "from": "CLOSED", "to": state}])

    assert (change.at_s, change.source, change.target) == (1.5, CLOSED, OPEN)


def test_the_operators_lever_and_the_past_are_left_out():
    rows = [
        {"at": 0.5, "from": "closed", "to": "open", "reason": "5 deadlines"},
        {"at": 1.5, "from": "closed", "to": "open", "reason": "operator"},
        {"at": 2.5, "from": "open", "to": "closed", "reason": "operator released"},
        {"at": 3.5, "from": "closed", "to": "open", "reason": "5 deadlines"},
    ]

    assert [change.at_s for change in changes_of(rows, since_s=1.0)] == [3.5]


def test_an_unknown_state_is_an_error():
    with pytest.raises(ValueError, match="ajar"):
        changes_of([{"at": 1.5, "from": "CLOSED", "to": "ajar"}])


def test_closing_while_the_last_part_of_a_fault_goes_takes_no_time():
    judged = judge_closes(GOOD, healed_at_s=3.4, healing_from_s=2.5, budget_s=1.0)

    assert judged.verdict is Verdict.PASS
    assert judged.numbers["value"] == 0.0


def test_a_breaker_that_closed_before_the_fault_began_to_go_is_not_judged():
    judged = judge_closes(GOOD, healed_at_s=3.9, healing_from_s=3.5, budget_s=1.0)

    assert judged.verdict is Verdict.INCONCLUSIVE


def test_the_trip_budget_is_a_run_of_read_deadlines(fabricate):
    limits = fabricate.limits()
    budget_s, words = trip_budget_s(limits, 8192)

    each_s = limits.deadline_s(8192) + limits.poll_s
    assert budget_s == pytest.approx(limits.breaker_consecutive_deadlines * each_s)
    assert "5 read deadlines" in words


def test_the_formula_of_the_budget_is_printed():
    judged = judge_opens(GOOD, fault_at_s=0.4, budget_s=1.0, formula="5 x T")

    assert judged.claim == "breaker opens within 5 x T"
