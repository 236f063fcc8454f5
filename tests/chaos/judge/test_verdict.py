from __future__ import annotations

from chaos.judge.limit import inconclusive, none_of
from chaos.judge.verdict import Verdict, worst

GOOD = none_of("O1", "x", 0, of=1, what="wrong")
BAD = none_of("O1", "x", 1, of=1, what="wrong")
UNKNOWN = inconclusive("O1", "x", "unknown")


def test_worst_wins():
    assert worst([GOOD]) is Verdict.PASS
    assert worst([GOOD, UNKNOWN]) is Verdict.INCONCLUSIVE
    assert worst([UNKNOWN, BAD, GOOD]) is Verdict.FAIL


def test_nothing_judged_is_never_a_pass():
    assert worst([]) is Verdict.INCONCLUSIVE
