from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.canary.sources.bucket_rows import Rows
from chaos.canary.sources.buckets import (
    BEYOND_S,
    check_window,
    counters,
    histograms,
)
from chaos.canary.sources.flaws import Flaws
from chaos.canary.sources.prometheus_api import Series, bare, selector


def series(values, *, times=None, **labels):
    values = np.array(values, dtype=float)
    times = np.arange(len(values)) * 10.0 if times is None else np.array(times, float)
    return Series(labels={"instance": "h1", **labels}, times=times, values=values)


def histogram(table, **labels):
    """`{bound: cumulative counts}` as the series of a server."""
    return [series(counts, le=str(bound), **labels) for bound, counts in table.items()]


SOUND = {"0.1": [0, 2, 5], "0.2": [0, 3, 9], "+Inf": [0, 4, 10]}


def read(table, **labels):
    flaws = Flaws()
    found = histograms(
        histogram(table, **labels), name="m", host="instance", flaws=flaws
    )
    return found, flaws.told()


def test_cumulative_counters_become_counts_between_scrapes() -> None:
    ((growth,), told) = read(SOUND)

    assert told == ()
    assert growth.host == "h1"
    assert growth.bounds == (0.1, 0.2, math.inf)
    assert growth.counts.tolist() == [[2, 1, 1], [3, 3, 0]]
    assert growth.at.tolist() == [10.0, 20.0]


def test_a_value_is_put_at_either_edge_of_its_bucket() -> None:
    ((growth,), _) = read(SOUND)
    rng = np.random.default_rng(1)

    assert growth.drawn(0, 4, "high", rng).tolist() == [0.1, 0.1, 0.2, BEYOND_S]
    assert growth.drawn(0, 4, "low", rng).tolist() == [0.0, 0.0, 0.1, 0.2]


def test_thinning_keeps_the_shares_of_the_buckets() -> None:
    ((growth,), _) = read({"0.1": [0, 9_000], "0.2": [0, 9_900], "+Inf": [0, 10_000]})
    rng = np.random.default_rng(1)
    drawn = np.concatenate([growth.drawn(0, 10, "high", rng) for _ in range(2000)])

    assert np.mean(drawn == 0.1) == pytest.approx(0.9, abs=0.005)
    assert np.mean(drawn == BEYOND_S) == pytest.approx(0.01, abs=0.002)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"0.1": [0, 2], "0.2": [0, 3]}, "not whole"),
        ({**SOUND, "0.2": [0, 3, 1]}, "began again at 0"),
        ({**SOUND, "0.2": [0, 3, 2.5]}, "no counts"),
        ({**SOUND, "0.2": [0, math.nan, 9]}, "no counts"),
        ({**SOUND, "0.2": [0, 1, 9]}, "do not add up"),
        ({**SOUND, "nan": [0, 1, 9]}, "has no bound"),
        ({**SOUND, "": [0, 1, 9]}, "has no bound"),
        ({**SOUND, "0.20": [0, 3, 9]}, "not whole"),
        ({"0.1": [5], "+Inf": [9]}, "fewer than two samples"),
    ],
)
def test_a_histogram_that_is_not_sound_is_told(table, told) -> None:
    _, flaws = read(table)

    assert told in " ".join(flaws)


def test_buckets_of_different_scrapes_are_told() -> None:
    rows = histogram(SOUND)
    rows[1] = series([0, 3, 9], times=[0, 10, 21], le="0.2")
    flaws = Flaws()

    assert histograms(rows, name="m", host="instance", flaws=flaws) == []
    assert "a scrape of" in flaws.told()[0]


def test_a_counter_that_began_again_is_told() -> None:
    flaws = Flaws()

    assert counters([series([5, 9, 1])], name="m", host="instance", flaws=flaws) == []
    assert "it was restarted" in flaws.told()[0]


def window(times, *, start=0.0, end=100.0):
    flaws = Flaws()
    grown = counters(
        [series(range(len(times)), times=times)], name="m", host="instance", flaws=flaws
    )
    check_window(grown, name="m", start=start, end=end, flaws=flaws)
    return " ".join(flaws.told())


def test_a_target_that_was_there_all_the_time_is_no_flaw() -> None:
    assert window(np.arange(0, 101, 10)) == ""
    assert window(np.arange(8, 99, 10)) == ""


def test_a_target_that_came_late_went_early_or_was_mute_is_told() -> None:
    assert "begins 40 s late" in window(np.arange(40, 101, 10))
    assert "ends 40 s early" in window(np.arange(0, 61, 10))
    assert "was not scraped for 50 s" in window([0, 10, 20, 70, 80, 90, 100])


def rows_of(table, **others):
    rows = Rows(metrics=("ttft_s", *others), began=0.0, edge="high")
    (grown, _) = read(table)
    metrics = {"ttft_s": grown} | {name: read(t)[0] for name, t in others.items()}
    for growth in grown:
        rows.add(growth, metrics)
    return rows


def test_a_row_is_a_request_of_a_host_and_a_scrape() -> None:
    columns = rows_of(SOUND).columns()

    assert len(columns["ok"]) == 10
    assert set(columns["sessions"]) == {"h1@10.0", "h1@20.0"}
    assert columns["start_s"].tolist() == [10.0] * 4 + [20.0] * 6
    assert columns["metrics"]["ttft_s"][:4].tolist() == [0.1, 0.1, 0.2, BEYOND_S]


def test_another_metric_stands_beside_and_what_lacks_is_missing() -> None:
    columns = rows_of(SOUND, e2e_s={"1": [0, 2, 8], "+Inf": [0, 2, 9]}).columns()
    e2e = columns["metrics"]["e2e_s"]

    assert np.isnan(e2e).tolist() == [False, False, True, True] + [False] * 6


def test_tokens_are_spread_over_the_requests_of_their_host_and_time() -> None:
    rows = rows_of(SOUND)
    flaws = Flaws()
    tokens = counters([series([0, 40, 100])], name="t", host="instance", flaws=flaws)
    other = counters(
        [series([0, 7, 9], instance="h2")], name="t", host="instance", flaws=flaws
    )

    assert rows.spread(tokens).tolist() == [10.0] * 10
    assert rows.spread([*tokens, *other]).tolist() == [10.0] * 10
    assert rows.spread([]) is None


def test_failed_requests_are_rows_without_values() -> None:
    rows = rows_of(SOUND)
    rows.fail(counters([series([0, 0, 2])], name="f", host="instance", flaws=Flaws()))
    columns = rows.columns()

    assert len(rows) == 12
    assert columns["ok"].tolist() == [True] * 10 + [False] * 2
    assert np.isnan(columns["metrics"]["ttft_s"][-2:]).all()
    assert columns["cause"][-1] == "failed"


def test_a_selector_is_taken_with_and_without_braces() -> None:
    assert selector("m_bucket", 'a="b"') == 'm_bucket{a="b"}'
    assert selector("m", '{a="b",}') == 'm{a="b"}'
    assert selector('m{x="y"}', 'a="b"') == 'm{x="y",a="b"}'
    assert bare("{}") == ""
