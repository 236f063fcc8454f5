"""Listings of lspci: with and without headers, domains, privilege, an end."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.lspci import devices, parse_lspci

TWO = (
    "0000:17:00.0 PCI bridge: Broadcom (rev b0)\n\tLnkSta:\tSpeed 16GT/s, Width x16\n\n"
    "18:00.0 3D controller: NVIDIA Corporation\n\tLnkSta:\tSpeed 8GT/s, Width x8\n"
)


def test_one_listing_holds_many_devices():
    bridge, gpu = parse_lspci(TWO)

    assert (bridge.bdf, bridge.is_bridge, bridge.is_gpu) == (
        "0000:17:00.0",
        True,
        False,
    )
    assert (gpu.bdf, gpu.is_bridge, gpu.is_gpu) == ("0000:18:00.0", False, True)


def test_a_listing_without_header_is_of_the_device_that_was_asked():
    (device,) = parse_lspci("\t\tLnkCap:\tSpeed 8GT/s, Width x8\n", "0000:18:00.0")

    assert (device.bdf, device.kind) == ("0000:18:00.0", "")


def test_an_empty_listing_is_garbled():
    with pytest.raises(Unread):
        parse_lspci("nothing\n")


def test_marks_behind_speed_and_width_are_tolerated():
    text = (
        "18:00.0 Ethernet controller: X\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkCap2: Supported Link Speeds: 2.5-32GT/s\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n"
    )

    most, now = parse_lspci(text)[0].links()

    assert (most.gt_per_s, most.width, most.downgraded) == (32.0, 16, False)
    assert (now.gt_per_s, now.width, now.downgraded) == (2.5, 16, True)


def test_a_device_that_could_not_be_listed_keeps_its_refusal():
    cmds = {
        "lspci -Dvvv -s 0000:17:00.0": {"rc": 0, "stdout": TWO},
        "lspci -Dvvv -s 0000:99:00.0": {"rc": 1, "stdout": "", "stderr": "no"},
    }

    found = devices(Facts({"schema": "preflight.facts/1", "cmds": cmds}))

    assert isinstance(found["0000:99:00.0"], Unread)
    assert set(found) == {"0000:17:00.0", "0000:18:00.0", "0000:99:00.0"}
