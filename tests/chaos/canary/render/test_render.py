from __future__ import annotations

import json
from xml.etree import ElementTree as Xml

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from chaos.canary.render import FORMATS
from chaos.canary.render.github import MOST, github
from chaos.canary.render.junit import junit
from chaos.canary.render.markdown import BUDGET_BYTES, markdown
from chaos.canary.render.table import render, table
from chaos.canary.result import GateJudgement, GateResult, worst
from chaos.judge.verdict import Verdict

NASTY = "a|b `c` <script>x</script> [l](http://x) \x1b[31m\x00\n::error::no\r\nend %0A"


def rule(name="ttft_s p99", verdict=Verdict.PASS, **fields):
    given = {
        "family": "relative",
        "metric": "ttft_s",
        "limit": "<= 1.1x",
        "reason": "1.03x, at most 1.07x",
        "baseline": 0.4,
        "canary": 0.412,
        "estimate": 1.03,
        "low": 0.99,
        "high": 1.07,
        "n_baseline": 2000,
        "n_canary": 2000,
        "detectable": 1.05,
        "design": "paired",
    }
    return GateJudgement(name=name, verdict=verdict, **{**given, **fields})


def result(*judgements, **fields):
    return GateResult(
        **{
            "verdict": worst(judgements),
            "judgements": judgements,
            "policy_name": "default",
            "seed": 7,
            "arms": {"baseline": {"build": "v1", "rows": 2000}, "canary": {}},
            **fields,
        }
    )


ALL = result(
    rule(),
    rule("ttft_s p50", Verdict.FAIL, reason="1.31x, at least 1.29x"),
    rule(
        "hit_rate",
        Verdict.INCONCLUSIVE,
        metric="hit_rate",
        limit=">= -0.75 pp",
        baseline=0.75,
        canary=0.746,
        estimate=-0.004,
        low=-0.011,
        high=0.003,
        needs=4000,
        detectable=-0.009,
    ),
    rule(
        "wrong_bytes",
        family="invariant",
        metric="wrong_bytes",
        limit="0",
        baseline=0.0,
        canary=0.0,
        estimate=None,
        low=None,
        high=None,
        reason="none in either arm",
    ),
    notes=("tpot_s p50 was not judged",),
)


@pytest.mark.parametrize("form", FORMATS)
def test_every_shape_says_the_verdict_and_every_rule_that_is_not_well(form) -> None:
    told = FORMATS[form](ALL, command="canary judge --baseline b")

    assert "FAIL" in told
    for name in ("p50", "hit"):
        assert name in told
    if form != "openmetrics":
        assert "canary judge --baseline b" in told


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("verdict", Verdict)
def test_an_open_or_failed_verdict_never_looks_like_a_pass(form, verdict) -> None:
    told = FORMATS[form](result(rule(verdict=verdict)))
    marks = {
        "table": "verdict: PASS",
        "json": '"verdict": "PASS"',
        "junit": 'name="verdict" value="PASS"',
        "markdown": "## canary: ✅ PASS",
        "github": "::notice title=canary::PASS",
        "openmetrics": 'canary_verdict{policy="default",verdict="PASS"} 1.0',
    }

    assert (marks[form] in told) is (verdict is Verdict.PASS)


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_judged_is_inconclusive_in_every_shape(form) -> None:
    told = FORMATS[form](result())

    assert "INCONCLUSIVE" in told
    assert "✅" not in told


def test_the_table_shows_numbers_with_their_bounds() -> None:
    told = table(ALL)

    assert "+3 % [-1, +7]" in told
    assert "-0.4 pp [-1.1, +0.3]" in told
    assert "2000 pairs" in told
    assert "PASS invariant, all 0: wrong_bytes" in told
    assert told.index("FAIL") < told.index("INCONCLUSIVE")
    assert "\x1b" not in told
    assert render(ALL.to_document()) == table(ALL)


@pytest.mark.parametrize("form", ["table", "junit", "markdown", "github"])
def test_a_ttft_from_a_model_says_so_wherever_it_is_shown(form) -> None:
    bad = rule(verdict=Verdict.FAIL)
    modelled = {"baseline": {"system": "refimpl"}, "canary": {"system": "refimpl"}}

    assert "ttft" in FORMATS[form](result(bad, arms=modelled))
    assert "(modelled)" in FORMATS[form](result(bad, arms=modelled))
    assert "(modelled)" not in FORMATS[form](result(bad))


def test_the_arms_are_named_with_their_builds() -> None:
    assert "baseline: build v1, 2000 rows" in table(ALL)
    assert "- baseline: build v1, 2000 rows" in markdown(ALL)


def test_colour_is_only_there_when_it_was_asked_for() -> None:
    assert "\x1b[" in table(ALL, color=True)


@pytest.mark.parametrize("form", ["table", "junit", "markdown", "github"])
def test_a_hostile_name_stays_on_its_line_and_is_shown_as_text(form) -> None:
    bad = rule(NASTY, Verdict.FAIL, reason=NASTY)
    told = FORMATS[form](result(bad, notes=(NASTY,), policy_name=NASTY))

    assert "\x1b" not in told
    assert "\x00" not in told
    if form == "github":
        lines = told.splitlines()
        assert all(line.startswith("::error title=") for line in lines)
        assert len(lines) == 2
    if form == "markdown":
        assert "<script>" not in told
        rows = [line for line in told.splitlines() if line.startswith("| ❌")]
        assert [row.count(" | ") for row in rows] == [7]
    if form == "junit":
        Xml.fromstring(told)


def test_json_is_the_document_and_reads_back() -> None:
    document = json.loads(FORMATS["json"](ALL, command="again"))

    assert document.pop("command") == "again"
    assert GateResult.from_document(document).to_document() == ALL.to_document()


# -- JUnit -------------------------------------------------------------------------


def cases(told):
    found = {}
    for case in Xml.fromstring(told).iter("testcase"):
        found[case.get("name")] = [child.tag for child in case]
    return found


def test_junit_tells_fail_and_open_apart() -> None:
    assert cases(junit(ALL)) == {
        "ttft_s p99": ["system-out"],
        "ttft_s p50": ["failure"],
        "hit_rate": ["error"],
        "wrong_bytes": ["system-out"],
    }


def test_junit_counts_what_it_holds() -> None:
    for suite in Xml.fromstring(junit(ALL)):
        tags = [child.tag for case in suite.iter("testcase") for child in case]
        assert int(suite.get("tests")) == len(list(suite.iter("testcase")))
        assert int(suite.get("failures")) == tags.count("failure")
        assert int(suite.get("errors")) == tags.count("error")


def test_an_open_rule_is_skipped_in_junit_only_when_it_does_not_block() -> None:
    told = junit(result(rule(verdict=Verdict.INCONCLUSIVE), on_inconclusive="warn"))

    assert cases(told) == {"ttft_s p99": ["skipped"]}


# -- the step summary --------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 50, 6_000])
def test_the_summary_fits_however_many_rules_there_are(count) -> None:
    rules = [
        rule(f"rule {n} é", Verdict.INCONCLUSIVE, reason="why " * 40)
        for n in range(count)
    ]
    told = markdown(result(*rules), command="canary judge")

    assert len(told.encode()) <= BUDGET_BYTES < 1 << 20
    assert told.startswith("## canary: ⚠️ INCONCLUSIVE")
    assert told.rstrip().endswith("Again: `canary judge`")
    assert ("left out" in told) is (count == 6_000)


def test_what_is_cut_from_the_summary_is_counted() -> None:
    rules = [rule(f"rule {n}", Verdict.FAIL) for n in range(100)]
    told = markdown(result(*rules), budget_bytes=4000)
    shown = sum(line.startswith("| ❌") for line in told.splitlines())

    assert len(told.encode()) <= 4000
    assert f"{100 - shown} more lines were left out" in told


# -- annotations -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 500])
def test_never_more_annotations_than_a_step_may_have(count) -> None:
    rules = [rule(f"rule {n}", Verdict.FAIL) for n in range(count)]
    lines = github(result(*rules)).splitlines()

    assert len(lines) <= 10
    more = count - MOST
    assert any(f"{more} more rules in the summary" in line for line in lines) is (
        more > 0
    )


def test_the_worst_rules_are_annotated_first() -> None:
    open_rules = [rule(f"open {n}", Verdict.INCONCLUSIVE) for n in range(20)]
    told = github(result(*open_rules, rule("broken", Verdict.FAIL)))

    assert told.splitlines()[1].startswith("::error title=canary FAIL%3A broken::")


def test_an_open_verdict_that_is_let_through_is_a_warning_and_no_error() -> None:
    open_rule = rule(verdict=Verdict.INCONCLUSIVE)

    assert "::error" in github(result(open_rule))
    told = github(result(open_rule, on_inconclusive="warn"))
    assert "::error" not in told
    assert told.startswith("::warning ")


# -- OpenMetrics -------------------------------------------------------------------


def test_openmetrics_is_read_by_a_parser() -> None:
    told = FORMATS["openmetrics"](ALL)
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    }

    assert told.endswith("# EOF\n")
    assert samples[("canary_exit_code", ())] == 1
    key = (("family", "relative"), ("rule", "ttft_s p50"), ("verdict", "FAIL"))
    assert samples[("canary_rule", key)] == 1
    needed = (("family", "relative"), ("rule", "hit_rate"))
    assert samples[("canary_rule_needed_samples", needed)] == 4000
    invariant = (("family", "invariant"), ("rule", "wrong_bytes"))
    assert ("canary_rule_change", invariant) not in samples
