"""Expectations of tests: which row speaks, and what stays red."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.errors import HarnessError, UsageError
from chaos.expected import ROW, Expected, expect, load_expected, refusal_of
from chaos.judge.verdict import Judgement, Verdict

SUITES = Path(__file__).parents[2] / "suites"
FILE = """
system: other
version: "2"
tests:
  - {test: "test_a.py::test_x[one]", expect: sometimes, breaks: ["O2: c"], reference: a}
  - {test: "test_a.py::test_y*", target: netns, settings: tuned, expect: sometimes,
     breaks: ["O2: c"], reference: b}
"""


class Item:
    def __init__(self, folder, nodeid):
        self.path = folder / "chaos" / nodeid.partition("::")[0]
        self.nodeid = f"suites/chaos/{nodeid}"
        self.marks = []
        self.stash = pytest.Stash()

    def add_marker(self, mark):
        self.marks.append(mark)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "conformance" / "tests"
    place.mkdir(parents=True)
    (place / "other.yaml").write_text(FILE)
    return tmp_path


def judgement(law, verdict) -> Judgement:
    oracle, _, claim = law.partition(": ")
    told = {"observed": "", "threshold": "", "samples": 1}
    return Judgement(oracle=oracle, claim=claim or "c", verdict=verdict, **told)


def excused(row, error) -> bool:
    """Whether pytest would say `xfailed` where a test ends like this."""
    return isinstance(error, row.mark().kwargs["raises"])


def excuses(row, *told) -> bool:
    """The same of a test that ends with these laws and verdicts."""
    judged = [judgement(oracle, verdict) for oracle, verdict in told]
    return excused(row, refusal_of(judged, "x", row))


def row_of(*breaks, **changes) -> Expected:
    told = {"test": "t", "expect": "sometimes", "reference": "r", **changes}
    return Expected(breaks=breaks, **told)


def marked(folder, nodeid, **told) -> bool:
    item = Item(folder, nodeid)
    here = {"system": "other", "version": "2", "target": "local", **told}
    expect([item], **{"settings": "default", **here})
    assert (ROW in item.stash) is bool(item.marks)
    return bool(item.marks)


def test_a_row_is_of_one_parameter_of_one_test(folder) -> None:
    assert marked(folder, "test_a.py::test_x[one]")
    assert not marked(folder, "test_a.py::test_x[o]")
    assert not marked(folder, "test_b.py::test_x[one]")


def test_a_row_is_of_its_target_and_settings_only(folder) -> None:
    test = "test_a.py::test_y[z]"

    assert marked(folder, test, target="netns", settings="tuned")
    assert not marked(folder, test, settings="tuned")
    assert not marked(folder, test, target="netns")


@pytest.mark.parametrize("other", [{"system": "refimpl"}, {"version": "2.1"}])
def test_another_system_or_version_has_no_expectations(folder, other) -> None:
    assert not marked(folder, "test_a.py::test_x[one]", **other)


def test_fails_is_said_only_of_twenty_of_twenty_and_a_pass_is_then_a_finding() -> None:
    with pytest.raises(ValueError, match="20 of 20"):
        row_of("O2: c", expect="fails", seen={"failed": 19})
    row = row_of("O2: c", expect="fails", seen={"failed": 20})

    assert row.mark().kwargs["strict"]
    assert not row_of("O2: c").mark().kwargs["strict"]


@pytest.mark.parametrize(
    ("expect", "breaks"), [("fails", 0), ("sometimes", 0), ("holds", 1)]
)
def test_a_failure_that_is_expected_is_named(expect, breaks) -> None:
    with pytest.raises(ValueError, match="breaks"):
        row_of(*["O2: c"] * breaks, expect=expect, seen={"failed": 20})


@pytest.mark.parametrize("law", ["O2", "*", "O*: c", "O1: c", "O1: *", "assert", "O2:"])
def test_a_row_names_laws_as_a_report_does_and_never_wrong_bytes(law) -> None:
    with pytest.raises(ValueError, match="is no law"):
        row_of(law)


def test_a_row_excuses_the_laws_it_names_and_no_other() -> None:
    row = row_of("O2: wait*", "O5: a [b]")
    broken = Verdict.FAIL

    assert excuses(row, ("O2: wait <= T", broken), ("O4", Verdict.PASS))
    assert excuses(row, ("O2: wait", broken), ("O5: a [b]", broken))
    assert not excuses(row, ("O2: wait", broken), ("O4: c", broken))
    assert not excuses(row, ("O2: another claim", broken))
    assert not excuses(row, ("O5: a b", broken))
    assert not excuses(row, ("O2: wait", broken), ("O1: c", broken))


def test_what_could_not_be_told_is_never_expected() -> None:
    row = row_of("O2: *")
    untold = Verdict.INCONCLUSIVE

    assert not excuses(row, ("O2: c", untold))
    assert not excuses(row)
    assert excuses(row, ("O2: c", Verdict.FAIL), ("O2: d", untold))


@pytest.mark.parametrize(
    "error",
    [
        pytest.fail.Exception("Timeout (>120.0s)"),
        HarnessError("x"),
        AssertionError("x"),
    ],
)
def test_what_breaks_in_the_harness_stays_red(error) -> None:
    assert not excused(row_of("O2: *"), error)


def test_a_test_without_a_row_is_red() -> None:
    error = refusal_of([judgement("O2", Verdict.FAIL)], "x", None)

    assert not excused(row_of("O2: *"), error)


def test_the_rows_we_ship_speak_of_tests_that_exist() -> None:
    for path in sorted((SUITES / "conformance" / "tests").glob("*.yaml")):
        found = load_expected(path)
        assert f"{found.system}-{found.version}" == path.stem
        for row in found.tests:
            file, _, name = row.test.partition("::")
            text = (SUITES / "chaos" / file).read_text(encoding="utf-8")
            assert f"def {name.rstrip('*').partition('[')[0]}(" in text


def test_a_law_that_is_expected_to_hold_is_red_when_it_does_not() -> None:
    assert Expected(test="t", expect="holds", reference="r").mark() is None


@pytest.mark.parametrize(
    "text",
    ["tests: 3", "{", "system: x\nversion: '1'\ntests: [{test: a, expect: never}]"],
)
def test_a_file_that_makes_no_sense_is_one_line(tmp_path, text) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"x\.yaml"):
        load_expected(path)
