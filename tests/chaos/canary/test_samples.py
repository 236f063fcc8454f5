"""Columns of an arm: what is not said is not measured, and lengths must agree."""

from __future__ import annotations

import numpy as np
import pytest

from chaos.canary.samples import Columns, codes, unknown


def test_what_a_source_does_not_say_is_not_measured() -> None:
    samples = Columns(arm="baseline", ok=[True, False]).samples()

    assert len(samples) == 2
    assert samples.request is None
    assert samples.session.tolist() == samples.host.tolist() == [-1, -1]
    assert np.isnan(samples.lag_s).all()
    assert np.isnan(samples.metric("ttft_s")).all()
    assert not samples.measured("ttft_s")
    assert (samples.complete, dict(samples.counters)) == (False, {})


def test_none_in_a_metric_is_nan() -> None:
    samples = Columns(arm="a", ok=[1, 1], metrics={"tpot_s": [None, 0.5]}).samples()

    assert samples.measured("tpot_s")
    assert np.isnan(samples.metric("tpot_s")[0])


def test_codes_are_in_order_of_appearance_and_unknown_is_minus_one() -> None:
    column, names = codes(["b", None, "a", "b", ""])

    assert column.tolist() == [0, -1, 1, 0, -1]
    assert names == ("b", "a")


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": {"ttft_s": [1.0]}},
        {"request": [1, 2, 3]},
        {"turn": [1]},
        {"sessions": ["s"]},
        {"cause": ("late",)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_columns_of_other_lengths_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="arm 'baseline'"):
        Columns(arm="baseline", ok=[True, True], **wrong).samples()


def test_unknown_codes_fill_a_column() -> None:
    assert unknown(3).tolist() == [-1, -1, -1]
