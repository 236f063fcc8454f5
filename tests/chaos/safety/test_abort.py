from __future__ import annotations

import math

import pytest

from chaos.safety.abort import (
    Condition,
    Measure,
    RunWindow,
    Seen,
    Snapshot,
    read,
    read_all,
)


def condition(measure, limit, **fields):
    return Condition(measure=measure, limit=limit, **fields)


def seen(at_s, *, ok=True, ttft_s=0.1, reused=0, asked=100, wrong=False):
    return Seen(
        at_s=at_s, ok=ok, ttft_s=ttft_s, reused=reused, asked=asked, wrong=wrong
    )


def snapshot(rows=(), now_s=10.0, **fields):
    return Snapshot(now_s=now_s, seen=tuple(rows), **fields)


def test_an_error_rate_above_its_limit_trips() -> None:
    rows = [seen(9.0, ok=i >= 2) for i in range(20)]

    reading = read(condition(Measure.ERROR_RATE, 0.05), snapshot(rows))

    assert reading.value == pytest.approx(0.1)
    assert reading.tripped
    assert str(reading) == "error_rate above 5.0 %: 10.0 %, n=20 (2 failed)"


def test_exactly_the_limit_does_not_trip() -> None:
    rows = [seen(9.0, ok=i != 0) for i in range(20)]

    assert not read(condition(Measure.ERROR_RATE, 0.05), snapshot(rows)).tripped


def test_what_is_older_than_the_window_is_forgotten() -> None:
    rows = [seen(1.0, ok=False) for _ in range(20)] + [seen(9.0) for _ in range(20)]
    limit = condition(Measure.ERROR_RATE, 0.05, window_s=5.0)

    assert read(limit, snapshot(rows)).value == 0.0


def test_too_few_samples_are_unknown_and_trip_nothing() -> None:
    rows = [seen(9.0, ok=False) for _ in range(9)]

    reading = read(condition(Measure.ERROR_RATE, 0.0, samples=10), snapshot(rows))

    assert math.isnan(reading.value)
    assert not reading.known
    assert not reading.tripped


def test_the_tail_is_the_value_that_one_percent_exceeds() -> None:
    rows = [seen(9.0, ttft_s=i / 100) for i in range(1, 101)]

    reading = read(condition(Measure.TTFT_P99, 0.98), snapshot(rows))

    assert reading.value == 0.99
    assert reading.tripped


def test_a_system_that_hangs_shows_in_the_tail_although_it_answers_nothing() -> None:
    waiting = [6.0] * 10

    reading = read(condition(Measure.TTFT_P99, 5.0), snapshot(waiting_s=waiting))

    assert reading.tripped
    assert "10 of them still wait" in reading.detail


def test_requests_under_way_that_are_in_time_say_nothing() -> None:
    reading = read(condition(Measure.TTFT_P99, 5.0), snapshot(waiting_s=[4.0] * 50))

    assert not reading.known


def test_a_hit_rate_below_its_limit_trips() -> None:
    rows = [seen(9.0, reused=30) for _ in range(10)]

    assert read(condition(Measure.HIT_RATE, 0.4), snapshot(rows)).tripped
    assert not read(condition(Measure.HIT_RATE, 0.3), snapshot(rows)).tripped


def test_failed_requests_do_not_lower_the_hit_rate() -> None:
    rows = [seen(9.0, reused=50) for _ in range(10)]
    rows += [seen(9.0, ok=False, asked=0) for _ in range(10)]

    assert read(condition(Measure.HIT_RATE, 0.5), snapshot(rows)).value == 0.5


def test_a_role_that_is_unwell_for_too_long_trips_by_name() -> None:
    reading = read(
        condition(Measure.NOT_HEALTHY, 2.0),
        snapshot(unhealthy_s={"store-1": 2.5, "store-2": 0.1}),
    )

    assert reading.tripped
    assert reading.detail == "store-1"


def test_one_wrong_byte_trips_and_never_grows_old() -> None:
    reading = read(condition(Measure.WRONG_BYTES, 0.0), snapshot(now_s=1e6, wrong=1))

    assert reading.tripped


def test_every_condition_is_read_also_after_one_has_tripped() -> None:
    conditions = [
        condition(Measure.WRONG_BYTES, 0.0),
        condition(Measure.NOT_HEALTHY, 1.0),
    ]

    readings = read_all(conditions, snapshot(wrong=1))

    assert [reading.tripped for reading in readings] == [True, False]


def test_the_window_knows_what_is_under_way_and_what_ended() -> None:
    window = RunWindow()
    window.sent("a", 1.0)
    window.sent("b", 2.0)
    window.ended("a", seen(3.0, wrong=True))
    window.ended("c", None)

    found = window.snapshot(5.0)

    assert found.waiting_s == (3.0,)
    assert len(found.seen) == 1
    assert found.wrong == 1


def test_the_window_forgets_the_oldest_but_no_wrong_byte() -> None:
    window = RunWindow(kept=3)
    window.ended("w", seen(0.0, wrong=True))
    for number in range(10):
        window.ended(str(number), seen(float(number)))

    found = window.snapshot(20.0)

    assert [row.at_s for row in found.seen] == [7.0, 8.0, 9.0]
    assert found.wrong == 1


def test_a_role_is_unwell_since_it_was_first_seen_so() -> None:
    window = RunWindow()
    window.healthy(["store-1"], 1.0)
    window.healthy(["store-1", "store-2"], 3.0)
    assert window.snapshot(4.0).unhealthy_s == {"store-1": 3.0, "store-2": 1.0}

    window.healthy(["store-2"], 5.0)

    assert window.snapshot(6.0).unhealthy_s == {"store-2": 3.0}
