from __future__ import annotations

from dataclasses import replace

from chaos.cli import main
from chaos.history.rejudge import recorded
from chaos.judge.limit import at_most, none_of
from chaos.judge.verdict import Verdict
from chaos.report.analyze import analyze
from chaos.report.run import RunReport

LENIENT = none_of("O1", "bytes", 0, of=9, what="wrong")


def write(tmp_path, fabricate, *, broken=False, **answer):
    report = RunReport.open(tmp_path, "x", 3, cwd=tmp_path)
    report.history.test = "t::loaded"
    report.history.limits(fabricate.limits())
    for sample in fabricate.arm(1, **answer):
        expected = f"out-{sample.request.request_id}"
        report.history.complete(sample, "healthy", expected)
    report.add_judgement("t::loaded", LENIENT)
    if broken:
        report.add_judgement("t::loaded", at_most("O7b", "loss", 2, 1, samples=9))
    report.add_judgement("t::bare", LENIENT)
    report.close(unreported=set(Verdict))
    return report.path


def verdicts(document):
    return {one.nodeid: one.verdict for one in document.outcomes}


def test_a_sound_run_is_judged_the_same(tmp_path, fabricate):
    document = analyze(write(tmp_path, fabricate))

    assert verdicts(document) == {
        "t::bare": Verdict.PASS,
        "t::loaded": Verdict.PASS,
    }
    assert document.notes == (
        "not judged again, no history: t::bare",
        "1 judgements kept as recorded: t::loaded",
    )


def test_what_the_first_judge_overlooked_is_found(tmp_path, fabricate):
    document = analyze(write(tmp_path, fabricate, output_hash="stale"))

    assert verdicts(document)["t::loaded"] is Verdict.FAIL
    assert document.exit_code == 1


def test_a_broken_law_whose_facts_were_not_kept_stays_broken(tmp_path, fabricate):
    """The history holds the requests; who owned which page it does not hold."""
    path = write(tmp_path, fabricate, broken=True)

    document = analyze(path)

    assert verdicts(document)["t::loaded"] is Verdict.FAIL
    assert document.exit_code == 1


def test_what_is_judged_again_from_its_facts_replaces_what_was_recorded(tmp_path):
    report = RunReport.open(tmp_path, "x", 3, cwd=tmp_path)
    report.history.test = "t::facts"
    judged = recorded(report.history, none_of, "O1", "bytes", 0, of=9, what="wrong")
    report.add_judgement("t::facts", replace(judged, verdict=Verdict.FAIL))
    report.close(unreported=set(Verdict))

    (outcome,) = analyze(report.path).outcomes

    assert outcome.judgements == (judged,)


def test_the_command_of_a_scenario_is_kept(tmp_path):
    report = RunReport.open(tmp_path, "x", 3, cwd=tmp_path, command=("chaos", "run"))
    report.add_judgement("s.yaml", LENIENT)
    report.close(unreported=set(Verdict))

    (outcome,) = analyze(report.path).outcomes

    assert outcome.reproduce == "chaos run s.yaml --seed 3"


def test_a_killed_run_can_be_analyzed(tmp_path, fabricate):
    path = write(tmp_path, fabricate)
    (path / "verdict.json").unlink()

    document = analyze(path)

    assert document.aborted == "the run was killed"
    assert document.verdict is Verdict.INCONCLUSIVE


def test_a_broken_claim_that_was_recorded_twice_does_not_vanish(tmp_path):
    """One of two judgements of the same claim has its facts in the history."""
    report = RunReport.open(tmp_path, "x", 3, cwd=tmp_path)
    report.history.test = "t::twice"
    judged = recorded(report.history, none_of, "O1", "bytes", 0, of=9, what="wrong")
    broken = none_of("O1", "bytes", 2, of=9, what="wrong")
    report.add_judgement("t::twice", judged)
    report.add_judgement("t::twice", broken)
    report.close(unreported=set(Verdict))

    document = analyze(report.path)

    assert document.outcomes[0].judgements == (judged, broken)
    assert document.exit_code == 1


def test_results_that_are_not_whole_are_a_usage_error(tmp_path, fabricate, capsys):
    path = write(tmp_path, fabricate)
    (path / "schedule.json").unlink()

    assert main(["analyze", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
