"""Clustered variance against known truths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chaos.canary.stats.clusters import clustering, spread, time_blocks


def test_unknown_rows_are_clusters_of_their_own() -> None:
    found = clustering("session", np.array([7, -1, 7, -1, 2]))

    assert found.count == 4
    assert found.index[0] == found.index[2]
    assert len(set(found.index.tolist())) == 4


def test_taken_rows_leave_no_empty_clusters() -> None:
    found = clustering("session", np.array([0, 1, 2, 2])).taken(np.array([2, 3]))

    assert (found.count, found.index.tolist()) == (1, [0, 0])


def test_independent_rows_have_the_textbook_variance() -> None:
    scores = np.random.default_rng(1).normal(0, 1, 500)

    assert spread(scores).variance == pytest.approx(scores.var(ddof=1) / 500)


def test_clusters_show_what_rows_hide() -> None:
    rng = np.random.default_rng(2)
    truths, seen, naive = [], [], []
    for _ in range(300):
        codes = np.repeat(np.arange(40), 25)
        scores = rng.normal(0, 1, 40)[codes] + rng.normal(0, 1, 1000)
        truths.append(scores.mean())
        seen.append(spread(scores, [clustering("session", codes)]).variance)
        naive.append(spread(scores).variance)

    truth = np.var(truths)
    assert np.mean(seen) == pytest.approx(truth, rel=0.2)
    assert np.mean(naive) < truth / 8


def test_one_cluster_says_nothing() -> None:
    found = spread(np.arange(10.0), [clustering("host", np.zeros(10, dtype=int))])

    assert math.isinf(found.variance)


@pytest.mark.parametrize("scores", [[], [1.0]])
def test_too_few_rows_say_nothing(scores) -> None:
    assert math.isinf(spread(np.array(scores)).variance)


def test_blocks_of_time_hold_as_many_rows_each_whatever_the_order() -> None:
    starts = np.random.default_rng(3).permutation(5000) * 0.1

    blocks = time_blocks(starts)

    assert blocks is not None
    assert set(np.bincount(blocks.index)) == {50}
    assert blocks.index[np.argmin(starts)] == 0


def test_few_or_unknown_moments_make_no_blocks() -> None:
    assert time_blocks(np.arange(100.0)) is None
    assert time_blocks(np.full(5000, np.nan)) is None
