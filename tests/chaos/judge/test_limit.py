from __future__ import annotations

import math

import pytest

from chaos.judge.limit import at_least, at_most, inconclusive, none_of, number
from chaos.judge.verdict import Verdict


@pytest.mark.parametrize(
    ("value", "samples", "verdict"),
    [
        (0.2, 40, Verdict.PASS),
        (0.3, 40, Verdict.PASS),
        (0.31, 40, Verdict.FAIL),
        (math.inf, 40, Verdict.FAIL),
        (math.nan, 40, Verdict.INCONCLUSIVE),
        (0.2, 29, Verdict.INCONCLUSIVE),
        (0.2, 0, Verdict.INCONCLUSIVE),
        (0.31, 1, Verdict.FAIL),
    ],
)
def test_at_most_is_three_valued(value, samples, verdict):
    judged = at_most("O2", "wait", value, 0.3, samples=samples, unit="s", needed=30)

    assert judged.verdict is verdict


def test_at_least_is_the_other_way_round():
    assert at_least("O7", "x", 3, 3, samples=1).verdict is Verdict.PASS
    assert at_least("O7", "x", 2.9, 3, samples=1).verdict is Verdict.FAIL
    assert at_least("O7", "x", 3, 3, samples=0).verdict is Verdict.INCONCLUSIVE


def test_too_few_samples_say_how_many_are_needed():
    judged = at_most("O2", "wait", 0.1, 0.3, samples=7, needed=30)

    assert judged.reason == "7 of the 30 samples needed"


def test_a_counter_that_saw_nothing_is_not_a_pass():
    assert none_of("O1", "x", 0, of=0, what="wrong").verdict is Verdict.INCONCLUSIVE
    assert none_of("O1", "x", 0, of=1, what="wrong").verdict is Verdict.PASS
    assert none_of("O1", "x", 1, of=1, what="wrong").verdict is Verdict.FAIL
    assert none_of("O1", "x", 1, of=0, what="wrong").verdict is Verdict.FAIL
    assert none_of("O1", "x", 0, of=1, what="wrong").kind == "counter"


def test_could_not_tell_carries_its_reason():
    judged = inconclusive("O5", "x", "no arm")

    assert (judged.verdict, judged.reason) == (Verdict.INCONCLUSIVE, "no arm")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.2141, "s", "0.214 s"),
        (0.0123, "%", "+1.2 %"),
        (0.0123, "share", "1.2 %"),
        (3.0, "stores", "3 stores"),
        (2.345, "", "2.35"),
        (math.inf, "s", "never"),
        (math.nan, "s", "nothing"),
    ],
)
def test_numbers_read_well(value, unit, text):
    assert number(value, unit) == text
