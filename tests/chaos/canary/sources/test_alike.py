from __future__ import annotations

import json

from chaos.canary.sources import read_directory
from chaos.canary.sources.alike import checked


def arms(measured, **change):
    baseline, canary = measured("baseline", rows=20), measured("canary", rows=20)
    path = canary / "requests.jsonl"
    changed = [json.loads(line) | change for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    return read_directory(baseline, "baseline"), read_directory(canary, "canary")


def test_two_arms_of_one_trace_have_no_problem(measured) -> None:
    assert checked(*arms(measured))[1].problems == ()


def test_the_same_number_with_another_prompt_is_another_trace(measured) -> None:
    told = checked(*arms(measured, prompt_tokens=99))[1].problems[0]

    assert told == (
        "request 0 has prompt_tokens 99 and not 4096 as in the baseline:"
        " 20 of 20 pairs are of another trace"
    )


def test_the_same_number_of_another_class_or_session_is_another_trace(
    measured,
) -> None:
    assert "class 1k" in checked(*arms(measured, **{"class": "1k"}))[1].problems[0]


def test_rows_without_numbers_are_no_pairs(measured) -> None:
    assert checked(*arms(measured, request=None, session="x"))[1].problems == ()
