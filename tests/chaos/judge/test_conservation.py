from __future__ import annotations

from chaos.judge.conservation import (
    judge_baseline,
    judge_conservation,
    judge_growth,
)
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


def _line(slope: float, readings: int = 60) -> list[tuple[float, float]]:
    return [(float(at), 5e7 + slope * at) for at in range(readings)]


def test_memory_that_grows_fails_and_names_the_role():
    series = {"master": _line(0.0), "engine-1": _line(200_000.0)}

    judged = judge_growth(series, horizon_s=60.0, limit_bytes=4 << 20)

    assert judged.verdict is Verdict.FAIL
    assert judged.observed.startswith("engine-1 grows 11.4")


def test_a_step_while_caches_fill_and_single_readings_are_no_growth():
    filled = [(float(at), 5e7 if at > 15 else 1e7) for at in range(60)]
    filled[40] = (40.0, 9e7)

    judged = judge_growth({"store-0": filled}, horizon_s=60.0, limit_bytes=1 << 20)

    assert judged.verdict is Verdict.PASS


def test_too_few_readings_say_nothing_of_growth():
    few = judge_growth({"master": _line(0.0, 20)}, horizon_s=60.0, limit_bytes=1.0)

    assert few.verdict is Verdict.INCONCLUSIVE
    none = judge_growth({}, horizon_s=60.0, limit_bytes=1.0)
    assert none.verdict is Verdict.INCONCLUSIVE
