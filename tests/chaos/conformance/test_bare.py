from __future__ import annotations

import pytest

from chaos.conformance.bare import measure_bare
from chaos.errors import HarnessError


def test_a_store_that_refuses_at_once_stalls_nobody(pool, stage, by_law):
    rows = by_law(measure_bare(stage()))

    assert rows["stall-bounded"].held is True
    assert rows["stall-bounded"].samples >= 5
    assert rows["healthy-keys-used"].held is True
    assert rows["back-after-heal"].held is True
    assert pool.closed == 4


def test_a_read_that_stalls_is_measured_to_its_end_also_after_the_healing(
    pool, stage, by_law
):
    pool.stall_s = 0.9
    rows = by_law(measure_bare(stage()))
    stall = rows["stall-bounded"]

    assert stall.held is False
    assert 0.9 <= stall.numbers["stall_s"] < 1.5
    assert rows["healthy-keys-used"].held is False
    assert rows["healthy-keys-used"].numbers["late"] >= 1


def test_healthy_keys_that_fail_with_the_sick_one_are_lost(pool, stage, by_law):
    pool.poisons = -707
    row = by_law(measure_bare(stage()))["healthy-keys-used"]

    assert row.held is False
    assert row.numbers["lost"] >= 5
    assert "the longest answered [-707, -800, -707]" in row.observed


def test_healthy_keys_with_wrong_bytes_are_lost_whatever_their_codes(
    pool, stage, by_law
):
    pool.wrong = 1
    row = by_law(measure_bare(stage()))["healthy-keys-used"]

    assert row.held is False
    assert "wrong bytes" in row.observed


@pytest.mark.parametrize("code", [-9000, -9002, -9003])
def test_reads_that_nobody_answered_do_not_say_that_it_holds(pool, stage, by_law, code):
    pool.code = pool.poisons = code
    rows = by_law(measure_bare(stage()))

    assert rows["stall-bounded"].held is None
    assert rows["stall-bounded"].numbers["untold"] >= 5
    assert rows["healthy-keys-used"].held is None


def test_reads_that_break_in_the_harness_tell_nothing(pool, stage, by_law):
    pool.breaks = HarnessError("the worker broke")
    rows = by_law(measure_bare(stage()))

    assert rows["stall-bounded"].held is None
    assert rows["healthy-keys-used"].held is None


def test_a_stream_that_ends_early_is_an_error_of_the_harness(pool, stage):
    pool.breaks = KeyError("a bug of ours")

    with pytest.raises(HarnessError, match="a bug of ours"):
        measure_bare(stage())


def test_a_pool_that_stays_broken_is_not_back(pool, stage, by_law, monkeypatch):
    monkeypatch.setattr("chaos.conformance.bare.BACK_WITHIN_S", 0.2)
    pool.never_back = True
    row = by_law(measure_bare(stage()))["back-after-heal"]

    assert row.held is False
    assert "not in 0.3 s" in row.observed


def test_a_fault_without_effect_tells_nothing(pool, stage):
    pool.effect = 0.0

    assert {row.held for row in measure_bare(stage())} == {None}


def test_too_few_reads_do_not_say_that_it_holds(pool, stage, by_law):
    pool.stall_s = 0.15
    row = by_law(measure_bare(stage(window_s=0.1)))["stall-bounded"]

    assert row.held is None
    assert "too few" in row.reason


def test_a_fault_of_the_master_leaves_no_healthy_key(pool, stage, by_law):
    rows = by_law(measure_bare(stage(of_master=True)))

    assert set(rows) == {"stall-bounded", "back-after-heal"}


def test_keys_that_cannot_be_put_are_an_error_of_the_harness(pool, stage):
    pool.was_sick = pool.never_back = True
    with pytest.raises(HarnessError, match="-800"):
        measure_bare(stage())
