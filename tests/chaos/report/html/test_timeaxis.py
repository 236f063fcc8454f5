from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.report.html.timeaxis import MOST_FOLDS, TimeAxis

SPANS = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 1e3)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=40,
)


def test_a_run_without_pauses_is_drawn_to_scale():
    axis = TimeAxis([(100.0, 110.0)], origin_s=104.0)

    assert list(axis.place([100, 105, 110])) == [0, 5, 10]
    assert axis.ticks() == ([0, 2, 4, 6, 8, 10], ["-4", "-2", "0", "2", "4", "6"])
    assert axis.folds == []


def test_a_long_pause_is_folded_and_told():
    axis = TimeAxis([(0.0, 5.0), (105.0, 110.0)], origin_s=0.0)

    (fold,) = axis.folds
    assert fold.seconds == 100.0
    assert float(axis.place(110.0)) < 11
    assert "106" in axis.ticks()[1]


def test_an_instant_and_nothing_at_all_have_an_axis():
    for busy in ([], [(7.0, 7.0)], [(float("nan"), 1.0)]):
        axis = TimeAxis(busy, origin_s=7.0)
        low, high = axis.limits

        assert low < high
        assert axis.ticks()[0]


@given(SPANS, st.floats(0, 1e6))
def test_order_is_kept_whatever_was_busy(busy, origin_s):
    axis = TimeAxis(busy, origin_s=origin_s)
    instants = np.sort(np.asarray([one for span in busy for one in span] or [0.0]))

    places = axis.place(instants)

    assert np.all(np.diff(places) >= 0)
    assert len(axis.folds) <= MOST_FOLDS
    ticks, labels = axis.ticks()
    assert len(ticks) == len(labels) <= 12
    assert ticks == sorted(ticks)


def test_what_lies_outside_is_drawn_at_the_edge():
    axis = TimeAxis([(0.0, 10.0)], origin_s=0.0)

    assert list(axis.place([-5, 50])) == [pytest.approx(0), pytest.approx(10)]
