"""The lookup benchmark: what counts as met, and that a small run works."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.lookup import (
    MasterUnderTest,
    Row,
    exit_code,
    random_keys,
    render,
)
from refimpl.proto import pool_pb2


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(2.0, False, True), (1.9, False, False), (2.0, True, True), (2.1, True, False)],
)
def test_value_at_the_target_meets_it(value: float, at_most: bool, met: bool) -> None:
    row = Row(name="n", value=value, unit="x", target=2.0, at_most=at_most)

    assert row.met is met


def test_missed_beats_unknown_beats_met() -> None:
    good = Row(name="a", value=3.0, unit="x", target=2.0)
    unknown = Row(name="b", value=math.nan, unit="x", target=2.0)
    bad = Row(name="c", value=1.0, unit="x", target=2.0)
    untargeted = Row(name="d", value=1.0, unit="x")

    assert exit_code([good, untargeted]) == 0
    assert exit_code([good, unknown]) == 3
    assert exit_code([good, unknown, bad]) == 1


def test_row_says_value_limit_ratio_and_that_it_could_not_be_judged() -> None:
    row = Row(name="rate", value=1.5e6, unit="k/s", limit=3e6, limit_name="echo")
    unknown = Row(name="p99", value=math.nan, unit="x", target=2.0)

    assert "1.50 M" in render([row])
    assert "ratio 0.50" in render([row])
    assert "INCONCLUSIVE" in render([unknown])


def test_keys_of_different_seeds_never_meet() -> None:
    both = np.concatenate([random_keys(1000, 1), random_keys(1000, 2)])

    assert len(np.unique(both, axis=0)) == 2000


def test_master_under_test_serves_the_pool_and_the_echo() -> None:
    keys = random_keys(64, 1)
    with MasterUnderTest(max_objects=1024) as master:
        master.mount(1 << 30)
        master.fill(keys)
        request = pool_pb2.LookupRequest(keys=keys.tobytes())
        found = master.stub.Lookup(request, timeout=5)
        echoed = master.echo((100).to_bytes(4, "little") + bytes(60), timeout=5)

        assert not np.frombuffer(found.status, "<i2").any()
        assert len(echoed) == 100
        assert master.objects() == 64
        assert master.resident_bytes() > 0
