from __future__ import annotations

import json

from chaos.conformance.compare import compare_all
from chaos.conformance.properties import Arm
from chaos.conformance.table import render, to_json


def rows(measured):
    return [
        measured(),
        measured(arm=Arm.HICACHE, held=True, observed="0.21 s"),
        measured(
            system="refimpl",
            version="0.1.0",
            settings="default",
            arm=Arm.HICACHE,
            held=True,
            observed="0.20 s",
        ),
        measured(law="healthy-keys-used", observed="3 lost", held=None),
    ]


def test_stalls_stand_side_by_side_in_one_row(measured, profile):
    text = render(compare_all(rows(measured), [profile()]))
    line = next(one for one in text.splitlines() if "30.02 s" in one)

    assert "store-paused" in line
    assert line.index("30.02 s") < line.index("0.21 s") < line.index("0.20 s")


def test_the_same_fault_in_other_settings_has_a_row_of_its_own(measured):
    told = [*rows(measured), measured(settings="default", observed="35.00 s")]
    lines = render(compare_all(told, [])).splitlines()
    tuned = next(line for line in lines if "30.02 s" in line)
    default = next(line for line in lines if "35.00 s" in line)

    assert "tuned" in tuned
    assert "default" in default
    assert "0.20 s" in tuned
    assert "0.20 s" in default


def test_every_column_of_the_table_is_there(measured, profile):
    text = render(compare_all(rows(measured), [profile()]))

    for word in (
        "property",
        "system",
        "version",
        "expected",
        "measured",
        "verdict",
        "store-paused/stall-bounded",
        "mooncake + HiCache",
        "1.2.3 (tuned)",
        "known failure",
        "could not tell",
        "reproduce: pytest x --seed 1",
    ):
        assert word in text


def test_plain_output_has_no_escapes_and_colour_has(measured, profile):
    found = compare_all(rows(measured), [profile()])

    assert "\x1b" not in render(found)
    assert "\x1b" in render(found, color=True)


def test_brackets_of_a_node_id_stay_in_the_command(measured):
    text = render(compare_all([measured(reproduce="pytest 't.py::a[b]'")], []))

    assert "pytest 't.py::a[b]'" in text


def test_what_has_no_expectation_says_how_to_get_one(measured):
    text = render(compare_all([measured(version="9.9.9")] * 2, []))
    told = [line for line in text.splitlines() if "make a profile" in line]

    assert len(told) == 1
    assert "scripts/soak mooncake" in told[0]
    assert "mooncake-9.9.9.seen.yaml" in told[0]


def test_nothing_measured_is_said():
    assert "no property was measured" in render([])


def test_rows_are_plain_json(measured, profile):
    told = json.loads(json.dumps(to_json(compare_all(rows(measured), [profile()]))))

    assert told[0]["answer"] == "known failure"
    assert told[0]["expected"] == "fails"
    assert told[0]["reproduce"] == "pytest x --seed 1"
    assert told[3]["held"] is None
