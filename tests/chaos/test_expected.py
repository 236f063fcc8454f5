"""Expectations of tests: which row speaks, and what stays red."""

from __future__ import annotations

import pytest

from chaos.errors import HarnessError, UsageError
from chaos.expected import Expected, expect, load_expected, refusal_of
from chaos.judge.verdict import Judgement, Verdict

FILE = """
system: other
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


def marked(folder, nodeid, **told) -> bool:
    item = Item(folder, nodeid)
    here = {"system": "other", "target": "local", "settings": "default", **told}
    expect([item], **here)
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


def test_another_system_has_no_expectations(folder) -> None:
    assert not marked(folder, "test_a.py::test_x[one]", system="refimpl")


def test_fails_is_said_only_of_twenty_of_twenty_and_a_pass_is_then_a_finding() -> None:
    row = {"test": "t", "expect": "fails", "reference": "r"}

    with pytest.raises(ValueError, match="20 of 20"):
        Expected(**row, seen={"failed": 19})
    assert Expected(**row, seen={"failed": 20}).mark().kwargs["strict"]


def test_what_breaks_in_the_harness_stays_red() -> None:
    row = Expected(test="t", expect="sometimes", reference="r")

    assert not row.mark().kwargs["strict"]
    assert excused(row, refusal_of([judgement("O2", Verdict.FAIL)], "x"))
    assert excused(row, refusal_of([judgement("O2", Verdict.INCONCLUSIVE)], "x"))
    assert excused(row, AssertionError("x"))
    assert not excused(row, pytest.fail.Exception("Timeout (>120.0s)"))
    assert not excused(row, HarnessError("x"))


def test_what_only_a_busy_machine_explains_is_no_excuse_for_a_failure() -> None:
    row = Expected(test="t", expect="sometimes", untold_only=True, reference="r")
    untold, broken = (
        judgement("O5", Verdict.INCONCLUSIVE),
        judgement("O2", Verdict.FAIL),
    )

    assert excused(row, refusal_of([untold], "x"))
    assert not excused(row, refusal_of([untold, broken], "x"))
    assert not excused(row, AssertionError("x"))
    assert not excused(row, HarnessError("x"))
    with pytest.raises(ValueError, match="untold_only"):
        Expected(test="t", expect="holds", untold_only=True, reference="r")


def test_wrong_bytes_are_never_expected() -> None:
    row = Expected(test="t", expect="sometimes", reference="r")
    judged = [judgement("O2", Verdict.FAIL), judgement("O1", Verdict.FAIL)]

    assert not excused(row, refusal_of(judged, "x"))
    judged[1] = judgement("O1", Verdict.INCONCLUSIVE)
    assert excused(row, refusal_of(judged, "x"))


def test_a_law_that_is_expected_to_hold_is_red_when_it_does_not() -> None:
    assert Expected(test="t", expect="holds", reference="r").mark() is None


@pytest.mark.parametrize(
    "text", ["tests: 3", "{", "system: x\ntests: [{test: a, expect: never}]"]
)
def test_a_file_that_makes_no_sense_is_one_line(tmp_path, text) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"x\.yaml"):
        load_expected(path)
