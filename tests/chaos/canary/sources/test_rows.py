from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.canary.sources import read_directory, rows
from chaos.errors import UsageError


def change(folder, number, **fields):
    """Rewrites some fields of one row; `...` takes a field out."""
    path = folder / "requests.jsonl"
    lines = path.read_text().splitlines()
    row = {**json.loads(lines[number]), **fields}
    row = {name: value for name, value in row.items() if value is not ...}
    lines[number] = json.dumps(row)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_a_whole_measurement_has_its_columns_and_no_problem(measured) -> None:
    samples = read_directory(measured("canary", rows=30), "canary")

    assert samples.problems == ()
    assert samples.complete
    assert len(samples) == 30
    assert samples.request is not None
    assert list(samples.request) == list(range(30))
    assert samples.session_names[0] == "s-0"
    assert samples.class_names == ("16k", "4k")
    assert set(samples.metrics) == {"ttft_s", "tpot_s", "e2e_s", "rpcs"}
    assert samples.metrics["rpcs"].sum() == 90
    assert samples.counters == {"wrong_bytes": 0, "hangs": 0, "residual_faults": 0}
    assert samples.meta["seed"] == 7


def test_what_was_not_measured_is_nan_and_no_problem(measured) -> None:
    folder = measured("canary", rows=5)
    change(folder, 2, ttft_s=None, lag_s=..., hit_tokens=None)
    samples = read_directory(folder, "canary")

    assert samples.problems == ()
    assert math.isnan(samples.metrics["ttft_s"][2])
    assert math.isnan(samples.lag_s[2])
    assert math.isnan(samples.hit_tokens[2])
    assert np.isnan(samples.metrics["tpot_s"]).all()


def test_a_metric_that_appears_late_is_missing_before(measured) -> None:
    folder = measured("canary", rows=4)
    change(folder, 3, queue_s=0.5)
    column = read_directory(folder, "canary").metrics["queue_s"]

    assert list(np.isnan(column)) == [True, True, True, False]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ttft_s": math.nan}, "requests.jsonl:4: ttft_s nan is no measurement"),
        ({"ttft_s": math.inf}, "ttft_s inf is no measurement"),
        ({"ttft_s": -0.1}, "ttft_s -0.1 is negative"),
        ({"ttft_s": "0.4"}, ""),
        ({"hit_tokens": "many"}, "hit_tokens 'many' is no number"),
        ({"start_s": -1.0}, "start_s -1.0 is negative"),
        ({"ok": 1}, "ok 1 is neither true nor false"),
        ({"ok": ...}, "ok None is neither true nor false"),
        ({"request": 1}, "request 1 stands twice"),
        ({"request": 1.5}, "request 1.5 is no whole number"),
        ({"request": None}, "some rows have no request number"),
        ({"session": 7}, "session 7 is no text"),
        ({"e2e_s": [1]}, "e2e_s [1] is no number"),
    ],
)
def test_a_row_that_is_not_sound_is_a_problem(measured, fields, told) -> None:
    folder = measured("canary", rows=6)
    change(folder, 3, **fields)
    samples = read_directory(folder, "canary")

    if told:
        assert any(told in problem for problem in samples.problems), samples.problems
    else:  # a text of an unknown column is no metric, so it was not measured
        assert math.isnan(samples.metrics["ttft_s"][3])


def test_many_rows_with_one_flaw_are_one_line(measured) -> None:
    folder = measured("canary", rows=10)
    for number in range(4):
        change(folder, number, ttft_s=-1.0)
    problems = read_directory(folder, "canary").problems

    assert problems == ("requests.jsonl:1: ttft_s -1.0 is negative (and 3 more)",)


def test_a_row_cut_off_in_the_middle_is_a_problem_wherever_it_is(measured) -> None:
    folder = measured("canary", rows=3)
    whole = (folder / "requests.jsonl").read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for end in range(last + 1, len(whole), 3):
        (folder / "requests.jsonl").write_bytes(whole[:end])
        assert read_directory(folder, "canary").problems, end

    (folder / "requests.jsonl").write_bytes(whole[:last])
    assert "has 2 usable rows of 3" in read_directory(folder, "canary").problems[0]


def test_bytes_that_are_no_rows_are_a_problem(measured) -> None:
    folder = measured("canary", rows=3)
    for junk in (b"\x00\xff\xfe\n", b"[1]\n", b'"x"\n', b"{\n", b"[" * 9000 + b"\n"):
        with (folder / "requests.jsonl").open("ab") as file:
            file.write(junk)
        assert "is no row" in " ".join(read_directory(folder, "canary").problems)


def test_a_line_longer_than_any_row_ends_the_reading(measured) -> None:
    folder = measured("canary", rows=3)
    with (folder / "requests.jsonl").open("ab") as file:
        file.write(b" " * (rows.MAX_LINE + 1) + b"\n")

    assert "is longer than 64 KiB" in read_directory(folder, "canary").problems[0]


def test_more_metrics_than_the_bound_are_a_problem(measured) -> None:
    folder = measured("canary", rows=2)
    have = 4
    change(folder, 1, **{f"m{n}": 1 for n in range(rows.MAX_METRICS - have)})
    assert read_directory(folder, "canary").problems == ()

    change(folder, 1, one_more=1)
    assert "more than 64 metrics" in read_directory(folder, "canary").problems[0]


def test_an_empty_arm_is_a_problem(measured) -> None:
    samples = read_directory(measured("canary", rows=0), "canary")

    assert len(samples) == 0
    assert "holds no request" in samples.problems[0]


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"complete": False}, "did not come to its end"),
        ({"complete": "yes"}, "did not come to its end"),
        ({"complete": False, "incomplete_because": "store-1 died"}, "store-1 died"),
        ({"requests": 9}, "has 4 usable rows of 9 recorded"),
        ({"requests": None}, "requests None is no number"),
        ({"started_at": 2e9}, "ended"),
        ({"started_at": None}, "do not say when"),
        ({"ended_at": math.nan}, "do not say when"),
        ({"counters": [0]}, "counters are no object"),
        ({"counters": {"wrong_bytes": -1}}, "wrong_bytes -1 is no count"),
        ({"counters": {"wrong_bytes": True}}, "wrong_bytes True is no count"),
    ],
)
def test_what_the_arm_says_of_itself_is_checked(measured, meta, told) -> None:
    samples = read_directory(measured("canary", rows=4, **meta), "canary")

    assert any(told in problem for problem in samples.problems), samples.problems
    assert samples.complete is (meta.get("complete", True) is True)


def test_a_counter_that_was_not_observed_is_absent(measured) -> None:
    folder = measured("canary", rows=4, counters={"hangs": 0, "wrong_bytes": None})

    assert read_directory(folder, "canary").counters == {"hangs": 0}


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"schema": "canary.samples/2"}, "schema 'canary.samples/2' is not"),
        ({"schema": None}, "schema None is not"),
        ({"arm": "baseline"}, "arm 'baseline' was given as --canary"),
    ],
)
def test_another_kind_of_directory_is_refused(measured, meta, told) -> None:
    folder = measured("canary", rows=4)
    path = folder / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **meta}))

    with pytest.raises(UsageError, match=told):
        read_directory(folder, "canary")


def test_a_directory_without_a_measurement_is_refused(tmp_path, measured) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "empty", "dangling", "missing"):
        with pytest.raises(UsageError):
            read_directory(tmp_path / name, "canary")

    folder = measured("canary", rows=4)
    for text in ("", "{", "[]", '"x"', "\x00"):
        (folder / "meta.json").write_text(text)
        with pytest.raises(UsageError, match=r"meta\.json"):
            read_directory(folder, "canary")


def test_a_pipe_in_place_of_the_rows_is_refused_and_not_waited_for(measured) -> None:
    import os

    folder = measured("canary", rows=4)
    (folder / "requests.jsonl").unlink()
    os.mkfifo(folder / "requests.jsonl")

    with pytest.raises(UsageError, match="is no plain file"):
        read_directory(folder, "canary")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2))
NAMES = st.sampled_from(["request", "ok", "ttft_s", "session", "start_s", "class", "x"])
ANYTHING = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANYTHING
@given(rows=st.lists(st.dictionaries(NAMES, VALUES), max_size=5))
def test_whatever_stands_in_rows_is_read_or_told(measured, tmp_path, rows) -> None:
    folder = tmp_path / "canary"
    if not folder.exists():
        measured("canary", rows=1)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "requests.jsonl").write_text(lines)
    samples = read_directory(folder, "canary")

    assert len(samples) <= len(rows)
    for column in samples.metrics.values():
        assert not np.isinf(column).any()
        assert not (column < 0).any()
    if len(samples) != 1:
        assert samples.problems


@ANYTHING
@given(content=st.binary(max_size=200), name=st.sampled_from(["rows", "meta"]))
def test_whatever_bytes_are_there_end_in_a_problem_or_one_line(
    measured, tmp_path, content, name
) -> None:
    folder = tmp_path / "canary"
    if not folder.exists():
        measured("canary", rows=1)
    sound = (folder / "meta.json").read_bytes()
    file = {"rows": "requests.jsonl", "meta": "meta.json"}[name]
    (folder / file).write_bytes(content)
    try:
        told = read_directory(folder, "canary").problems
    except UsageError as error:
        told = (str(error),)
    (folder / "meta.json").write_bytes(sound)

    assert told
    assert "\n" not in "".join(told)
