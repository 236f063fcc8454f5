from __future__ import annotations

import re
from dataclasses import replace

import pytest

from chaos.judge.limit import at_most, none_of
from chaos.report.document import Document, Outcome
from chaos.report.terminal import render, wants_color

GOOD = at_most(
    "O2", "wait <= T + poll", 0.2141, 0.3, samples=512, unit="s", label="max"
)
BAD = none_of("O1", "no read returns wrong bytes", 2, of=40, what="wrong", reason="r9")
COMMAND = "pytest suites/chaos/test_x.py::test_bad --seed 7 --time-scale 0.1"


@pytest.fixture
def document():
    return Document(
        suite="partial_reuse",
        seed=7,
        time_scale=0.1,
        system="refimpl",
        target="local",
        outcomes=(
            Outcome(
                nodeid="suites/chaos/test_x.py::test_good",
                judgements=(GOOD,),
                reproduce="no",
            ),
            Outcome(
                nodeid="suites/chaos/test_x.py::test_bad",
                judgements=(GOOD, BAD),
                reproduce=COMMAND,
            ),
        ),
    )


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("color", [True, False])
def test_verdicts_numbers_thresholds_and_samples_are_there(document, color):
    text = plain(render(document, color=color, width=120))

    for word in (
        "max 0.214 s",
        "0.300 s",
        "512",
        "PASS",
        "2 wrong",
        "0 allowed",
        "FAIL",
    ):
        assert word in text


@pytest.mark.parametrize("color", [True, False])
def test_only_failures_have_their_command_and_it_is_not_wrapped(document, color):
    text = plain(render(document, color=color, width=60))

    assert f"  reproduce: {COMMAND}\n" in text
    assert text.count("reproduce:") == 1


def test_modelled_and_the_time_scale_are_named(document):
    first = render(document, color=False).splitlines()[0]

    assert "TTFT is modelled" in first
    assert "time scale 0.1 (every time constant multiplied by it)" in first
    assert "seed 7" in first


def test_plain_text_has_no_escape_and_keeps_the_width(document):
    text = render(document, color=False, width=80)

    assert "\x1b" not in text
    table = text.partition("\nFAIL")[0].splitlines()[1:]
    assert max(len(row) for row in table) <= 80


def test_plain_columns_are_aligned(document):
    rows = [
        row
        for row in render(document, color=False, width=120).splitlines()
        if row.startswith(("O1", "O2", "oracle"))
    ]

    starts = {row.index(word) for row, word in zip(rows, _claims(rows), strict=True)}
    assert len(rows) == 4
    assert len(starts) == 1


def _claims(rows):
    return ["claim" if row.startswith("oracle") else row.split()[1] for row in rows]


def test_the_end_counts_and_says_the_verdict(document):
    last = render(document, color=False).splitlines()[-1]

    assert last == "verdict FAIL: 1 PASS, 0 INCONCLUSIVE, 1 FAIL"


def test_nothing_judged_is_said():
    text = render(Document(suite="x", seed=1, time_scale=1.0), color=False)

    assert "nothing was judged" in text
    assert "verdict INCONCLUSIVE" in text
    assert "time scale 1 (real time)" in text


@pytest.mark.parametrize(
    ("tty", "environ", "color"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"CI": "true"}, False),
        (True, {"CI": "false"}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_color_only_where_somebody_looks(tty, environ, color):
    assert wants_color(tty=tty, environ=environ) is color


def test_a_long_test_name_is_told_whole(document):
    name = "suites/chaos/test_x.py::test_" + "very_" * 40 + "long"
    outcomes = tuple(replace(one, nodeid=name) for one in document.outcomes)
    text = render(replace(document, outcomes=outcomes), color=False, width=60)

    assert name.rpartition("/")[2] in text.splitlines()
