from __future__ import annotations

import json

import pytest

from chaos.cli import main
from chaos.judge.limit import at_most, inconclusive, none_of
from chaos.judge.verdict import Verdict
from chaos.report.diff import diff
from chaos.report.run import RunReport

GOOD = none_of("O1", "bytes", 0, of=9, what="wrong")
BAD = none_of("O1", "bytes", 2, of=9, what="wrong")
DOUBT = inconclusive("O1", "bytes", "nothing was read")
FASTER = at_most("O2", "wait", 0.1, 0.3, samples=9, unit="s")
SLOWER = at_most("O2", "wait", 0.2, 0.3, samples=9, unit="s")


@pytest.fixture
def run(tmp_path, fabricate):
    def write(*tests, ttft_s=0.1, seed=1, **given):
        report = RunReport.open(tmp_path, "x", seed, cwd=tmp_path, argv=[], **given)
        for nodeid, *judgements in tests:
            report.history.test = nodeid
            for number in range(10):
                sample = fabricate.sample(f"r{number}", at_s=number, ttft_s=ttft_s)
                report.history.complete(sample, "fault")
            report.add_test(nodeid)
            for judgement in judgements:
                report.add_judgement(nodeid, judgement)
        report.close(unreported=set(Verdict))
        return report.path

    return write


def test_equal_runs_have_no_difference(run):
    found = diff(run(("t", GOOD, FASTER)), run(("t", GOOD, FASTER)))

    assert found.changes == ()
    assert (found.verdict, found.exit_code) == (Verdict.PASS, 0)
    assert "no difference" in found.lines()[2]


@pytest.mark.parametrize(
    ("after", "code"),
    [((BAD,), 1), ((DOUBT,), 3), ((GOOD,), 0), ((), 3)],
    ids=["fails", "doubt", "good", "not judged"],
)
def test_a_test_that_got_worse_decides(run, after, code):
    assert diff(run(("t", GOOD)), run(("t", *after))).exit_code == code


def test_a_test_that_got_better_is_told_and_is_no_harm(run):
    found = diff(run(("t", BAD)), run(("t", GOOD)))

    assert found.exit_code == 0
    assert {one.what for one in found.changes} == {"test", "judgement"}


def test_a_test_that_is_gone_is_no_pass(run):
    found = diff(run(("t", GOOD), ("u", GOOD)), run(("t", GOOD)))

    assert found.exit_code == 3
    (change,) = found.changes
    assert (change.test, change.after, change.worse) == ("u", "not run", True)


def test_runs_without_a_common_test_cannot_be_compared(run):
    found = diff(run(("t", GOOD)), run(("u", GOOD)))

    assert found.exit_code == 3
    assert "nothing can be compared" in "\n".join(found.lines())


def test_counters_are_compared_exactly_and_times_are_not_judged(run):
    three = none_of("O1", "bytes", 3, of=9, what="wrong")
    found = diff(run(("t", BAD, FASTER)), run(("t", three, SLOWER), ttft_s=0.2))

    whats = {(one.what, one.worse) for one in found.changes}
    assert whats == {("counter", False), ("arm", False)}
    ttft = next(one for one in found.changes if one.name == "fault TTFT (modelled) p50")
    assert (ttft.before, ttft.after) == ("0.1 s", "0.2 s (x 2)")
    assert found.exit_code == 0


def test_what_ran_otherwise_is_told(run):
    found = diff(run(("t", GOOD)), run(("t", GOOD), seed=2, options=["--defect", "x"]))

    told = {one.name: (one.before, one.after) for one in found.changes}
    assert told["seed"] == ("1", "2")
    assert told["options"] == ("none", "--defect x")


def test_the_command_ends_with_its_verdict(run, capsys):
    before, after = run(("t", GOOD)), run(("t", BAD))

    assert main(["diff", str(before), str(after), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "FAIL"
    assert main(["diff", str(before), str(after)]) == 1
    assert "WORSE test t verdict: PASS -> FAIL" in capsys.readouterr().out


def test_no_run_is_a_usage_error_in_one_line(run, tmp_path, capsys):
    path = run(("t", GOOD))
    (path / "verdict.json").write_text("[]")

    assert main(["diff", str(tmp_path / "gone"), str(path)]) == 2
    assert main(["diff", str(path), str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [({"residual": ["store-1 is frozen"]}, 1), ({"aborted": "Ctrl-C"}, 3)],
    ids=["residual", "aborted"],
)
def test_what_a_run_left_behind_or_left_out_is_no_pass(run, change, code):
    """No test tells of it: the same tests with the same verdicts are in both."""
    before, after = run(("t", GOOD)), run(("t", GOOD))
    path = after / "verdict.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    assert diff(before, after).exit_code == code
    assert diff(after, before).exit_code == 0


def test_a_run_is_not_compared_with_itself(run, tmp_path, capsys):
    path = run(("t", GOOD))
    (tmp_path / "latest-one").symlink_to(path)

    assert main(["diff", str(path), str(tmp_path / "latest-one")]) == 2
    assert "are the same run" in capsys.readouterr().err
