from __future__ import annotations

import json

import numpy as np
import pytest

from chaos.canary.result import GateJudgement, GateResult
from chaos.canary.samples import Columns
from chaos.judge.verdict import Verdict
from chaos.report.html import write_gate_report
from chaos.report.html.gate_page import branches

BASE = {
    "name": "TTFT p99",
    "family": "relative",
    "metric": "ttft_s",
    "verdict": Verdict.FAIL,
    "limit": "<= 1.1x",
    "reason": "+27 %, at least +19 % (p 1e-05)",
    "baseline": 0.41,
    "canary": 0.52,
    "estimate": 1.27,
    "low": 1.19,
    "high": 1.35,
    "adjusted_p": 1e-5,
    "n_baseline": 3000,
    "n_canary": 3000,
}


def rule(**given):
    return GateJudgement(**{**BASE, **given})


def hit_rate(**given):
    fields = {
        "name": "hit rate",
        "metric": "hit_rate",
        "limit": ">= -0.75 pp",
        "verdict": Verdict.PASS,
        "baseline": 0.71,
        "canary": 0.708,
        "estimate": -0.002,
        "low": -0.004,
        "high": 0.001,
    }
    return rule(**{**fields, **given})


def invariant():
    return rule(
        name="wrong bytes",
        family="invariant",
        metric="wrong_bytes",
        verdict=Verdict.PASS,
        limit="0",
        reason="",
        baseline=0.0,
        canary=0.0,
        estimate=None,
        low=None,
        high=None,
        adjusted_p=None,
    )


def gate(*judgements, **given):
    rows = judgements or (rule(), hit_rate(), invariant())
    worst = max((row.verdict for row in rows), key=lambda one: one.severity)
    arms = {
        "baseline": {"system": "refimpl", "build": "1.0", "seed": 7},
        "canary": {"system": "refimpl", "build": "1.1", "seed": 7},
    }
    fields = {"verdict": worst, "policy_name": "default", "seed": 3, "arms": arms}
    return GateResult(judgements=rows, **{**fields, **given}).to_document()


def samples(arm, factor, *, timed=True):
    dice = np.random.default_rng(5)
    n = 300
    return Columns(
        arm=arm,
        ok=np.ones(n, dtype=bool),
        start_s=np.arange(n) * 0.1 if timed else None,
        metrics={"ttft_s": factor * dice.lognormal(-1, 0.3, n)},
        hit_tokens=np.full(n, 700.0),
        prompt_tokens=np.full(n, 1000.0),
        counters={"wrong_bytes": 0},
        complete=True,
    ).samples()


def write(tmp_path, document=None, baseline=None, canary=None):
    out = tmp_path / "gate" / "report.html"
    found = write_gate_report(document or gate(), baseline, canary, out)
    assert found == out
    return out.read_text()


def test_a_stopped_canary_says_by_what_and_by_how_much(tmp_path):
    text = write(tmp_path)

    assert "The canary is stopped: TTFT p99, 0.41 → 0.52" in text
    assert "estimate 1.27 [1.19, 1.35], allowed &lt;= 1.1x" in text
    assert "roll back" in text


def test_both_arms_are_drawn_and_ttft_of_the_reference_is_called_modelled(tmp_path):
    text = write(tmp_path, None, samples("baseline", 1.0), samples("canary", 1.3))

    names = {path.name for path in (tmp_path / "gate" / "plots").iterdir()}
    assert names == {
        f"gate-{kind}.{form}"
        for kind in ("forest", "time", "quantiles")
        for form in ("svg", "png")
    }
    assert "TTFT, modelled (s)" in text
    assert "cache wait" not in text.partition("<main")[2].partition('id="rules"')[0]


def test_a_real_system_is_not_called_modelled(tmp_path):
    arms = {"baseline": {"system": "mooncake"}, "canary": {"system": "mooncake"}}

    text = write(
        tmp_path, gate(arms=arms), samples("baseline", 1), samples("canary", 1)
    )

    assert "modelled" not in text


def test_samples_without_times_have_quantiles_and_no_time_line(tmp_path):
    one, two = (samples(arm, 1.0, timed=False) for arm in ("baseline", "canary"))

    write(tmp_path, None, one, two)

    names = {path.stem for path in (tmp_path / "gate" / "plots").iterdir()}
    assert names == {"gate-forest", "gate-quantiles"}


def test_an_inconclusive_gate_tells_its_reason_first_and_what_to_do(tmp_path):
    open_rule = rule(
        verdict=Verdict.INCONCLUSIVE, reason="could be +2 % .. +14 %", needs=800
    )
    document = gate(open_rule, on_inconclusive="extend", extend_by=800)

    text = write(tmp_path, document)

    assert text.index("Happened") < text.index("Compared") < text.index("Expected")
    assert "could be +2 % .. +14 %" in text
    assert "measure 800 samples an arm more" in text


def test_a_passing_gate_lets_go_on_and_an_empty_one_does_not(tmp_path):
    passing = write(tmp_path, gate(hit_rate(), invariant()))
    empty = {**gate(invariant()), "judgements": [], "verdict": "INCONCLUSIVE"}
    nothing = write(tmp_path, empty)

    assert "The canary may go on: 2 rules hold." in passing
    assert "Nothing was judged" in nothing
    assert "may go on" not in nothing


def test_directories_that_cannot_be_read_are_named_and_stop_nothing(tmp_path):
    there, gone = tmp_path / "empty", tmp_path / "gone"
    there.mkdir()

    text = write(tmp_path, None, there, gone)

    assert "no plots of baseline" in text
    assert "no plots of canary" in text
    assert f"canary judge --baseline {there} --canary {gone}</pre>" in text


def test_the_command_that_judges_again_may_be_given(tmp_path):
    out = tmp_path / "report.html"

    write_gate_report(gate(), None, None, out, command="canary judge --prometheus x")

    assert '<pre tabindex="0">canary judge --prometheus x</pre>' in out.read_text()


def test_a_measurement_directory_is_read(tmp_path):
    folder = tmp_path / "arm"
    folder.mkdir()
    meta = {
        "schema": "canary.samples/1",
        "arm": "baseline",
        "system": "refimpl",
        "build": "1.0",
        "time_scale": 0.1,
        "seed": 7,
        "complete": True,
        "requests": 20,
        "started_at": 1.0,
        "ended_at": 9.0,
        "counters": {"wrong_bytes": 0},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    rows = [
        {"request": i, "start_s": i * 0.1, "ok": True, "ttft_s": 0.4, "class": "4k"}
        for i in range(20)
    ]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")

    text = write(tmp_path, None, folder, None)

    assert "no plots of baseline" not in text
    assert (tmp_path / "gate" / "plots" / "gate-time.svg").exists()


def test_limits_are_read_as_ratios_and_as_differences():
    result = GateResult.from_document(gate())

    ratios, differences = branches(result)

    assert [(row.estimate, row.limit) for row in ratios] == [(1.27, 1.1)]
    assert [(row.estimate, row.limit) for row in differences] == [(-0.002, -0.0075)]


def test_another_document_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"canary\.verdict/1"):
        write_gate_report({"schema": "x"}, None, None, tmp_path / "r.html")


def test_hostile_words_in_a_document_stay_words(tmp_path):
    nasty = "<script>alert(1)</script>"
    arms = {nasty: {"system": nasty, nasty: nasty}}
    document = gate(rule(name=nasty, reason=nasty, limit=nasty), arms=arms)

    text = write(tmp_path, {**document, "notes": [nasty], "policy": nasty})

    assert "<script" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("kept", [True, False])
def test_the_command_that_judges_again_has_its_policy(tmp_path, kept):
    """Without it the default would judge, and may answer otherwise."""
    if kept:
        (tmp_path / "policy.yaml").write_text("schema: canary.policy/1\n")
    arms = [tmp_path / "baseline", tmp_path / "canary"]
    out = tmp_path / "report.html"

    write_gate_report(gate(policy_name="live"), *arms, out)

    told = f"--canary {arms[1]} --policy {tmp_path / 'policy.yaml'}</pre>"
    assert (told in out.read_text()) is kept
    assert ("canary judge" in out.read_text()) is kept
