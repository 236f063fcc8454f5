from __future__ import annotations

from chaos.judge.limit import none_of
from chaos.judge.verdict import Verdict
from chaos.report.analyze import analyze
from chaos.report.reports import write_analysis
from chaos.report.run import RunReport

GOOD = none_of("O1", "bytes", 0, of=9, what="wrong")
REPORTS = ("report.html", "report.md", "metrics.prom")


def write(tmp_path, fabricate):
    report = RunReport.open(tmp_path / "results", "x", 3, cwd=tmp_path)
    report.history.test = "t::loaded"
    for sample in fabricate.arm(1, requests=40):
        report.history.complete(sample, "healthy", f"out-{sample.request.request_id}")
    report.add_judgement("t::loaded", GOOD)
    report.close()
    return report.path


def test_every_run_leaves_its_reports(tmp_path, fabricate):
    path = write(tmp_path, fabricate)

    assert all((path / name).stat().st_size for name in REPORTS)
    assert len(list((path / "plots").iterdir())) == 4
    assert "](plots/01-loaded-time.png)" in (path / "report.md").read_text()


def test_a_report_that_fails_is_one_line_and_changes_no_verdict(
    tmp_path, fabricate, monkeypatch, capsys
):
    def broken(*_):
        message = "no\nroom"
        raise OSError(message)

    monkeypatch.setattr("chaos.report.html.write.run_page", broken)

    path = write(tmp_path, fabricate)

    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"chaos: warning: {path}: no report was written: OSError: no room"
    assert '"verdict": "PASS"' in (path / "verdict.json").read_text()
    assert not (path / "report.html").exists()


def test_a_run_that_is_judged_again_is_reported_beside_what_was_recorded(
    tmp_path, fabricate
):
    path = write(tmp_path, fabricate)
    before = {name: (path / name).read_bytes() for name in REPORTS}

    page = write_analysis(path, analyze(path))

    assert page == path / "analysis" / "report.html"
    assert "no request fails because of the cache (healthy arm)" in page.read_text()
    assert {name: (path / name).read_bytes() for name in REPORTS} == before


def test_whose_results_are_thrown_away_is_not_reported(tmp_path):
    report = RunReport.open(tmp_path / "results", "x", 3, cwd=tmp_path)
    report.add_judgement("t::one", GOOD)

    report.close(unreported={Verdict.PASS})

    assert (report.path / "verdict.json").exists()
    assert not any((report.path / name).exists() for name in REPORTS)
