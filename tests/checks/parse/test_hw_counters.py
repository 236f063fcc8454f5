"""Counters: only changes between two samples tell anything."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.hw_counters import change, statistics


def test_a_change_is_a_rate_where_there_are_times():
    found = change("n", ((10.0, 5), (70.0, 125)), "n")

    assert (found.delta, found.per_second) == (120, 2.0)
    assert not found.saturated
    assert not found.reset


def test_without_times_there_is_no_rate():
    assert change("n", ((None, 5), (None, 6)), "n").per_second is None


@pytest.mark.parametrize("value", [255, 65535, 4294967295])
def test_all_ones_in_both_samples_is_saturated(value):
    assert change("n", ((1.0, value), (2.0, value)), "n").saturated
    assert not change("n", ((1.0, value - 1), (2.0, value)), "n").saturated


def test_a_counter_that_went_back_was_reset():
    assert change("n", ((1.0, 9), (2.0, 3)), "n").reset


def test_one_sample_is_refused():
    with pytest.raises(Unread):
        change("n", ((1.0, 9),), "n")


def test_ethtool_statistics_change_by_name():
    def sample(t, value):
        out = f"NIC statistics:\n     rx_prio3_pause: {value}\n     [0]: rx: 3\n"
        return {"rc": 0, "stdout": out, "stderr": "", "t": t}

    facts = Facts({"cmds": {"ethtool -S ens1": [sample(1.0, 5), sample(3.0, 9)]}})

    found = statistics(facts, "ens1")
    assert found["rx_prio3_pause"].delta == 4
    assert found["rx_prio3_pause"].per_second == 2.0
