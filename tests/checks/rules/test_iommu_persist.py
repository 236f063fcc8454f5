"""What switches ACS off: enabled, and run since the last change of the bus."""

from __future__ import annotations

import json

import pytest

CHECK = "iommu-acs-not-persistent"
SHOW = (
    "systemctl show --property=LoadState --property=UnitFileState --property=Result"
    " --property=ExecMainStartTimestampMonotonic disable-pcie-acs.service"
)
GOOD = {
    "LoadState": "loaded",
    "UnitFileState": "enabled",
    "Result": "success",
    "ExecMainStartTimestampMonotonic": "21500000",
}
NOT_THERE = {
    "LoadState": "not-found",
    "UnitFileState": "",
    "Result": "success",
    "ExecMainStartTimestampMonotonic": "0",
}


def shown(**changed):
    return "".join(f"{k}={v}\n" for k, v in {**GOOD, **changed}.items())


def judged(bench, told, *messages):
    """Messages are (seconds since boot, text)."""
    rows = [{"pri": 6, "time": 0.1, "msg": "Linux version 6.8.0"}]
    rows += [{"pri": 6, "time": t, "msg": text} for t, text in messages]
    cmds = {"dmesg -J": json.dumps({"dmesg": rows})}
    if told is not None:
        cmds[SHOW] = told
    return bench.judge(bench.doc(cmds=cmds), only=CHECK).one(CHECK)


PLUGGED = "pcieport 0000:17:01.0: pciehp: Slot(12): Card present"


def test_a_unit_that_ran_this_boot_and_runs_at_the_next_passes(bench):
    found = judged(bench, shown(), (2.0, PLUGGED))

    assert (found.status, found.observed) == ("PASS", "it ran 22 s after boot")


@pytest.mark.parametrize(
    ("changed", "observed"),
    [
        ({"ExecMainStartTimestampMonotonic": "0"}, "did not run this boot"),
        ({"Result": "exit-code"}, "failed: exit-code"),
        ({"UnitFileState": "disabled"}, "not enabled for the next boot"),
        ({"UnitFileState": "enabled-runtime"}, "not enabled for the next boot"),
        ({"LoadState": "masked", "UnitFileState": "masked"}, "not enabled"),
    ],
)
def test_r28_nccl_304_a_mitigation_that_a_reboot_undoes_warns(bench, changed, observed):
    found = judged(bench, shown(**changed))

    assert found.status == "WARN"
    assert observed in found.observed


@pytest.mark.parametrize(
    "text",
    [
        PLUGGED,
        "pcieport 0000:17:01.0: pciehp: Slot(3): Link Up",
        "pciehp 0000:80:03.0:pcie004: Slot(2): Card present",
        "pciehp 0000:80:03.0:pcie004: Card present on Slot(2)",
    ],
)
def test_a_card_that_was_put_in_afterwards_warns(bench, text):
    found = judged(bench, shown(), (2.0, PLUGGED), (900.0, text))

    assert found.status == "WARN"
    assert found.observed == "a card was put in 878 s after it ran"


@pytest.mark.parametrize(
    "told",
    [
        "".join(f"{k}={v}\n" for k, v in NOT_THERE.items()),
        shown(
            LoadState="masked",
            UnitFileState="masked",
            ExecMainStartTimestampMonotonic="0",
        ),
        shown(UnitFileState="static", ExecMainStartTimestampMonotonic="0"),
        shown(UnitFileState="disabled", ExecMainStartTimestampMonotonic="0"),
        (1, "", "System has not been booted with systemd as init system (PID 1).\n"),
    ],
    ids=["none", "masked", "static", "not in use", "no systemd"],
)
def test_a_node_without_such_a_unit_is_skipped(bench, told):
    assert judged(bench, told).status == "SKIP"


@pytest.mark.parametrize(
    "told",
    [
        None,
        "",
        shown()[:-1],
        shown(ExecMainStartTimestampMonotonic=""),
        (1, "", "Failed to connect to bus: Permission denied\n"),
        *["".join(f"{k}={v}\n" for k, v in GOOD.items() if k != gone) for gone in GOOD],
    ],
)
def test_what_was_not_read_whole_is_unknown(bench, told):
    assert judged(bench, told).status == "UNKNOWN"


def test_without_the_log_nobody_knows_of_cards(bench):
    node = bench.doc(cmds={SHOW: shown()})

    assert bench.judge(node, only=CHECK).status(CHECK) == "UNKNOWN"


@pytest.mark.parametrize("at", range(len(shown())))
def test_no_cut_is_taken_for_a_good_unit(bench, at):
    assert judged(bench, shown()[:at]).status != "PASS"


def test_of_a_static_unit_nobody_tells_whether_it_starts_again(bench):
    found = judged(bench, shown(UnitFileState="static"))

    assert found.status == "UNKNOWN"
