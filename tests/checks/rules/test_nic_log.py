"""What the kernel's log tells of NICs, from the catalogue's reports."""

from __future__ import annotations

import json

import pytest

DENIED = (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")


def device(name="mlx5_0", bdf="0000:1a:00.0", netdev="ens1f0np0"):
    base = f"/sys/class/infiniband/{name}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
        f"{base}/ports/1/link_layer": "Ethernet\n",
        f"{base}/ports/1/gid_attrs/ndevs/0": f"{netdev}\n",
    }


def log(*lines):
    """`dmesg -J` of (time, message)."""
    rows = [{"pri": 6, "time": t, "msg": message} for t, message in lines]
    return {"dmesg -J": json.dumps({"dmesg": rows})}


def downs(count, start=4000.0, name="0000:1a:00.0 ens1f0np0"):
    found = []
    for at in range(count):
        found.append((start + 60 * at, f"mlx5_core {name}: Link down"))
        found.append((start + 60 * at + 2, f"mlx5_core {name}: Link up"))
    return found


@pytest.mark.parametrize(("count", "verdict"), [(4, "PASS"), (5, "FAIL")])
def test_r53_a_link_that_was_lost_five_times_in_a_day_fails(bench, count, verdict):
    document = bench.doc(cmds=log(*downs(count)), files=device())

    finding = bench.judge(document).one("nic-flap", "mlx5_0")

    assert (finding.status, finding.severity) == (verdict, "error")


def test_links_that_come_up_after_a_boot_are_within_the_grace(bench):
    document = bench.doc(cmds=log(*downs(6, start=20.0)), files=device())

    assert bench.judge(document).status("nic-flap") == "PASS"


def test_what_was_before_the_last_day_is_over(bench):
    files = device() | {"/proc/uptime": "200000.00 1.0\n"}
    document = bench.doc(cmds=log(*downs(9)), files=files)

    assert bench.judge(document).status("nic-flap") == "PASS"


def test_the_other_nic_is_not_blamed(bench):
    files = device() | device("mlx5_1", "0000:2a:00.0", "ens1f0np1")
    document = bench.doc(cmds=log(*downs(7)), files=files)

    seen = bench.judge(document)

    assert seen.statuses("nic-flap") == {"mlx5_0": "FAIL", "mlx5_1": "PASS"}


def test_a_log_without_times_counts_whole(bench):
    text = "mlx5_core 0000:1a:00.0 ens1f0np0: Link down\n" * 6
    document = bench.doc(cmds={"dmesg": text}, files=device())

    assert bench.judge(document).status("nic-flap") == "FAIL"


def test_the_log_alone_names_the_nic_by_its_address(bench):
    seen = bench.judge(bench.doc(cmds=log(*downs(5))))

    assert seen.status("nic-flap", "0000:1a:00.0") == "FAIL"


@pytest.mark.parametrize(("changes", "verdict"), [("2", "PASS"), ("14", "UNKNOWN")])
def test_a_log_that_may_not_be_read_leaves_the_carrier_to_tell(bench, changes, verdict):
    path = "/sys/class/net/ens1f0np0/carrier_changes"
    document = bench.doc(cmds={"dmesg -J": DENIED}, files=device() | {path: changes})

    assert bench.judge(document).status("nic-flap") == verdict


def test_a_log_that_is_cut_off_is_unknown_whatever_the_carrier_says(bench):
    path = "/sys/class/net/ens1f0np0/carrier_changes"
    cmds = log(*downs(6))
    cmds["dmesg -J"] = cmds["dmesg -J"][:-20]
    document = bench.doc(cmds=cmds, files=device() | {path: "2"})

    assert bench.judge(document).status("nic-flap") == "UNKNOWN"


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [(("3", "4"), "WARN"), (("3", "3"), "PASS"), (("255", "255"), "PASS")],
)
def test_a_link_lost_between_two_samples_warns_and_a_total_does_not(
    bench, samples, verdict
):
    path = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    files = device() | {path: list(zip((1.0, 3.0), samples, strict=True))}
    document = bench.doc(cmds=log((1.0, "quiet")), files=files)

    assert bench.judge(document).status("nic-flap") == verdict


@pytest.mark.parametrize(
    ("after", "verdict"), [("4", "PASS"), ("6", "WARN"), ("16", "FAIL")]
)
def test_changes_of_carrier_between_two_samples_are_losses_too(bench, after, verdict):
    path = "/sys/class/net/ens1f0np0/carrier_changes"
    files = device() | {path: [(1.0, "4"), (3.0, after)]}

    document = bench.doc(cmds=log((1.0, "quiet")), files=files)

    assert bench.judge(document).status("nic-flap") == verdict


def test_both_legs_of_a_bond_are_the_bond(bench):
    files = device("mlx5_bond_0", "0000:1a:00.0", "bond0")
    lines = downs(5, name="0000:1a:00.1 ens1f1np1")
    document = bench.doc(cmds=log(*lines), files=files)

    assert bench.judge(document).status("nic-flap", "mlx5_bond_0") == "FAIL"


@pytest.mark.parametrize(
    "message",
    [
        "health_care:749: handling bad device here",
        "Health issue observed, firmware internal error, severity(3) ERROR:",
        "print_health_info:485: synd 0x1: firmware internal error",
        "mlx5_cmd_out_err:838:(pid 77): CREATE_MKEY(0x200) op_mod(0x0) failed,"
        " status no resources(0xf), syndrome (0x0), err(-12)",
    ],
)
def test_firmware_that_complains_is_critical(bench, message):
    lines = log((9.0, f"mlx5_core 0000:1a:00.0: {message}"))

    finding = bench.judge(bench.doc(cmds=lines, files=device())).one("nic-health")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_a_syndrome_of_zero_and_other_devices_are_no_complaint(bench):
    lines = log(
        (9.0, "mlx5_core 0000:1a:00.0: print_health_info: synd 0x0: no error"),
        (9.1, "mlx5_core 0000:9a:00.0: Health issue observed"),
    )

    document = bench.doc(cmds=lines, files=device())

    assert bench.judge(document).status("nic-health") == "PASS"


def test_an_optic_that_is_too_hot_fails(bench):
    line = (
        "mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error,"
        " High Temperature"
    )
    document = bench.doc(cmds=log((9.0, line)), files=device())

    assert bench.judge(document).status("nic-module-temp") == "FAIL"


@pytest.mark.parametrize("checked", ["nic-health", "nic-module-temp", "nic-access-reg"])
def test_a_log_that_may_not_be_read_passes_nothing(bench, checked):
    document = bench.doc(cmds={"dmesg -J": DENIED}, files=device())

    assert bench.judge(document).status(checked) == "UNKNOWN"


def test_r54_gpud_1164_a_flood_of_refused_registers_is_only_information(bench):
    line = (
        "mlx5_core 0000:1a:00.0: mlx5_cmd_out_err:835:(pid 1): ACCESS_REG(0x805)"
        " op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684)"
    )
    document = bench.doc(cmds=log(*[(float(n), line) for n in range(40)]))

    finding = bench.judge(document).one("nic-access-reg")

    assert (finding.status, finding.severity) == ("PASS", "info")
    assert finding.observed.startswith("40 lines")
