"""The kernel's arguments: quotes, repeats, and what is for init."""

from __future__ import annotations

import pytest

from checks.parse.cmdline import (
    asks_off,
    asks_passthrough,
    iommu_tokens,
    parse_cmdline,
    parse_grub,
)


def test_the_last_of_two_counts_and_init_gets_the_rest():
    found = parse_cmdline('ro iommu=pt dyndbg="file a +p" iommu=nopt -- iommu=pt\n')

    assert found == {"ro": "", "dyndbg": "file a +p", "iommu": "nopt"}


def test_only_what_concerns_the_iommu_is_compared():
    found = parse_cmdline("BOOT_IMAGE=/v root=UUID=1 pci=noacs iommu=pt intel_iommu=on")

    assert iommu_tokens(found) == ("intel_iommu=on", "iommu=pt", "pci=noacs")


@pytest.mark.parametrize(
    ("text", "passthrough", "off"),
    [
        ("iommu=pt", True, False),
        ("iommu=on,pt", True, False),
        ("iommu.passthrough=1", True, False),
        ("iommu.passthrough=0", False, False),
        ("intel_iommu=off", False, True),
        ("amd_iommu=off", False, True),
        ("intel_iommu=on", False, False),
    ],
)
def test_what_is_asked(text, passthrough, off):
    found = parse_cmdline(text)

    assert (asks_passthrough(found), asks_off(found)) == (passthrough, off)


def test_grub_puts_both_of_its_variables_together():
    text = (
        '# GRUB_CMDLINE_LINUX="iommu=off"\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n'
        "GRUB_CMDLINE_LINUX='intel_iommu=on iommu=pt'\n"
    )

    assert parse_grub(text) == {"intel_iommu": "on", "iommu": "pt", "quiet": ""}
