"""The command: its words, formats, files and exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

from checks import collector
from checks.cli import main

FIELDS = {
    "id",
    "node",
    "subject",
    "status",
    "severity",
    "observed",
    "expected",
    "source",
    "why",
    "fix",
    "blocked_by",
}


@pytest.fixture
def saved(tmp_path, healthy):
    """A function that saves documents as one file and returns its path."""

    def save(documents, name="facts.json"):
        path = tmp_path / name
        path.write_text(json.dumps(documents))
        return str(path)

    return save


@pytest.fixture
def good(saved, healthy):
    return saved(healthy.documents())


@pytest.fixture
def ill(saved, healthy, all_mutants):
    mutant = next(m for m in all_mutants if m.check == "nic-port-state")
    return saved(healthy.mutated(mutant), "ill.json")


def test_a_good_cohort_is_ready_and_an_ill_one_fails(good, ill, capsys):
    assert main(["judge", good, "--strict"]) == 0
    assert "verdict: ready" in capsys.readouterr().out
    assert main(["judge", ill]) == 1
    out = capsys.readouterr().out
    assert "nic-port-state  (critical)  node-07" in out
    assert "no link partner" in out


def test_json_is_the_report_with_every_finding(good, capsys):
    assert main(["judge", good, "--format", "json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "preflight.report/1"
    assert set(report["findings"][0]) >= FIELDS
    assert {f["status"] for f in report["findings"]} >= {"PASS"}
    assert report["summary"]["nodes"] == 16


def test_junit_has_a_failure_a_node_and_parses(ill, capsys):
    assert main(["judge", ill, "--format", "junit"]) == 1

    root = Xml.fromstring(capsys.readouterr().out)
    failures = root.findall(".//failure/..")
    assert {case.get("classname") for case in failures} == {"preflight.node-07"}
    suites = {s.get("name"): s.get("failures") for s in root.findall("testsuite")}
    assert suites["node-07"] == "1"
    assert suites["node-00"] == "0"


def test_nagios_is_one_line_with_its_own_exit_codes(good, ill, capsys):
    assert main(["judge", good, "--format", "nagios"]) == 0
    assert capsys.readouterr().out.startswith("PREFLIGHT OK - ")
    assert main(["judge", ill, "--format", "nagios"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("PREFLIGHT CRITICAL - nic-port-state on node-07 | ")
    assert out.count("\n") == 1


def test_markdown_and_openmetrics_name_the_node(ill, capsys):
    assert main(["judge", ill, "--format", "markdown"]) == 1
    assert "| FAIL | `nic-port-state` | node-07 |" in capsys.readouterr().out
    assert main(["judge", ill, "--format", "openmetrics"]) == 1
    out = capsys.readouterr().out
    assert 'preflight_bad{node="node-07",check="nic-port-state"' in out
    assert out.endswith("# EOF\n")


def test_an_output_directory_has_lists_for_schedulers(ill, tmp_path):
    folder = tmp_path / "out"

    assert main(["judge", ill, "--output", str(folder)]) == 1

    assert (folder / "failing_nodes.txt").read_text() == "node-07\n"
    passing = (folder / "passing_nodes.txt").read_text().splitlines()
    assert len(passing) == 15
    assert json.loads((folder / "report.json").read_text())["summary"]["nodes"] == 16
    assert main(["judge", str(folder / "facts.json")]) == 1


def test_several_files_arrays_and_framed_output_are_one_fleet(
    tmp_path, healthy, capsys
):
    framed = tmp_path / "a.txt"
    framed.write_text(collector.framed(healthy.document(0)))
    array = tmp_path / "b.json"
    array.write_text(json.dumps([healthy.document(1), healthy.document(2)]))

    assert main(["judge", str(framed), str(array), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["nodes"] == 3


@pytest.mark.parametrize(
    "words",
    [
        ["judge", "no-such-file.json"],
        ["judge"],
        ["judge", "{good}", "--format", "yaml"],
        ["judge", "{good}", "--only", "nope"],
        ["judge", "{good}", "--profile", "no-such-profile.yaml"],
        ["judge", "{good}", "--baseline", "no-such-baseline.json"],
        ["judge", "{cut}"],
        ["judge", "{other}"],
        ["--limit", "stores"],
        ["--inventory", "no-such-inventory.yaml"],
        ["explain", "nope"],
        ["list-checks", "--group", "nope"],
        ["frobnicate"],
        ["collect", "--out", "/no/such/dir/facts.json", "--sysroot", "/no/such"],
    ],
)
def test_wrong_usage_is_2_and_one_line(words, good, tmp_path, capsys):
    cut = tmp_path / "cut.json"
    cut.write_text('[{"schema": "preflight.fa')
    other = tmp_path / "other.json"
    other.write_text("{}")
    names = {"good": good, "cut": str(cut), "other": str(other)}

    assert main([word.format(**names) for word in words]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err


def test_our_own_crash_is_4(good, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("bug")

    monkeypatch.setattr("checks.judge.judge", broken)

    assert main(["judge", good]) == 4
    assert "our own fault" in capsys.readouterr().err


def test_a_lone_document_with_nothing_in_it_is_undetermined(saved):
    path = saved({"schema": "preflight.facts/1", "node": {"hostname": "n"}})

    assert main(["judge", path]) == 3


def test_collect_writes_facts_that_judge_reads(tmp_path):
    out = tmp_path / "facts.json"

    assert main(["collect", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["schema"] == "preflight.facts/1"
    assert main(["judge", str(out)]) in {0, 1, 3}


def test_sysroot_is_read_instead_of_this_node(tmp_path, capsys):
    port = tmp_path / "root/sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    (port / "phys_state").write_text("2: Polling\n")

    code = main(["--sysroot", str(tmp_path / "root"), "--format", "json"])

    found = json.loads(capsys.readouterr().out)["findings"]
    assert code == 1
    assert ("nic-port-state", "mlx5_0", "FAIL") in {
        (f["id"], f["subject"], f["status"]) for f in found
    }


def test_list_checks_shows_what_is_missing(capsys):
    assert main(["list-checks", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert len(rows) >= 230
    by_id = {row["id"]: row for row in rows}
    assert by_id["nic-count"]["state"] == "implemented"
    assert by_id["nic-count"]["batch"] == 1
    assert sum(row["batch"] == 1 for row in rows) == 37
    assert sum(row["batch"] == 2 for row in rows) == 38


def test_the_manual_tells_of_every_check(capsys):
    assert main(["list-checks", "--format", "markdown"]) == 0

    page = capsys.readouterr().out
    assert "### nic-count" in page
    assert "R36 infra-controller#3624" in page
    assert page.startswith("# The checks of preflight")


def test_the_manual_in_the_repository_is_what_the_rules_say(capsys):
    """Make it with: preflight list-checks --format markdown > docs/preflight.md"""
    assert main(["list-checks", "--format", "markdown"]) == 0

    page = Path(__file__).parents[2] / "docs/preflight.md"
    assert page.read_text(encoding="utf-8") == capsys.readouterr().out


def test_explain_tells_why_and_how_to_fix(capsys):
    assert main(["explain", "nic-count"]) == 0

    out = capsys.readouterr().out
    assert "why" in out
    assert "fix" in out


def test_learn_then_judge_by_the_profile(good, ill, tmp_path):
    profile = str(tmp_path / "golden.yaml")

    assert main(["learn", good, "--out", profile]) == 0
    assert main(["judge", good, "--profile", profile]) == 0
    assert main(["judge", ill, "--profile", profile]) == 1


def test_a_saved_baseline_is_compared_with(good, tmp_path):
    saved = str(tmp_path / "last.json")

    assert main(["judge", good, "--save-baseline", saved]) == 0
    assert main(["judge", good, "--baseline", saved, "--strict"]) == 0


def test_a_waiver_file_makes_an_ill_node_pass(ill, tmp_path, capsys):
    waivers = tmp_path / "waivers.yaml"
    waivers.write_text(
        "- {id: nic-port-state, node: node-07, until: 2999-12-31,"
        " reason: cable ordered}"
    )

    assert main(["judge", ill, "--waivers", str(waivers)]) == 0
    assert "cable ordered" in capsys.readouterr().out


def test_help_shows_examples_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "undetermined" in shown
    assert "  preflight judge " in shown
