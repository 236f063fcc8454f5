"""The module on disk: its source and the kernel that it is for."""

from __future__ import annotations

import pytest

from checks.parse.garbled import Garbled
from checks.parse.modinfo import parse_modinfo

TEXT = """filename:       /lib/modules/6.8.0-60-generic/updates/dkms/mlx5_core.ko.zst
alias:          auxiliary:mlx5_core.eth
version:        24.10-0.7.0
srcversion:     B9C5A1D2E3F405162738495
depends:        mlxfw,psample
vermagic:       6.8.0-60-generic SMP preempt mod_unload modversions 
parm:           prof_sel:profile selector. Valid range 0 - 2 (uint)
"""  # noqa: W291 - so it is printed


def test_source_and_release_of_an_installed_module():
    found = parse_modinfo(TEXT)

    assert (found.srcversion, found.release, found.builtin) == (
        "B9C5A1D2E3F405162738495",
        "6.8.0-60-generic",
        False,
    )


def test_a_part_of_the_kernel_has_neither():
    found = parse_modinfo("name:           mlx5_core\nfilename:       (builtin)\n")

    assert (found.builtin, found.release) == (True, "")


@pytest.mark.parametrize("at", [0, 40, TEXT.index("SMP"), TEXT.index("vermagic")])
def test_a_cut_before_the_end_of_its_vermagic_is_garbled(at):
    with pytest.raises(Garbled):
        parse_modinfo(TEXT[:at])
