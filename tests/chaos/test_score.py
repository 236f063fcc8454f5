from __future__ import annotations

import json

from chaos.score import Result, Score, read_result, score

TESTS = {"deadline_ignored": ("t::a", "t::b"), "placement_random": ("t::b",)}
GREEN = Result(passed=True, failed=(), inconclusive=())


def red(*failed: str) -> Result:
    return Result(passed=False, failed=failed, inconclusive=())


def test_all_caught_and_no_clean_alarm_is_good() -> None:
    asked: list[tuple[list[str], str]] = []

    def run(nodes, defect):
        asked.append((list(nodes), defect))
        return red(nodes[0]) if defect else GREEN

    result = score(TESTS, run)

    assert result.good
    assert result.to_json() == {
        "caught": 2,
        "total": 2,
        "missed": [],
        "false_alarms": [],
    }
    assert asked == [
        (["t::a", "t::b"], ""),
        (["t::a", "t::b"], "deadline_ignored"),
        (["t::b"], "placement_random"),
    ]


def test_a_defect_that_stays_green_is_missed() -> None:
    def run(nodes, defect):
        return red("t::a") if defect == "deadline_ignored" else GREEN

    result = score(TESTS, run)

    assert not result.good
    assert result.missed == ("placement_random",)


def test_inconclusive_is_not_caught() -> None:
    unsure = Result(passed=False, failed=(), inconclusive=("t::a",))

    result = score(TESTS, lambda _, defect: unsure if defect else GREEN)

    assert result.missed == tuple(TESTS)


def test_a_clean_run_that_alarms_spoils_the_score() -> None:
    result = score(TESTS, lambda nodes, defect: red(nodes[0]))

    assert result.caught == tuple(TESTS)
    assert result.false_alarms == ("t::a",)
    assert not result.good


def test_a_clean_run_that_broke_without_a_verdict_is_an_alarm() -> None:
    broken = Result(passed=False, failed=(), inconclusive=(), reason="an error")

    result = score(TESTS, lambda nodes, defect: red("x") if defect else broken)

    assert result.false_alarms == ("an error",)


def test_a_score_of_nothing_is_not_good() -> None:
    assert not Score(caught=(), missed=(), false_alarms=()).good


def test_verdicts_are_read_from_the_run_and_not_from_its_links(tmp_path) -> None:
    run = tmp_path / "chaos" / "20260101T000000Z-1"
    run.mkdir(parents=True)
    (run.parent / "latest").symlink_to(run.name)
    (tmp_path / "latest").symlink_to("chaos/20260101T000000Z-1")
    tests = [
        {"nodeid": "t::a", "verdict": "FAIL"},
        {"nodeid": "t::b", "verdict": "INCONCLUSIVE"},
        {"nodeid": "t::c", "verdict": "PASS"},
    ]
    (run / "verdict.json").write_text(json.dumps({"tests": tests}))

    result = read_result(tmp_path, passed=False)

    assert result.failed == ("t::a",)
    assert result.inconclusive == ("t::b",)


def test_what_was_found_is_said_as_it_comes() -> None:
    said: list[str] = []
    score(TESTS, lambda nodes, defect: red("t::b") if defect else GREEN, said.append)

    assert said == [
        "clean: no alarm",
        "deadline_ignored: caught by t::b",
        "placement_random: caught by t::b",
    ]
