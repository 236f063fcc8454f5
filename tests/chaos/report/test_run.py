from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime

import pytest

from chaos.faults.base import Evidence, Receipt
from chaos.history.history import read_history
from chaos.judge.limit import at_most, none_of
from chaos.judge.verdict import Verdict
from chaos.report.histogram import read_hlog
from chaos.report.run import RunReport, document_at, git_state

GOOD = at_most("O2", "wait", 0.2, 0.3, samples=512, unit="s")
BAD = none_of("O1", "bytes", 1, of=9, what="wrong")
STARTED = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)


@pytest.fixture
def report(tmp_path):
    made = RunReport.open(
        tmp_path / "results",
        "partial_reuse",
        7,
        time_scale=0.1,
        system="refimpl",
        target="local",
        argv=["pytest", "suites/chaos"],
        options=["--time-scale", "0.1"],
        capabilities={"proxy": "embedded"},
        started=STARTED,
        cwd=tmp_path,
    )
    yield made
    made.close()


def receipt(**fields):
    evidence = Evidence(measure="process gone", effect=1.0)
    fields = {"fault_id": "f1", "evidence": evidence, **fields}
    return Receipt(kind="kill", target="store-1", **fields)


def read(report, name):
    return json.loads((report.path / name).read_text())


def test_a_run_has_its_place_and_its_identity(report, tmp_path):
    run = read(report, "run.json")

    assert report.path == tmp_path / "results/partial_reuse/20260301T123005Z-7"
    assert run["argv"] == ["pytest", "suites/chaos"]
    assert (run["seed"], run["time_scale"]) == (7, 0.1)
    assert run["versions"]["python"]
    assert run["capabilities"] == {"proxy": "embedded"}


def test_close_writes_everything_and_moves_latest(report, tmp_path):
    report.add_judgement("t::good", GOOD)
    report.add_judgement("t::bad", BAD)
    report.add_receipt(receipt(), "t::bad")
    report.record("ttft-fault", 1.0, 0.25)
    report.history.info("note")

    document = report.close()

    assert document.verdict is Verdict.FAIL
    verdict = read(report, "verdict.json")
    assert (verdict["verdict"], verdict["exit_code"]) == ("FAIL", 1)
    bad = next(test for test in verdict["tests"] if test["nodeid"] == "t::bad")
    assert bad["reproduce"] == "pytest t::bad --seed 7 --time-scale 0.1"
    (fault,) = read(report, "schedule.json")["faults"]
    assert (fault["kind"], fault["test"]) == ("kill", "t::bad")
    assert len(read_history(report.path / "history.jsonl")) == 1
    assert read_hlog(report.path / "hist/ttft-fault.hlog").get_total_count() == 1
    assert (report.path / "summary.md").read_text().startswith("# partial_reuse: FAIL")
    for link in ("results/latest", "results/partial_reuse/latest"):
        assert (tmp_path / link).resolve() == report.path


def test_the_document_is_read_back(report):
    report.add_judgement("t::good", GOOD)
    report.add_receipt(receipt(), "t::good")

    assert document_at(report.path).aborted == "the run was killed"
    closed = report.close()

    assert document_at(report.path) == closed


def test_a_killed_run_keeps_its_verdicts(report):
    """Nothing is closed, as after SIGKILL: the parts are there."""
    report.add_judgement("t::bad", BAD)
    with (report.path / "parts/main.jsonl").open("a") as part:
        part.write('{"kind": "judgem')

    document = document_at(report.path)

    assert document.verdict is Verdict.FAIL
    assert document.notes == ("main.jsonl: a line was cut",)


def test_an_abort_is_written_with_its_reason_and_cannot_pass(report):
    report.add_judgement("t::good", GOOD)

    report.close(aborted="SIGTERM")

    assert read(report, "verdict.json")["aborted"] == "SIGTERM"
    assert read(report, "verdict.json")["verdict"] == "INCONCLUSIVE"


def test_a_test_without_judgements_and_a_broken_test_cannot_pass(report):
    report.add_test("t::silent")
    report.add_judgement("t::broken", GOOD)
    report.add_error("t::broken", "KeyError: 'x'")

    by_name = {one.nodeid: one.verdict for one in report.close().outcomes}

    assert by_name == {
        "t::silent": Verdict.INCONCLUSIVE,
        "t::broken": Verdict.INCONCLUSIVE,
    }


def test_workers_are_merged_by_the_controller(report):
    for worker in ("gw0", "gw1"):
        part = RunReport.attach(report.path, worker)
        part.add_judgement(f"t::{worker}", GOOD)
        part.record("ttft", 1.0, 0.25)
        part.history.info("note")
        assert part.close() is None

    document = report.close()

    assert [one.nodeid for one in document.outcomes] == ["t::gw0", "t::gw1"]
    assert len(read_history(report.path / "history.jsonl")) == 2
    assert not list(report.path.glob("history-*"))
    assert len(list((report.path / "hist").iterdir())) == 2


def test_a_history_cut_by_a_killed_worker_says_so(report):
    (report.path / "history-gw0.jsonl").write_text('{"t": 1.0, "typ')

    report.close()

    (event,) = read_history(report.path / "history.jsonl")
    assert event.operation == "truncated"


def test_the_last_receipt_of_a_fault_counts(report):
    report.add_receipt(receipt(injected_at_s=1.0))
    report.add_receipt(receipt(injected_at_s=1.0, reverted_at_s=2.0))

    (fault,) = report.close().faults

    assert fault["reverted_at_s"] == 2.0


def test_a_residual_fault_is_exit_code_five(report):
    report.add_judgement("t::good", GOOD)
    report.add_residual("pause(store-1): stopped")

    assert report.close().exit_code == 5


def test_two_runs_in_one_second_have_two_places(report, tmp_path):
    twin = RunReport.open(
        tmp_path / "results", "partial_reuse", 7, started=STARTED, cwd=tmp_path
    )
    twin.close()

    assert twin.path.name == f"{report.path.name}-2"


def test_closing_twice_gives_the_same_and_nothing_is_taken_afterwards(report):
    report.add_judgement("t::good", GOOD)
    first = report.close()

    assert report.close() == first
    with pytest.raises(ValueError, match="closed"):
        report.add_judgement("t::late", GOOD)


def test_odd_names_stay_inside_the_results(tmp_path):
    made = RunReport.open(tmp_path, "../../etc", 1, cwd=tmp_path)
    made.record("a/b", 1.0, 0.1)
    made.close()

    assert made.path.is_relative_to(tmp_path)
    assert (made.path / "hist/a_b.hlog").exists()


def test_a_dropped_value_is_noted(report):
    report.record("ttft", 1.0, 700.0)

    assert report.close().notes == ("ttft: 1 values dropped",)


def test_git_head_and_dirt_are_recorded(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True
        )

    assert git_state(tmp_path / "missing") == {"head": "unknown", "dirty": "unknown"}
    git("init", "-q")
    (tmp_path / "a").write_text("a")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    clean = git_state(tmp_path)
    (tmp_path / "a").write_text("b")

    assert len(str(clean["head"])) == 40
    assert clean["dirty"] is False
    assert git_state(tmp_path)["dirty"] is True
