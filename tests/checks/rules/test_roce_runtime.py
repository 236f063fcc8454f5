"""Namespaces, regions, counters and resources, from fixtures and reports."""

from __future__ import annotations

import json

import pytest

IB = "/sys/class/infiniband/mlx5_0"
NIC = "ens1f0np0"
PORT = {
    f"{IB}/ports/1/state": "4: ACTIVE\n",
    f"{IB}/ports/1/phys_state": "5: LinkUp\n",
    f"{IB}/ports/1/gid_attrs/ndevs/0": f"{NIC}\n",
}
SYSTEM = "rdma -j system"


def counters(seconds=60, kind="hw_counters", **pairs):
    return {
        f"{IB}/ports/1/{kind}/{name}": [
            (1000.0, f"{old}\n"),
            (1000.0 + seconds, f"{new}\n"),
        ]
        for name, (old, new) in pairs.items()
    }


def test_f50_r56_byteps_179_timeouts_that_grow_warn(bench):
    moved = counters(
        local_ack_timeout_err=(0, 2705), out_of_sequence=(7, 7), np_cnp_sent=(0, 1333)
    )

    finding = bench.judge(bench.doc(files=PORT | moved)).one("roce-counters-retrans")

    assert (finding.status, finding.severity) == ("WARN", "warning")
    assert finding.observed == "local_ack_timeout_err +2705 in 60 s"


def test_f50_congestion_alone_is_info_and_never_warns(bench):
    moved = counters(
        local_ack_timeout_err=(2705, 2705),
        out_of_sequence=(0, 0),
        np_cnp_sent=(0, 900_000),
    )
    pauses = [
        (t, f"NIC statistics:\n     rx_prio3_pause: {n}\n")
        for t, n in ((1000.0, 5), (1060.0, 12_005))
    ]
    doc = bench.doc(cmds={f"ethtool -S {NIC}": pauses}, files=PORT | moved)

    seen = bench.judge(doc)

    finding = seen.one("roce-counters-congestion", "mlx5_0")
    assert (finding.status, finding.severity) == ("PASS", "info")
    assert "rx_prio3_pause +12000" in finding.observed
    assert seen.status("roce-counters-retrans") == "PASS"


def test_f50_a_saturated_counter_is_excluded_and_told(bench):
    files = (
        PORT
        | counters(out_of_sequence=(4294967295, 4294967295), packet_seq_err=(3, 3))
        | counters(kind="counters", link_downed=(255, 255))
    )

    seen = bench.judge(bench.doc(files=files))

    finding = seen.one("roce-counter-wrap", "mlx5_0")
    assert (finding.status, finding.severity) == ("PASS", "info")
    assert "link_downed=255 is saturated: excluded" in finding.observed
    assert seen.one("roce-counters-retrans").observed.startswith("1 counters")


def test_one_sample_tells_no_change(bench):
    files = PORT | {f"{IB}/ports/1/hw_counters/local_ack_timeout_err": "2705\n"}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("roce-counters-retrans") == "UNKNOWN"


@pytest.mark.parametrize(
    "pair", [(9000, 3), (4294967295, 4294967295)], ids=["reset", "saturated"]
)
def test_counters_that_mean_nothing_are_no_pass(bench, pair):
    files = PORT | counters(local_ack_timeout_err=pair)

    assert bench.judge(bench.doc(files=files)).status("roce-counters-retrans") == (
        "UNKNOWN"
    )


def test_a_counter_that_is_denied_leaves_the_others_unproven(bench):
    files = PORT | counters(out_of_sequence=(0, 0))
    path = f"{IB}/ports/1/hw_counters/local_ack_timeout_err"
    files[path] = [(1.0, {"errno": "EACCES"}), (2.0, {"errno": "EACCES"})]

    assert bench.judge(bench.doc(files=files)).status("roce-counters-retrans") == (
        "UNKNOWN"
    )


def test_soft_roce_names_its_counters_differently(bench):
    files = PORT | counters(completer_retry_err=(0, 296))

    assert bench.judge(bench.doc(files=files)).status("roce-counters-retrans") == "WARN"


def test_r58_shared_dev_plugin_84_exclusive_where_shared_is_needed_is_critical(bench):
    doc = bench.doc(cmds={SYSTEM: '{"netns":"exclusive","copy-on-fork":true}'})

    finding = bench.judge(doc, profile={"roce": {"rdma_netns": "shared"}}).one(
        "roce-rdma-netns"
    )

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_r58_an_old_tool_cannot_tell_but_the_kernel_can(bench):
    old = (255, "", 'Unknown object "system", try "rdma help".\n')
    parameter = {"/sys/module/ib_core/parameters/netns_mode": "N\n"}
    profile = {"roce": {"rdma_netns": "shared"}}

    silent = bench.judge(bench.doc(cmds={SYSTEM: old}), profile=profile)
    told = bench.judge(bench.doc(cmds={SYSTEM: old}, files=parameter), profile=profile)

    assert silent.status("roce-rdma-netns") == "UNKNOWN"
    assert told.status("roce-rdma-netns") == "FAIL"


@pytest.mark.parametrize(
    "text",
    [
        '{"netns":"shared","copy-on-fork":true}',
        '[{"netns":"shared"}]',
        "netns shared copy-on-fork on\n",
        "netns shared\n",
    ],
)
def test_every_spelling_of_shared_is_shared(bench, text):
    doc = bench.doc(cmds={"rdma system": text})

    seen = bench.judge(doc, profile={"roce": {"rdma_netns": "shared"}})

    assert seen.status("roce-rdma-netns") == "PASS"


def test_r59_sriov_operator_481_a_mode_that_the_next_boot_changes_warns(bench):
    doc = bench.doc(
        cmds={SYSTEM: '{"netns":"shared"}'},
        files={"/etc/modprobe.d/rdma.conf": "options ib_core netns_mode=0\n"},
    )

    exclusive = bench.judge(doc, profile={"roce": {"rdma_netns": "exclusive"}})

    assert bench.judge(doc).status("roce-rdma-netns") == "WARN"
    assert exclusive.status("roce-rdma-netns") == "FAIL"


def test_one_node_in_another_mode_than_its_peers_fails(bench):
    docs = [bench.doc(f"n-{n}", cmds={SYSTEM: '{"netns":"shared"}'}) for n in "abc"]
    odd = bench.doc("n-d", cmds={SYSTEM: '{"netns":"exclusive"}'})

    assert bench.judge(*docs, odd).status("roce-rdma-netns", node="n-d") == "FAIL"


def devinfo(size, **more):
    rest = "".join(f"\t{key}:\t\t\t{value}\n" for key, value in more.items())
    return f"hca_id:\tmlx5_0\n\tmax_mr_size:\t\t\t{size}\n{rest}\t\tport:\t1\n"


R63 = {"ibv_devinfo -v": devinfo("0x1000000000")}


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({"MOONCAKE_GLOBAL_SEGMENT_SIZE": str(80 << 30)}, "FAIL"),
        ({"MOONCAKE_GLOBAL_SEGMENT_SIZE": "80gb"}, "FAIL"),
        ({"MOONCAKE_GLOBAL_SEGMENT_SIZE": str(64 << 30)}, "PASS"),
        (
            {
                "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(80 << 30),
                "MC_MAX_MR_SIZE": str(32 << 30),
            },
            "PASS",
        ),
        ({"MOONCAKE_GLOBAL_SEGMENT_SIZE": "much"}, "UNKNOWN"),
        ({"MC_MTU": "4096"}, "SKIP"),
    ],
)
def test_r63_mooncake_304_a_segment_above_max_mr_size_is_critical(bench, env, status):
    doc = bench.doc(cmds=R63, files=PORT | bench.env(**env))

    finding = bench.judge(doc).one("roce-max-mr", "mlx5_0")

    assert (finding.status, finding.severity) == (status, "critical")


def test_r64_ionic_2_gib_against_the_segment_of_the_profile(bench):
    doc = bench.doc(cmds={"ibv_devinfo -v": devinfo("0x80000000")}, files=PORT)

    seen = bench.judge(doc, profile={"memory": {"segment_bytes": 4 << 30}})

    assert seen.status("roce-max-mr") == "FAIL"


def test_pyverbs_tells_the_largest_region_too(bench):
    doc = bench.doc(files=PORT | bench.env(MOONCAKE_GLOBAL_SEGMENT_SIZE="1gb"))
    doc["verbs"] = {"mlx5_0": {"max_mr_size": 1 << 40}}

    assert bench.judge(doc).status("roce-max-mr") == "PASS"


def test_a_device_that_is_nearly_out_of_regions_warns(bench):
    limits = {"max_qp": 1000, "max_cq": 1000, "max_mr": 1000}
    rows = [{"ifname": "mlx5_0", "qp": 10, "cq": 10, "mr": 950}]
    cmds = {
        "ibv_devinfo -v": devinfo("0x1000", **limits),
        "rdma -j resource show": json.dumps(rows),
    }

    finding = bench.judge(bench.doc(cmds=cmds, files=PORT)).one("roce-qp-resources")

    assert (finding.status, finding.observed) == ("WARN", "mr 950 of 1000")
