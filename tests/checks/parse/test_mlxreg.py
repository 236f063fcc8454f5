"""Registers of a NIC, one by name."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.mlxreg import register

OUT = """\
Sending access register...

Field Name                    | Data
============================================
roce_adp_retrans_en           | 0x00000001
roce_tx_window_en             | 0x00000000
"""
LINE = "mlxreg -d 1a:00.0 --reg_name ROCE_ACCL --get"


def facts(stdout, rc=0):
    return Facts({"cmds": {LINE: {"rc": rc, "stdout": stdout, "stderr": "-E- no"}}})


def test_rows_with_a_value_are_the_fields():
    assert register(facts(OUT), ["0000:1a:00.0"], "ROCE_ACCL") == {
        "roce_adp_retrans_en": 1,
        "roce_tx_window_en": 0,
    }


@pytest.mark.parametrize(
    ("bdf", "name"), [("0000:1a:00.0", "PPCC"), ("0000:2a:00.0", "ROCE_ACCL")]
)
def test_another_register_or_nic_was_not_collected(bdf, name):
    with pytest.raises(Unread) as refused:
        register(facts(OUT), [bdf], name)
    assert refused.value.kind == "missing"


@pytest.mark.parametrize(("stdout", "rc"), [("", 0), (OUT, 1), (OUT[:60], 0)])
def test_a_failed_or_cut_read_is_refused(stdout, rc):
    with pytest.raises(Unread):
        register(facts(stdout, rc), ["0000:1a:00.0"], "ROCE_ACCL")


def test_a_value_with_fewer_digits_is_cut_off_and_not_taken():
    found = register(facts(OUT.rstrip()[:-1]), ["0000:1a:00.0"], "ROCE_ACCL")

    assert found == {"roce_adp_retrans_en": 1}
