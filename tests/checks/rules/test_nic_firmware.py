"""Firmware and settings of NICs, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

BDF = "0000:1a:00.0"


def f34(running="28.39.1002", stored="28.43.2566"):
    versions = {
        "fixed": {"fw.psid": "MT_0000000838"},
        "running": {"fw.version": running, "fw": running},
    }
    if stored:
        versions["stored"] = {"fw.version": stored, "fw": stored}
    device = {"driver": "mlx5_core", "versions": versions}
    return json.dumps({"info": {f"pci/{BDF}": device}})


def test_f34_firmware_that_is_stored_and_does_not_run_warns(bench):
    seen = bench.judge(bench.doc(cmds={"devlink -j dev info": f34()}))

    finding = seen.one("nic-fw-running-vs-stored", BDF)
    assert finding.status == "WARN"
    assert finding.observed == "running 28.39.1002, stored 28.43.2566"


def test_f34_a_virtual_function_stores_none_and_is_skipped(bench):
    seen = bench.judge(bench.doc(cmds={"devlink -j dev info": f34(stored="")}))

    assert seen.status("nic-fw-running-vs-stored") == "SKIP"


def test_firmware_that_runs_as_stored_passes(bench):
    text = f34(running="28.43.2566")

    seen = bench.judge(bench.doc(cmds={"devlink -j dev info": text}))

    assert seen.status("nic-fw-running-vs-stored") == "PASS"


def test_without_devlink_in_the_kernel_it_is_unknown(bench):
    entry = (1, "", "Failed to connect to devlink Netlink\n")

    seen = bench.judge(bench.doc(cmds={"devlink -j dev info": entry}))

    assert seen.status("nic-fw-running-vs-stored") == "UNKNOWN"


F30 = (
    "*        PCI_WR_ORDERING                     per_mkey(0)"
    "          force_relax(1)       force_relax(1)"
)
LINE = "mstconfig -d 1b:00.0 -e q"


def ordering(current, later, **more):
    rows = {"PCI_WR_ORDERING": ("per_mkey(0)", current, later), **more}
    head = "Configurations:      Default       Current      Next Boot\n"
    return head + "".join(
        f"*        {key:<35} {'  '.join(values)}\n" for key, values in rows.items()
    )


@pytest.mark.parametrize("text", [F30, f"{F30}\n", ordering(*["force_relax(1)"] * 2)])
def test_f30_r35_nccl_531_forced_relaxed_ordering_fails(bench, text):
    finding = bench.judge(bench.doc(cmds={LINE: text})).one("pcie-relaxed-ordering")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.subject == "0000:1b:00.0"
    assert "force_relax(1)" in finding.observed


def test_f30_r35_nccl_615_ordering_that_waits_for_a_reset_warns(bench):
    text = ordering("per_mkey(0)", "force_relax(1)")

    seen = bench.judge(bench.doc(cmds={LINE: text}))

    finding = seen.one("pcie-relaxed-ordering")
    assert finding.status == "WARN"
    assert "pending reset" in finding.observed
    assert seen.one("nic-mlxconfig").status == "WARN"
    assert seen.one("nic-mlxconfig").blocked_by == ("pcie-relaxed-ordering",)


def test_ordering_by_memory_key_passes(bench):
    text = ordering("per_mkey(0)", "per_mkey(0)")

    assert (
        bench.judge(bench.doc(cmds={LINE: text})).status("pcie-relaxed-ordering")
        == "PASS"
    )


def test_the_operator_may_want_relaxed_ordering(bench):
    profile = {"expect": {"pcie-relaxed-ordering": ["force_relax(1)"]}}

    seen = bench.judge(bench.doc(cmds={LINE: F30}), profile=profile)

    assert seen.status("pcie-relaxed-ordering") == "PASS"


@pytest.mark.parametrize("cut", [40, len(F30) - 4, len(F30) - 1])
def test_a_row_that_is_cut_off_never_passes(bench, cut):
    text = ordering("per_mkey(0)", "per_mkey(0)").rstrip("\n")[:-4]

    for each in (text, F30[:cut]):
        seen = bench.judge(bench.doc(cmds={LINE: each}))
        assert seen.status("pcie-relaxed-ordering") == "UNKNOWN"


def test_next_boot_alone_does_not_tell_what_is_in_effect(bench):
    text = "Configurations:     Next Boot\n     PCI_WR_ORDERING     per_mkey(0)\n"

    seen = bench.judge(bench.doc(cmds={"mstconfig -d 1b:00.0 q": text}))

    assert seen.status("pcie-relaxed-ordering") == "UNKNOWN"


@pytest.mark.parametrize(("flag", "verdict"), [("-", "PASS"), ("+", "UNKNOWN")])
def test_without_the_tool_a_device_that_may_not_relax_is_safe(bench, flag, verdict):
    cmds = {
        f"mstconfig -d {BDF} -e q": (127, "", "not found"),
        f"lspci -Dvvv -s {BDF}": "1a:00.0 Ethernet controller\n\t\tDevCtl:\tCorrErr+\n"
        f"\t\t\tRlxdOrd{flag} ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n",
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("pcie-relaxed-ordering") == verdict


def test_r36_infra_controller_3624_a_port_set_to_infiniband_fails_by_profile(bench):
    text = ordering(
        "per_mkey(0)", "per_mkey(0)", LINK_TYPE_P1=("IB(1)", "IB(1)", "IB(1)")
    )
    profile = {"nic": {"link_layer": "Ethernet"}}

    seen = bench.judge(bench.doc(cmds={LINE: text}), profile=profile)

    finding = seen.one("nic-mlxconfig")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.observed == "LINK_TYPE_P1=IB(1)"


def test_settings_that_differ_from_the_peers_warn(bench):
    def set_to(name, vfs):
        text = ordering("per_mkey(0)", "per_mkey(0)", NUM_OF_VFS=("8", vfs, vfs))
        return bench.doc(name, cmds={LINE: text})

    seen = bench.judge(
        *[set_to(f"node-{n}", "8") for n in "abc"], set_to("node-d", "16")
    )

    assert seen.status("nic-mlxconfig", node="node-d") == "WARN"
    assert seen.status("nic-mlxconfig", node="node-a") == "PASS"


def board(name, bdf, firmware):
    base = f"/sys/class/infiniband/{name}"
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/board_id": "MT_0000000838\n",
        f"{base}/fw_ver": f"{firmware}\n",
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
    }


def test_two_versions_of_firmware_on_the_nics_of_one_node_fail(bench):
    files = board("mlx5_0", BDF, "28.43.2566") | board(
        "mlx5_1", "0000:2a:00.0", "28.39.1"
    )

    finding = bench.judge(bench.doc(files=files)).one("nic-fw-within-node")

    assert finding.status == "FAIL"
    assert finding.observed == "28.39.1 on mlx5_1; 28.43.2566 on mlx5_0"


def test_a_board_without_readable_firmware_is_unknown(bench):
    files = board("mlx5_0", BDF, "28.43.2566") | board("mlx5_1", "0000:2a:00.0", "")

    assert bench.judge(bench.doc(files=files)).status("nic-fw-within-node") == "UNKNOWN"
