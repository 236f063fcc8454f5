"""Settings of a NIC, whole or cut off."""

from __future__ import annotations

import pytest

from checks.parse.garbled import Garbled
from checks.parse.mstconfig import parse_mstconfig

TEXT = """
Device #1:
----------

Device type:    ConnectX7
Name:           MCX75310AAS-NEA_Ax
Description:    NVIDIA ConnectX-7 HHHL Adapter card
Device:         0000:1a:00.0

Configurations:                        Default       Current       Next Boot
*        MEMIC_BAR_SIZE                0             0             1
         LINK_TYPE_P1                  IB(1)         ETH(2)        ETH(2)
         HOST_CHAINING_DESCRIPTORS     Array[0..7]   Array[0..7]   Array[0..7]
(RO)     PCI_SWITCH_EMULATION          False(0)      False(0)      False(0)
"""


def test_three_columns_are_default_current_and_next_boot():
    found = parse_mstconfig(TEXT)

    row = found["MEMIC_BAR_SIZE"]
    assert (row.default, row.current, row.after_boot) == ("0", "0", "1")
    assert found["LINK_TYPE_P1"].current == "ETH(2)"
    assert "Device" not in found


def test_one_column_tells_only_what_comes_after_a_reset():
    found = parse_mstconfig("Configurations:   Next Boot\n   SRIOV_EN   True(1)\n")

    assert found["SRIOV_EN"].current is None
    assert found["SRIOV_EN"].after_boot == "True(1)"


@pytest.mark.parametrize("text", ["", "\n", "Device #1:\n", "-E- No device\n"])
def test_text_without_settings_is_garbled(text):
    with pytest.raises(Garbled):
        parse_mstconfig(text)


def test_no_cut_changes_a_value():
    whole = parse_mstconfig(TEXT)

    for at in range(len(TEXT)):
        try:
            cut = parse_mstconfig(TEXT[:at])
        except Garbled:
            continue
        for name, setting in cut.items():
            assert setting == whole[name]
