from __future__ import annotations

import json
import math

import pytest

from chaos.canary.recorder import META, ROWS, About, Recorder, Row
from chaos.errors import UsageError


def about(**facts):
    return About(
        arm="canary",
        system="refimpl",
        build="here",
        seed=7,
        time_scale=0.1,
        facts=facts,
    )


def row(number=0, **fields):
    values = {
        "request": number,
        "session": "s",
        "host": "engine-0",
        "klass": "1k",
        "arm_turn": 2,
        "start_s": 1.25,
        "ok": True,
        **fields,
    }
    return Row(**values)


def meta(folder):
    return json.loads((folder / META).read_text(encoding="utf-8"))


def rows(folder):
    text = (folder / ROWS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "canary", about(stores=["store-0"]), wall=lambda: 5.0)
    yield made
    made.broken("the test is over")


def test_a_directory_is_incomplete_from_its_first_second_on(recorder):
    found = meta(recorder.directory)

    assert found["schema"] == "canary.samples/1"
    assert found["complete"] is False
    assert found["counters"] == {}
    assert found["stores"] == ["store-0"]


def test_only_complete_says_complete_and_counts_the_rows(recorder):
    recorder.row(row(0))
    recorder.row(row(1))
    recorder.count({"hangs": 0, "wrong_bytes": 2})
    recorder.count({"wrong_bytes": 1})
    recorder.complete()

    found = meta(recorder.directory)
    assert found["complete"] is True
    assert found["requests"] == 2
    assert found["counters"] == {"hangs": 0, "wrong_bytes": 3}
    assert [each["request"] for each in rows(recorder.directory)] == [0, 1]


def test_a_broken_arm_says_why_and_keeps_its_rows(recorder):
    recorder.row(row(0))
    recorder.broken("the engine died")

    found = meta(recorder.directory)
    assert found["complete"] is False
    assert found["incomplete_because"] == "the engine died"
    assert len(rows(recorder.directory)) == 1


def test_what_was_counted_so_far_outlives_an_early_end(recorder):
    recorder.row(row(0))
    recorder.checkpoint({"wrong_bytes": 2, "hangs": 0})
    assert meta(recorder.directory)["counters"] == {"wrong_bytes": 2, "hangs": 0}
    assert meta(recorder.directory)["requests"] == 1
    recorder.broken("stopped early")

    assert meta(recorder.directory)["counters"] == {"wrong_bytes": 2, "hangs": 0}


def test_a_whole_arm_has_its_last_counts_and_no_earlier_ones(recorder):
    recorder.checkpoint({"hangs": 0, "looked": 1})
    recorder.count({"hangs": 3})
    recorder.complete()

    assert meta(recorder.directory)["counters"] == {"hangs": 3}


def test_nothing_after_complete_makes_it_incomplete_again(recorder):
    recorder.complete()
    recorder.broken("late")

    assert meta(recorder.directory)["complete"] is True


def test_nothing_after_broken_makes_it_complete(recorder):
    recorder.broken("died")
    recorder.complete()

    assert meta(recorder.directory)["complete"] is False


def test_what_was_not_measured_is_null(recorder):
    recorder.row(row(ttft_s=math.nan, e2e_s=math.inf, metrics={"rpcs": None}))
    recorder.complete()

    (found,) = rows(recorder.directory)
    assert [found[name] for name in ("ttft_s", "e2e_s", "tpot_s", "rpcs")] == [None] * 4


def test_further_metrics_are_columns_and_may_not_shadow_one(recorder):
    recorder.row(row(metrics={"rpcs": 3.0}))
    with pytest.raises(ValueError, match="ttft_s"):
        recorder.row(row(metrics={"ttft_s": 3.0}))
    recorder.complete()

    assert rows(recorder.directory)[0]["rpcs"] == 3.0


def test_a_closed_directory_takes_no_rows(recorder):
    recorder.complete()

    with pytest.raises(ValueError, match="no more rows"):
        recorder.row(row())


def test_rows_are_on_disk_as_they_come(recorder):
    recorder.row(row(0))

    assert len(rows(recorder.directory)) == 1


def test_somebody_elses_measurement_is_not_written_over(recorder):
    with pytest.raises(UsageError, match="holds a measurement already"):
        Recorder(recorder.directory, about())


def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")

    with pytest.raises(UsageError, match="cannot be written"):
        Recorder(tmp_path / "file" / "canary", about())
