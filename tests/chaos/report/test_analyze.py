from __future__ import annotations

from chaos.judge.limit import none_of
from chaos.judge.verdict import Verdict
from chaos.report.analyze import analyze
from chaos.report.run import RunReport

LENIENT = none_of("O1", "bytes", 0, of=9, what="wrong")


def write(tmp_path, fabricate, **answer):
    report = RunReport.open(tmp_path, "x", 3, cwd=tmp_path)
    report.history.test = "t::loaded"
    report.history.limits(fabricate.limits())
    for sample in fabricate.arm(1, **answer):
        expected = f"out-{sample.request.request_id}"
        report.history.complete(sample, "healthy", expected)
    report.add_judgement("t::loaded", LENIENT)
    report.add_judgement("t::bare", LENIENT)
    report.close()
    return report.path


def verdicts(document):
    return {one.nodeid: one.verdict for one in document.outcomes}


def test_a_sound_run_is_judged_the_same(tmp_path, fabricate):
    document = analyze(write(tmp_path, fabricate))

    assert verdicts(document) == {
        "t::bare": Verdict.PASS,
        "t::loaded": Verdict.PASS,
    }
    assert document.notes == ("not judged again, no history: t::bare",)


def test_what_the_first_judge_overlooked_is_found(tmp_path, fabricate):
    document = analyze(write(tmp_path, fabricate, output_hash="stale"))

    assert verdicts(document)["t::loaded"] is Verdict.FAIL
    assert document.exit_code == 1


def test_a_killed_run_can_be_analyzed(tmp_path, fabricate):
    path = write(tmp_path, fabricate)
    (path / "verdict.json").unlink()

    document = analyze(path)

    assert document.aborted == "the run was killed"
    assert document.verdict is Verdict.INCONCLUSIVE
