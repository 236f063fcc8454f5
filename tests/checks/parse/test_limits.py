"""Limits, capabilities and memory nodes of a process."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.limits import MEMLOCK, NOFILE, UNLIMITED, limit, parse_limits
from checks.parse.proc_status import has_capability, memory_nodes, parse_list

TEXT = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max open files            1024                 524288               files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
    "Max nice priority         0                    0                    \n"
)


def test_the_soft_limit_is_in_force():
    assert parse_limits(TEXT) == {
        NOFILE: 1024,
        MEMLOCK: UNLIMITED,
        "Max nice priority": 0,
    }


@pytest.mark.parametrize(
    "row", ["Max open files   1024", "Max open files  10  x files"]
)
def test_a_row_that_is_not_whole_is_no_limit(row, bench):
    facts = Facts(bench.doc(files={"/proc/7/limits": row}))

    with pytest.raises(Unread):
        limit(facts, 7, NOFILE)


def test_a_capability_is_one_bit_of_a_whole_mask(bench):
    files = {"/proc/7/status": "CapEff:\t00000000a80465fb\nMems_allowed_list:\t0-1,3\n"}
    facts = Facts(bench.doc(files=files))

    assert has_capability(facts, 7, 14)
    assert not has_capability(facts, 7, 15)
    assert memory_nodes(facts, 7) == (0, 1, 3)


def test_a_field_that_is_missing_is_refused(bench):
    facts = Facts(bench.doc(files={"/proc/7/status": "Name:\tx\n"}))

    with pytest.raises(Unread):
        has_capability(facts, 7, 14)


@pytest.mark.parametrize("text", ["", "0-", "a", "0,,1"])
def test_a_list_that_is_none_is_refused(text):
    with pytest.raises(Garbled):
        parse_list(text, "here")
