"""`dcb -j`: flags by priority, pairs with a third element."""

from __future__ import annotations

import pytest

from checks.parse.dcb import parse_dscp, parse_pfc, parse_willing
from checks.parse.garbled import Garbled

FLAGS = [False, False, False, True, False, False, False, False]


def test_pfc_is_a_flag_for_each_of_eight_priorities():
    assert parse_pfc({"pfc_cap": 8, "prio_pfc": FLAGS}) == (3,)
    assert parse_pfc([{"prio_pfc": ["off"] * 7 + ["on"]}]) == (7,)


@pytest.mark.parametrize("loaded", [{}, {"prio_pfc": FLAGS[:7]}, [], 3, None])
def test_pfc_without_eight_flags_is_refused(loaded):
    with pytest.raises(Garbled):
        parse_pfc(loaded)


def test_the_third_element_of_a_pair_is_passed_over():
    assert parse_dscp({"dscp_prio": [[26, 3, " "], [48, 6]]}) == {26: 3, 48: 6}
    assert parse_dscp({}) == {}


@pytest.mark.parametrize("rows", [3, [26], [["AF31", 3]], [[26]]])
def test_what_is_no_pair_of_numbers_is_refused(rows):
    with pytest.raises(Garbled):
        parse_dscp({"dscp_prio": rows})


def test_willing_is_a_flag_in_either_spelling():
    assert parse_willing({"willing": True})
    assert not parse_willing({"willing": "off"})
    with pytest.raises(Garbled):
        parse_willing({"ets_cap": 8})
