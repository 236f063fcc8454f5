"""Expectations of tests: which row speaks, and what stays red."""

from __future__ import annotations

import pytest

from chaos.errors import HarnessError, UsageError
from chaos.expected import ROW, Expected, expect, load_expected, refusal_of
from chaos.judge.verdict import Judgement, Verdict

FILE = """
system: other
version: "2"
tests:
  - {test: "test_a.py::test_x[one]", expect: sometimes, reference: a}
  - {test: "test_a.py::test_y*", target: netns, settings: tuned, expect: sometimes,
     reference: b}
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


def judgement(oracle, verdict) -> Judgement:
    return Judgement(
        oracle=oracle, claim="c", verdict=verdict, observed="", threshold="", samples=1
    )


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
        row_of("O2", expect="fails", seen={"failed": 19})
    with pytest.raises(ValueError, match="breaks"):
        row_of(expect="fails", seen={"failed": 20})
    assert row_of("O2", expect="fails", seen={"failed": 20}).mark().kwargs["strict"]


def test_a_row_excuses_the_laws_it_names_and_no_other() -> None:
    row = row_of("O2", "O5")

    assert not row.mark().kwargs["strict"]
    assert excuses(row, ("O2", Verdict.FAIL), ("O4", Verdict.PASS))
    assert excuses(row, ("O2", Verdict.FAIL), ("O5", Verdict.FAIL))
    assert excuses(row, ("O4", Verdict.INCONCLUSIVE))
    assert not excuses(row, ("O2", Verdict.FAIL), ("O4", Verdict.FAIL))


def test_what_breaks_in_the_harness_stays_red() -> None:
    row = row_of("O2")

    assert not excused(row, pytest.fail.Exception("Timeout (>120.0s)"))
    assert not excused(row, HarnessError("x"))
    assert not excused(row, AssertionError("x"))
    assert excused(row_of("assert"), AssertionError("x"))
    assert not excused(row_of("assert"), HarnessError("x"))


def test_what_only_a_busy_machine_explains_is_no_excuse_for_a_failure() -> None:
    row = row_of()

    assert excuses(row, ("O5", Verdict.INCONCLUSIVE))
    assert not excuses(row, ("O5", Verdict.INCONCLUSIVE), ("O2", Verdict.FAIL))
    assert not excused(row, AssertionError("x"))


def test_wrong_bytes_are_never_expected() -> None:
    told = ("O2", Verdict.FAIL), ("O1", Verdict.FAIL)

    assert not excuses(row_of("O2"), *told)
    assert excuses(row_of("O2"), told[0], ("O1", Verdict.INCONCLUSIVE))
    with pytest.raises(ValueError, match="O1"):
        row_of("O2", "O1")


def test_a_test_without_a_row_is_red() -> None:
    error = refusal_of([judgement("O2", Verdict.FAIL)], "x", None)

    assert not excused(row_of("O2"), error)


def test_a_law_that_is_expected_to_hold_is_red_when_it_does_not() -> None:
    assert Expected(test="t", expect="holds", reference="r").mark() is None


@pytest.mark.parametrize(
    "text", ["tests: 3", "{", "system: x\nversion: '1'\ntests: [{test: a, expect: never}]"]
)
def test_a_file_that_makes_no_sense_is_one_line(tmp_path, text) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"x\.yaml"):
        load_expected(path)
