"""Small sources of NIC checks: driver, modules, devices, rate, devlink, FEC, kernel."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.devlink_info import parse_devlink_info
from checks.parse.ethtool_driver import parse_driver
from checks.parse.ethtool_modes import parse_fec, parse_pause, parse_statistics
from checks.parse.garbled import Garbled
from checks.parse.ibv_devices import parse_list
from checks.parse.kernel_release import kernel_release, numbers
from checks.parse.modules import parse_modules
from checks.parse.port_rate import gigabits

BOND = "driver: bonding\nversion: 6.8.0-60-generic\nfirmware-version: 2\nbus-info: \n"
VETH = "driver: veth\nversion: 1.0\nfirmware-version: \nbus-info: \n"


def test_a_bond_tells_its_abi_and_no_firmware():
    found = parse_driver(BOND)

    assert (found.name, found.firmware, found.bus) == ("bonding", "2", "")


def test_a_device_without_firmware_has_none():
    assert parse_driver(VETH).firmware == ""


@pytest.mark.parametrize("at", range(len("driver: bonding\nversion: 6.8.0-60-generic")))
def test_no_cut_of_a_driver_gives_another_version(at):
    with pytest.raises(Garbled):
        parse_driver(BOND[:at])


def test_users_of_a_module_are_known_with_its_state():
    text = "ib_core 458752 2 rdma_ucm,mlx5_ib, Live 0x0\nrdma_ucm 1 0 - Unloading 0x0\n"

    found = parse_modules(text)

    assert found["ib_core"].users == {"rdma_ucm", "mlx5_ib"}
    assert found["ib_core"].live
    assert not found["rdma_ucm"].live
    assert found["rdma_ucm"].users == frozenset()


@pytest.mark.parametrize("text", ["", "\n", "ib_core 458752 2 rdma_u"])
def test_modules_that_are_cut_off_are_garbled(text):
    with pytest.raises(Garbled):
        parse_modules(text)


def test_as_many_devices_as_were_counted():
    assert parse_list("2 HCAs found:\n\tmlx5_0\n\tmlx5_1\n\n") == ("mlx5_0", "mlx5_1")
    assert parse_list("1 HCA found:\n\tmlx5_0\n\n") == ("mlx5_0",)
    assert parse_list("0 HCAs found:\n\n") == ()


@pytest.mark.parametrize("text", ["2 HCAs found:\n\tmlx5_0\n\n", "2 HCAs", "", "x\n"])
def test_fewer_names_than_counted_are_garbled(text):
    with pytest.raises(Garbled):
        parse_list(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)\n", 400.0),
        ("2.5 Gb/sec (1X SDR)\n", 2.5),
        ("800 Gb/sec\n", 800.0),
    ],
)
def test_rates_of_sysfs(text, rate):
    assert gigabits(text) == rate


@pytest.mark.parametrize("text", ["", "400 Gb/sec (4X", "400", "400 Mb/sec (4X NDR)"])
def test_what_is_no_rate_is_garbled(text):
    with pytest.raises(Garbled):
        gigabits(text)


def test_firmware_that_both_tell_is_compared_whatever_it_is_called():
    versions = {"running": {"fw": "8.10", "fw.mgmt": "1"}, "stored": {"fw": "8.20"}}
    rows = {"info": {"pci/1a:00.0": {"driver": "ice", "versions": versions}}}

    found = parse_devlink_info(rows)["0000:1a:00.0"]

    assert found.firmware() == ("8.10", "8.20")


@pytest.mark.parametrize("loaded", [[], {}, {"info": []}, None, "x"])
def test_devlink_without_info_is_garbled(loaded):
    with pytest.raises(Garbled):
        parse_devlink_info(loaded)


def test_a_device_that_tells_nothing_is_empty():
    found = parse_devlink_info({"info": {"pci/1a:00.0": {}, "auxiliary/x": {}}})

    assert found["0000:1a:00.0"].firmware() == ("", "")
    assert len(found) == 1


def test_the_active_fec_and_not_the_configured_one():
    text = "Configured FEC encodings: Auto\nActive FEC encoding: RS\n"

    assert parse_fec(text) == "RS"


def test_pause_needs_all_three_fields():
    text = "Pause parameters for e:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n\n"

    assert parse_pause(text) == {"Autonegotiate": False, "RX": True, "TX": False}
    with pytest.raises(Garbled):
        parse_pause(text[: text.find("TX")])


def test_only_whole_lines_are_counters():
    text = "NIC statistics:\n     rx_crc_errors_phy: 12\n     rx_packets: 123"

    assert parse_statistics(text) == {"rx_crc_errors_phy": 12}


def test_the_kernel_is_known_by_its_version_where_uname_was_not_run():
    text = "Linux version 6.8.0-60-generic (buildd@x) (gcc) #63 SMP\n"
    facts = Facts({"files": {"/proc/version": {"text": text}}})

    assert kernel_release(facts) == "6.8.0-60-generic"
    assert numbers("6.8.0-60-generic") == (6, 8)


def test_a_kernel_that_nobody_asked_for_is_unread():
    with pytest.raises(Unread):
        kernel_release(Facts({}))
    with pytest.raises(Garbled):
        numbers("generic")
