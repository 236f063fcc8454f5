from __future__ import annotations

from chaos.judge.conservation import judge_baseline, judge_conservation
from chaos.judge.verdict import Verdict

BEFORE = {"threads": 10, "fds": 30, "processes": 12}


def test_a_broken_law_fails_and_is_said():
    judged = judge_conservation(["store-1: 64 bytes allocated, no object"], laws=4)

    assert judged.verdict is Verdict.FAIL
    assert "64 bytes allocated" in judged.reason
    assert judge_conservation([], laws=4).verdict is Verdict.PASS


def test_many_broken_laws_are_cut_and_counted():
    judged = judge_conservation([f"law {i}" for i in range(20)], laws=20)

    assert judged.reason.endswith("and 15 more")


def test_laws_that_were_not_asked_are_not_kept():
    assert judge_conservation([], laws=0).verdict is Verdict.INCONCLUSIVE


def test_a_leak_fails_and_less_is_fine():
    leak = judge_baseline(BEFORE, BEFORE | {"fds": 31})

    assert leak.verdict is Verdict.FAIL
    assert leak.reason == "fds 30 -> 31"
    assert judge_baseline(BEFORE, BEFORE).verdict is Verdict.PASS
    assert judge_baseline(BEFORE, BEFORE | {"fds": 3}).verdict is Verdict.PASS


def test_slack_is_by_name():
    after = BEFORE | {"fds": 32, "threads": 11}

    assert judge_baseline(BEFORE, after, slack={"fds": 2}).verdict is Verdict.FAIL
    both = {"fds": 2, "threads": 1}
    assert judge_baseline(BEFORE, after, slack=both).verdict is Verdict.PASS


def test_something_new_is_a_leak_and_something_missing_is_unknown():
    assert judge_baseline(BEFORE, BEFORE | {"proxies": 1}).verdict is Verdict.FAIL
    missing = {"threads": 10, "fds": 30}
    assert judge_baseline(BEFORE, missing).verdict is Verdict.INCONCLUSIVE
    assert judge_baseline({}, {}).verdict is Verdict.INCONCLUSIVE
