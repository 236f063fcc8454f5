from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.core.prefetch import (
    Occupancy,
    PrefetchSettings,
    common_prefix,
    deadline_s,
    may_terminate,
)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (0, 2.0),
        (256, 2.025),
        (1024, 2.1),
        (8192, 2.8),
        (131_072, 14.8),
        (1 << 20, 30.0),
    ],
)
def test_deadline_follows_the_formula(tokens, expected):
    assert deadline_s(PrefetchSettings(), tokens) == pytest.approx(expected)


@pytest.mark.parametrize("pending", ["none", "main", "sidecar"])
@pytest.mark.parametrize("elapsed", [2.7, 2.9])
@pytest.mark.parametrize("policy", ["best_effort", "wait_complete", "timeout"])
def test_termination_is_completeness_or_time(policy, pending, elapsed):
    complete = pending == "none"
    expected = {
        "best_effort": True,
        "wait_complete": complete,
        "timeout": complete or elapsed > 2.8,
    }[policy]

    assert (
        may_terminate(policy, complete=complete, elapsed_s=elapsed, deadline_s=2.8)
        is expected
    )


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="sometimes"):
        may_terminate("sometimes", complete=True, elapsed_s=0, deadline_s=1)


@given(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4))
def test_common_prefix_is_the_shortest_leading_run(pools):
    expected = min(
        next((i for i, flag in enumerate(pool) if not flag), len(pool))
        for pool in pools
    )

    assert common_prefix([np.array(p, np.bool_) for p in pools]) == expected


def test_no_pool_has_no_prefix():
    assert common_prefix([]) == 0


def test_occupancy_refuses_at_the_limit_and_comes_back():
    occupancy = Occupancy(100)

    assert occupancy.take(60)
    assert occupancy.take(60)
    assert not occupancy.take(1)
    occupancy.give(60)
    assert occupancy.take(1)
    occupancy.give(61)
    assert occupancy.tokens == 0


@pytest.mark.parametrize("tokens", [-1, 11])
def test_giving_back_what_was_not_taken_is_an_error(tokens):
    occupancy = Occupancy(100)
    occupancy.take(10)

    with pytest.raises(ValueError, match="gives back"):
        occupancy.give(tokens)


def test_the_poll_does_not_scale():
    scaled = PrefetchSettings().scaled(0.1)

    assert scaled.poll_s == 0.02
    assert (scaled.base_s, scaled.per_ki_token_s) == pytest.approx((0.2, 0.01))
    assert scaled.max_s == pytest.approx(3.0)
