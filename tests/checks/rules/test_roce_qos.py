"""QoS rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

F48 = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:3 dscp:31,30,29,28,27,26,25,24,
\tprio:5 dscp:59,
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=1027728
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   0   0   1   0   0
\tbuffer      0   0   0   0   0   1   0   0
"""
MAPPING = F48[F48.index("dscp2prio") : F48.index("Receive")]
LLDPAD = (
    "****** WARNING: lldpad service is running and may overwrite your settings ******\n"
)
NIC = "ens1f0np0"
MLNX = f"mlnx_qos -i {NIC}"
TCLASS = "/sys/class/infiniband/mlx5_0/tc/1/traffic_class"
DEVICE = {
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": f"{NIC}\n",
}
F48D = {
    f"dcb -j pfc show dev {NIC}": (
        '{"pfc_cap":8,"macsec_bypass":false,"delay":0,'
        '"prio_pfc":[false,false,false,true,false,false,false,false]}'
    ),
    f"dcb -j app show dev {NIC}": '{"dscp_prio":[[26,3," "],[48,6," "]]}',
}


def pcp(text=F48):
    return text.replace("state: dscp", "state: pcp").replace(MAPPING, "")


def test_f48_r55_nccl_2383_a_global_class_with_pfc_passes(bench):
    files = DEVICE | {TCLASS: "Global tclass=236\n"}

    finding = bench.judge(bench.doc(cmds={MLNX: F48}, files=files)).one("roce-tclass")

    assert (finding.status, finding.subject) == ("PASS", "mlx5_0")
    assert "DSCP 59, priority 5" in finding.observed


@pytest.mark.parametrize("more", [{}, DEVICE, DEVICE | {TCLASS: "Global tclass=236\n"}])
def test_f48_mooncakes_class_without_pfc_fails(bench, more):
    files = more | bench.env(MC_IB_TC="106")

    finding = bench.judge(bench.doc(cmds={MLNX: F48}, files=files)).one("roce-tclass")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert "MC_IB_TC=106: DSCP 26, priority 3" in finding.observed


@pytest.mark.parametrize("files", [{}, DEVICE, DEVICE | {TCLASS: {"errno": "ENOENT"}}])
def test_f48_no_class_at_all_warns(bench, files):
    finding = bench.judge(bench.doc(cmds={MLNX: F48}, files=files)).one("roce-tclass")

    assert (finding.status, finding.severity) == ("WARN", "warning")


def test_f48_a_class_that_may_not_be_read_is_unknown(bench):
    files = DEVICE | {TCLASS: {"errno": "EACCES"}}

    seen = bench.judge(bench.doc(cmds={MLNX: F48}, files=files))

    assert seen.status("roce-tclass") == "UNKNOWN"


def test_r55_nvshmem_25_devx_queue_pairs_bypass_the_global_class(bench):
    files = (
        DEVICE
        | {TCLASS: "Global tclass=236\n"}
        | bench.env(NVSHMEM_IB_ENABLE_IBGDA="1", MC_IB_TC="236")
    )

    finding = bench.judge(bench.doc(cmds={MLNX: F48}, files=files)).one("roce-tclass")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert "DevX" in finding.observed


def test_f48b_trust_pcp_against_a_profile_of_dscp_fails(bench):
    seen = bench.judge(
        bench.doc(cmds={MLNX: pcp()}), profile={"roce": {"trust": "dscp"}}
    )

    finding = seen.one("roce-trust", NIC)
    assert (finding.status, finding.severity, finding.observed) == (
        "FAIL",
        "error",
        "pcp",
    )


def test_f48b_the_trust_line_alone_is_enough(bench):
    text = "DCBX mode: OS controlled\nPriority trust state: pcp"

    seen = bench.judge(
        bench.doc(cmds={MLNX: text}), profile={"roce": {"trust": "dscp"}}
    )

    assert seen.status("roce-trust") == "FAIL"
    assert seen.status("roce-pfc") == "UNKNOWN"


def test_f48c_a_warning_of_lldpad_is_read_past_and_warned_of(bench):
    seen = bench.judge(
        bench.doc(cmds={MLNX: LLDPAD + F48}), profile={"roce": {"trust": "dscp"}}
    )

    finding = seen.one("roce-dcbx-willing", NIC)
    assert (finding.status, finding.severity) == ("WARN", "warning")
    assert seen.status("roce-trust") == "PASS"


def test_dcbx_of_the_firmware_and_a_willing_nic_warn(bench):
    firmware = F48.replace("OS controlled", "Firmware controlled")
    ets = {f"dcb -j ets show dev {NIC}": '{"willing":true,"ets_cap":8}'}

    for cmds in ({MLNX: firmware}, {MLNX: F48, **ets}, ets):
        assert bench.judge(bench.doc(cmds=cmds)).status("roce-dcbx-willing") == "WARN"
    assert bench.judge(bench.doc(cmds={MLNX: F48})).status("roce-dcbx-willing") == (
        "PASS"
    )


@pytest.mark.parametrize(
    ("klass", "status"), [("106", "PASS"), ("192", "FAIL"), ("40", "UNKNOWN")]
)
def test_f48d_dcb_tells_the_same_with_its_third_elements(bench, klass, status):
    doc = bench.doc(cmds=F48D, files=bench.env(MC_IB_TC=klass))

    seen = bench.judge(doc, profile={"roce": {"pfc_priorities": [3], "trust": "dscp"}})

    assert seen.status("roce-tclass") == status
    assert seen.status("roce-pfc", NIC) == "PASS"
    assert seen.status("roce-trust", NIC) == "PASS"


def test_f48_pfc_against_the_profile(bench):
    seen = bench.judge(
        bench.doc(cmds={MLNX: F48}), profile={"roce": {"pfc_priorities": [3]}}
    )

    finding = seen.one("roce-pfc", NIC)
    assert (finding.status, finding.observed, finding.severity) == (
        "FAIL",
        "5",
        "error",
    )


def test_r56_byteps_179_one_node_without_pfc_is_named_by_its_peers(bench):
    none = F48.replace("0   1   0   0\n\tbuffer", "0   0   0   0\n\tbuffer")
    docs = [bench.doc(f"node-{n}", cmds={MLNX: F48}) for n in "abc"]

    seen = bench.judge(*docs, bench.doc("node-d", cmds={MLNX: none}))

    assert seen.by_node("roce-pfc") == {
        "node-a": "PASS",
        "node-b": "PASS",
        "node-c": "PASS",
        "node-d": "FAIL",
    }


def test_sources_that_contradict_each_other_are_no_pass(bench):
    seen = bench.judge(bench.doc(cmds={MLNX: F48, **F48D}))

    finding = seen.one("roce-pfc")
    assert (finding.status, finding.observed) == ("FAIL", "dcb 3; mlnx_qos 5")


def test_a_device_without_dcb_is_unknown_and_on_a_vm_not_asked(bench):
    cmds = {
        f"dcb -j pfc show dev {NIC}": (
            1,
            "\n",
            "Attribute read: Operation not supported\n",
        )
    }

    assert bench.judge(bench.doc(cmds=cmds)).status("roce-pfc") == "UNKNOWN"
    assert bench.judge(bench.doc(cmds=cmds, virt="kvm")).status("roce-pfc") == "SKIP"


@pytest.mark.parametrize("at", range(0, len(F48), 7))
def test_a_cut_never_makes_a_lossy_class_pass(bench, at):
    doc = bench.doc(cmds={MLNX: F48[:at]}, files=bench.env(MC_IB_TC="106"))

    assert bench.judge(doc).status("roce-tclass") != "PASS"


def test_the_dscp_of_the_profile_must_have_pfc(bench):
    seen = bench.judge(
        bench.doc(cmds={MLNX: F48}), profile={"roce": {"traffic_class": 104}}
    )

    finding = seen.one("roce-dscp2prio", NIC)
    assert (finding.status, finding.severity) == ("FAIL", "error")


ACCL = "mlxreg -d 0000:1a:00.0 --reg_name ROCE_ACCL --get"
ON = "roce_adp_retrans_en | 0x00000001\nroce_slow_restart_en | 0x00000001\n"
SLOT = DEVICE | {"/sys/class/infiniband/mlx5_0/device": {"link": "../0000:1a:00.0"}}


def test_r79_ucx_6000_a_nic_that_is_neither_lossless_nor_lossy_warns(bench):
    none = json.dumps({"prio_pfc": [False] * 8})
    cmds = {ACCL: ON, f"dcb -j pfc show dev {NIC}": none}

    finding = bench.judge(bench.doc(cmds=cmds, files=SLOT)).one("roce-lossy")

    assert (finding.status, finding.severity) == ("WARN", "warning")
    assert "tx_window not there" in finding.observed


def test_r79_one_node_without_the_window_differs_from_its_peers(bench):
    full = ON + "roce_tx_window_en | 0x00000001\n"
    docs = [bench.doc(f"node-{n}", cmds={ACCL: full}, files=SLOT) for n in "abc"]
    odd = bench.doc("node-d", cmds={ACCL: ON}, files=SLOT)

    seen = bench.judge(*docs, odd)

    assert seen.status("roce-lossy", node="node-d") == "WARN"
    assert seen.status("roce-lossy", node="node-a") == "PASS"


def test_r79_the_registers_alone_can_be_compared(bench):
    line = "mlxreg -d mlx5_0 --reg_name ROCE_ACCL --get"
    full = ON + "roce_tx_window_en | 0x00000001\n"
    docs = [bench.doc(f"node-{n}", cmds={line: full}) for n in "abc"]

    seen = bench.judge(*docs, bench.doc("node-d", cmds={line: ON}))

    assert seen.status("roce-lossy", node="node-d") == "WARN"


def test_registers_nobody_asked_for_are_skipped(bench):
    seen = bench.judge(bench.doc(cmds={MLNX: F48}, files=SLOT))

    assert seen.status("roce-lossy") == "SKIP"
    assert seen.status("roce-cc-algo") == "SKIP"


def test_congestion_control_is_as_the_profile_says_in_either_direction(bench):
    line = "mlxreg -d 0000:1a:00.0 --reg_name PPCC --get --indexes local_port=1"
    doc = bench.doc(cmds={line: "value | 0x00000001\n"}, files=SLOT)

    for wanted, status in ((True, "PASS"), (False, "WARN")):
        seen = bench.judge(doc, profile={"roce": {"rtt_cc": wanted}})
        assert seen.status("roce-cc-algo") == status


def test_ecn_of_the_profile(bench):
    base = f"/sys/class/net/{NIC}/ecn"
    files = DEVICE | {
        f"{base}/roce_np/enable/3": "1\n",
        f"{base}/roce_rp/enable/3": "0\n",
    }

    seen = bench.judge(
        bench.doc(files=files), profile={"roce": {"ecn_priorities": [3]}}
    )

    assert seen.status("roce-ecn", NIC) == "WARN"
