from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from chaos.judge.limit import at_least, at_most, inconclusive, none_of
from chaos.judge.verdict import Verdict
from chaos.report.document import Document, Outcome
from chaos.report.fault_words import parameters, proof, short_target, told
from chaos.report.moments import UNKNOWN, Moments, lasted
from chaos.report.signs import first_sign
from chaos.report.story import claim_of, lead_of, limit_of, story_of
from chaos.report.traces import Arm, Trace, Traces

MOMENTS = Moments(started=datetime(2026, 3, 1, 12, tzinfo=UTC), monotonic_s=100.0)
WRONG = none_of("O1", "no wrong bytes", 1, of=9, what="wrong reads")
LOST = at_most("O7b", "loss", 0.5, 0.1, samples=48, unit="share", label="lost")
OPEN = inconclusive("O2", "wait", "3 of the 30 samples needed")
GOOD = at_most("O2", "wait", 0.1, 0.3, samples=9, unit="s")


def outcome(*judgements, nodeid="t::test_it", **given):
    fields = {
        "nodeid": nodeid,
        "judgements": judgements,
        "reproduce": f"pytest {nodeid}",
    }
    return Outcome(**{**fields, **given})


def document(*outcomes, **given):
    fields = {"suite": "s", "seed": 1, "time_scale": 0.1, "outcomes": outcomes}
    return Document(**{**fields, **given})


def kill(**given):
    row = {
        "fault_id": "kill-1",
        "kind": "kill",
        "target": "store-3",
        "injected_at_s": 110.0,
        "reverted_at_s": 112.5,
        "evidence": {"measure": "process gone", "effect": 1.0, "detail": "pid 9"},
        "test": "t::test_it",
    }
    return {**row, **given}


def tell(*outcomes, traces=None, **given):
    return story_of(document(*outcomes, **given), traces or Traces(), MOMENTS)


def arm(name, rows):
    """Rows of (request, at_s, ttft_s, wait_s, reused, ok, wrong)."""
    made = Arm(name=name)
    for request, at_s, ttft_s, wait_s, reused, ok, wrong in rows:
        made.requests.append(request)
        made.at_s.append(at_s)
        made.ttft_s.append(ttft_s)
        made.wait_s.append(wait_s)
        made.allowed_s.append(0.2)
        made.reused.append(reused)
        made.asked.append(1024.0)
        made.ok.append(ok)
        made.wrong.append(wrong)
    return made


def trace(*arms, **given):
    return Trace(
        test="t::test_it", arms={one.name: one for one in arms}, poll_s=0.02, **given
    )


def test_wrong_bytes_are_told_before_lost_reuse_and_fails_before_doubts():
    assert lead_of(outcome(LOST, OPEN, WRONG)) is WRONG
    assert lead_of(outcome(OPEN, LOST)) is LOST
    assert lead_of(outcome(GOOD)) is None


def test_the_worst_test_has_the_story_and_the_others_are_named():
    story = tell(
        outcome(GOOD, nodeid="t::test_fine"),
        outcome(OPEN, nodeid="t::test_unclear"),
        outcome(LOST, nodeid="t::test_it"),
        faults=(kill(),),
    )

    assert story.test == "t::test_it"
    assert story.others == ("INCONCLUSIVE unclear",)
    assert story.headline.startswith("When store-3 was killed, this did not hold:")
    assert story.headline.endswith("lost 50.0 %, limit 10.0 %.")


def test_a_doubt_is_told_with_its_reason():
    story = tell(outcome(OPEN), faults=(kill(),))

    assert story.headline == (
        "It cannot be told whether “wait” holds: 3 of the 30 samples needed."
    )
    assert story.happened == "could not tell: 3 of the 30 samples needed"


def test_what_was_not_broken_on_purpose_is_said():
    story = tell(outcome(WRONG), faults=(kill(kind="tap"),))

    assert story.headline.startswith("Nothing was broken on purpose, and yet this did")
    assert story.broken == ("nothing on purpose",)


def test_a_test_that_broke_by_itself_is_no_law_that_broke():
    story = tell(outcome(GOOD, error="KeyError: 'x'"))

    assert story.headline == "The test “it” broke: KeyError: 'x'"
    assert story.verdict is Verdict.INCONCLUSIVE


def test_a_residual_fault_and_an_abort_come_first():
    story = tell(outcome(LOST), residual=("kill(store-3)",), aborted="SIGTERM")

    assert story.headline.startswith(
        "A fault was left behind: kill(store-3). The run was stopped early: SIGTERM."
    )


def test_an_empty_run_claims_nothing():
    assert "Nothing was judged" in tell().headline
    assert tell().verdict is Verdict.INCONCLUSIVE


def test_a_passing_run_that_was_stopped_says_so():
    story = tell(outcome(GOOD), residual=("x",))

    assert story.verdict is Verdict.FAIL
    assert story.headline == (
        "A fault was left behind: x. What was judged holds: 1 judgement in 1 test,"
        " while 0 faults came and went."
    )
    assert story.happened == "A fault was left behind: x."


@pytest.mark.parametrize(
    ("oracle", "words"),
    [
        ("O1", "request b had another output"),
        ("O4", "request c failed"),
        ("O2", "request d waited 0.300 s for the cache, T + poll is 0.220 s"),
        ("O7b", "request b reused 0 of 1024 tokens, 1024 when healthy"),
        ("O5", "request d took 2.00 s (TTFT, modelled), 0.100 s without the cache"),
    ],
)
def test_the_first_sample_that_contradicts_a_law_is_named(oracle, words):
    calm = [(n, 1.0 + i, 0.1, 0.0, 1024, True, False) for i, n in enumerate("abcd")]
    found = trace(
        arm("healthy", calm),
        arm("local_only", calm),
        arm(
            "fault",
            [
                ("a", 11.0, 0.1, 0.0, 1024, True, False),
                ("b", 12.0, 0.1, 0.0, 0, True, True),
                ("c", 13.0, 0.1, math.nan, 1024, False, False),
                ("d", 14.0, 2.0, 0.3, 1024, True, False),
            ],
        ),
    )

    assert first_sign(oracle, found).words == words


def test_a_trace_without_a_contradiction_names_none():
    calm = arm("fault", [("a", 11.0, 0.1, 0.0, 1024, True, False)])

    for oracle in ("O1", "O2", "O4", "O5", "O7", "O11", "steady", "A9"):
        assert first_sign(oracle, trace(calm)) is None


def test_since_counts_from_the_last_fault_before_the_sign():
    broken = trace(arm("fault", [("a", 111.0, 0.1, 0.0, 0, True, True)]))
    traces = Traces(tests={"t::test_it": broken})
    faults = (kill(), kill(fault_id="kill-2", target="store-9", injected_at_s=120.0))

    story = tell(outcome(WRONG), traces=traces, faults=faults)

    assert story.since == (
        "12:00:11.00 UTC, 1.00 s after store-3 was killed: request a had another output"
    )


def test_without_a_sign_the_first_fault_is_named():
    story = tell(outcome(LOST), faults=(kill(),))

    assert story.since.startswith("12:00:10.00 UTC, when store-3 was killed;")


def test_faults_of_a_killed_run_come_from_its_history():
    broken = trace(faults={"kill-1": kill(reverted_at_s=None)})

    story = tell(outcome(LOST), traces=Traces(tests={"t::test_it": broken}))

    assert story.broken == (
        "store-3 was killed, 12:00:10.00 UTC for ?; proof: process gone: 1",
    )


def test_faults_in_words():
    many = ",".join(f"store-{i}.rail0" for i in range(16))

    assert short_target(many) == "store-0.rail0, store-1.rail0 and 14 more"
    assert short_target("a,b,c") == "a, b, c"
    assert told({"kind": "volcano", "target": "{x}"}) == "volcano on {x}"
    assert parameters({"parameters": {"plan": ["x"], "jitter": 5}}) == "jitter 5"
    assert proof({"evidence": None}) == "no evidence of any effect"
    assert (
        proof({"evidence": {"measure": "bytes", "effect": 0}}) == "no effect: 0 bytes"
    )


def test_limits_read_as_half_a_sentence():
    assert limit_of(LOST) == "limit 10.0 %"
    assert limit_of(WRONG) == "0 allowed"
    assert limit_of(at_least("O", "c", 1, 5, samples=1)) == "expected at least 5"
    assert limit_of(OPEN) == ""


def test_names_of_tests_are_claims():
    assert claim_of("suites/x.py::test_a_store_dies[kill]") == "a store dies[kill]"
    assert (
        claim_of("suites/scenarios/rail-flap.yaml") == "suites/scenarios/rail-flap.yaml"
    )


def test_instants_that_nobody_knows_are_not_invented():
    assert Moments.of({}).utc(5.0) == UNKNOWN
    assert MOMENTS.utc(None) == UNKNOWN
    assert MOMENTS.utc(math.nan) == UNKNOWN
    assert MOMENTS.utc(1e30) == UNKNOWN
    assert Moments.of({"started": "x", "monotonic_s": 1}).utc(1.0) == UNKNOWN
    assert [lasted(s) for s in (0.3254, 3.254, 41.23, 720.0, None, math.nan)] == [
        *("0.325 s", "3.25 s", "41.2 s", "12 min", "?", "?"),
    ]


def test_the_fault_that_was_in_place_at_the_first_sign_is_blamed():
    broken = trace(arm("fault", [("a", 111.0, 0.1, 0.0, 0, True, True)]))
    later = kill(fault_id="kill-2", target="store-9", injected_at_s=120.0)
    gone = kill(fault_id="kill-0", target="store-0", reverted_at_s=110.5)
    traces = Traces(tests={"t::test_it": broken})

    story = tell(outcome(WRONG), traces=traces, faults=(gone, kill(), later))

    assert story.headline.startswith("When store-3 was killed, this did not hold")
    assert len(story.broken) == 3


def test_what_else_is_broken_is_told_briefly():
    story = tell(outcome(WRONG, LOST, OPEN, LOST, LOST))

    assert len(story.also) == 4
    assert story.also[-1] == "and 1 more, below"


def test_doubts_about_the_measurement_explain_the_others():
    lagged = inconclusive("validity", "the generator kept up", "it lagged")
    unproved = inconclusive("evidence", "every fault had effect", "no effect")

    assert lead_of(outcome(OPEN, unproved, lagged)) is lagged
    assert lead_of(outcome(OPEN, unproved)) is unproved
    assert lead_of(outcome(LOST, unproved, lagged)) is LOST
