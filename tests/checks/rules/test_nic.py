"""NIC rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

PSID = "MT_0000000838"


def sysfs(device, *, bdf="0000:1a:00.0", state="4: ACTIVE", phys="5: LinkUp", **more):
    base = f"/sys/class/infiniband/{device}"
    layer = more.get("layer", "Ethernet")
    return {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/fw_ver": f"{more.get('fw', '28.43.2566')}\n",
        f"{base}/board_id": f"{more.get('psid', PSID)}\n",
        f"{base}/ports/1/state": f"{state}\n",
        f"{base}/ports/1/phys_state": f"{phys}\n",
        f"{base}/ports/1/link_layer": f"{layer}\n",
        f"{base}/ports/1/gid_attrs/ndevs/0": f"{more.get('netdev', 'n' + device)}\n",
    }


F38 = [
    {
        "ifindex": 0,
        "ifname": "mlx5_0",
        "port": 1,
        "state": "ACTIVE",
        "physical_state": "LINK_UP",
        "netdev": "ens1f0np0",
        "netdev_index": 4,
    },
    {
        "ifindex": 1,
        "ifname": "mlx5_1",
        "port": 1,
        "state": "DOWN",
        "physical_state": "POLLING",
        "netdev": "ens2f0np0",
        "netdev_index": 5,
    },
]


def test_f38_a_polling_port_fails_and_the_cable_is_named(bench):
    seen = bench.judge(bench.doc(cmds={"rdma -j link": json.dumps(F38)}))

    finding = seen.one("nic-port-state", "mlx5_1")
    assert finding.status == "FAIL"
    assert "no link partner" in finding.observed
    assert seen.status("nic-port-state", "mlx5_0") == "PASS"


def test_f38_the_old_spelling_of_a_port_means_the_same(bench):
    old = [{**row, "ifname": f"{row['ifname']}/1"} for row in F38]
    for row in old:
        del row["port"]

    seen = bench.judge(bench.doc(cmds={"rdma -j -d link": json.dumps(old)}))

    assert seen.statuses("nic-port-state") == {"mlx5_0": "PASS", "mlx5_1": "FAIL"}


def test_f38b_no_rdma_core_in_the_kernel_is_a_failed_count(bench):
    entry = (1, "", "Failed to open NETLINK_RDMA socket\n")

    seen = bench.judge(bench.doc(cmds={"rdma -j link": entry}))

    assert seen.status("nic-count") == "FAIL"
    assert seen.one("nic-count").severity == "critical"


def test_a_node_of_which_nothing_is_known_is_unknown_everywhere(bench):
    seen = bench.judge(bench.doc())

    statuses = {f.status.value for f in seen.report.findings if f.id[:4] != "meta"}
    assert statuses <= {"UNKNOWN", "SKIP"}
    assert seen.report.exit_code() == 3


def test_f37_r84_nvsentinel_1361_an_unused_port_is_info_not_fatal(bench):
    files = {
        **sysfs("mlx5_0"),
        **sysfs("mlx5_1", bdf="0000:2a:00.0", state="1: DOWN", phys="3: Disabled"),
    }

    finding = bench.judge(bench.doc(files=files)).one("nic-port-state", "mlx5_1")

    assert (finding.status, finding.severity) == ("SKIP", "info")


def test_f37_the_same_port_fails_when_mooncake_was_told_to_use_it(bench):
    files = {
        **sysfs("mlx5_0"),
        **sysfs("mlx5_1", bdf="0000:2a:00.0", state="1: DOWN", phys="3: Disabled"),
        **bench.env(MC_MS_FILTERS="mlx5_0,mlx5_1"),
    }

    finding = bench.judge(bench.doc(files=files)).one("nic-port-state", "mlx5_1")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_f36_r36_one_infiniband_port_among_roce_nodes_fails_and_blocks_its_state(bench):
    nodes = [
        bench.doc(name, files=sysfs("mlx5_9"))
        for name in ("node-b", "node-c", "node-d")
    ]
    odd = sysfs("mlx5_9", layer="InfiniBand", state="1: DOWN", phys="2: Polling")

    seen = bench.judge(bench.doc(files=odd), *nodes)

    assert seen.status("nic-link-type", node="node-a") == "FAIL"
    blocked = seen.one("nic-port-state", node="node-a")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("nic-link-type",))
    assert seen.status("nic-link-type", node="node-b") == "PASS"


def ibstat(device, *, layer="Ethernet", state="Active", phys="LinkUp"):
    return (
        f"CA '{device}'\n\tCA type: MT4129\n\tNumber of ports: 1\n"
        "\tFirmware version: 28.43.2566\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {phys}\n\t\tRate: 40\n"
        f"\t\tPort GUID: 0x0\n\t\tLink layer: {layer}\n"
    )


ODD = ibstat("mlx5_9", layer="InfiniBand", state="Down", phys="Polling")


@pytest.mark.parametrize("line", ["ibstat", "ibstat mlx5_9", "sudo -n ibstat"])
def test_f36_r36_ibstat_alone_fails_a_roce_profile(bench, line):
    roce = {"nic": {"link_layer": "Ethernet"}}

    seen = bench.judge(bench.doc(cmds={line: ODD}), profile=roce)

    finding = seen.one("nic-link-type", "mlx5_9")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert (finding.observed, finding.source) == ("InfiniBand", (line,))
    blocked = seen.one("nic-port-state", "mlx5_9")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("nic-link-type",))


def test_f36_the_excerpt_of_the_catalogue_tells_the_state_of_the_port(bench):
    text = "CA 'mlx5_9'\nState: Down\nPhysical state: Polling\nLink layer: InfiniBand"

    seen = bench.judge(bench.doc(cmds={"ibstat": text}))

    finding = seen.one("nic-port-state", "mlx5_9")
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert "no link partner" in finding.observed


def test_f36_r36_ibstat_of_nodes_whose_peers_are_ethernet(bench):
    whole = ibstat("mlx5_0") + ibstat("mlx5_9")
    nodes = [bench.doc(f"node-{n}", cmds={"ibstat": whole}) for n in "bcd"]
    odd = bench.doc(cmds={"ibstat": ibstat("mlx5_0") + ODD})

    seen = bench.judge(odd, *nodes)

    told = seen.statuses("nic-link-type", node="node-a")
    assert told == {"mlx5_0": "PASS", "mlx5_9": "FAIL"}
    assert seen.statuses("nic-port-state", node="node-a")["mlx5_0"] == "PASS"
    assert set(seen.statuses("nic-link-type", node="node-b").values()) == {"PASS"}
    assert seen.status("nic-fw-consistent", "mlx5_0", "node-b") == "PASS"


def test_f36_an_ibstat_that_is_cut_tells_nothing(bench):
    cut = ODD[: ODD.index("\t\tPort GUID")]

    seen = bench.judge(bench.doc(cmds={"ibstat": cut}))

    assert seen.status("nic-port-state") == "UNKNOWN"
    assert seen.status("nic-link-type") == "UNKNOWN"


def test_the_one_node_with_other_firmware_is_named_with_what_its_peers_run(bench):
    nodes = [bench.doc(f"node-{n}", files=sysfs("mlx5_0")) for n in "abc"]
    old = bench.doc("node-d", files=sysfs("mlx5_0", fw="28.39.1002"))

    seen = bench.judge(*nodes, old)

    finding = seen.one("nic-fw-consistent", node="node-d")
    assert finding.status == "FAIL"
    assert finding.expected == "28.43.2566 (3 of 4)"
    assert finding.peers == "28.43.2566 x3, 28.39.1002 x1"
    assert seen.status("nic-fw-consistent", node="node-a") == "PASS"


def test_two_nodes_that_differ_disagree_and_neither_is_blamed(bench):
    one = bench.doc("node-a", files=sysfs("mlx5_0"))
    two = bench.doc("node-b", files=sysfs("mlx5_0", fw="28.39.1002"))

    seen = bench.judge(one, two)

    assert seen.by_node("nic-fw-consistent") == {"node-a": "WARN", "node-b": "WARN"}


def test_boards_of_another_kind_are_another_cohort_and_not_outliers(bench):
    like = [bench.doc(f"node-{n}", files=sysfs("mlx5_0")) for n in "abc"]
    other = bench.doc("node-d", files=sysfs("mlx5_0", psid="MT_9", fw="40.1"))

    seen = bench.judge(*like, other)

    assert seen.status("nic-fw-consistent", node="node-d") == "SKIP"


def test_firmware_is_compared_also_where_no_node_tells_its_board(bench):
    def files(fw):
        return {
            path: text
            for path, text in sysfs("mlx5_0", fw=fw).items()
            if not path.endswith("board_id")
        }

    nodes = [bench.doc(f"node-{n}", files=files("28.43.2566")) for n in "abc"]

    seen = bench.judge(*nodes, bench.doc("node-d", files=files("28.39.1002")))

    assert seen.status("nic-fw-consistent", node="node-d") == "FAIL"


def test_the_profile_wins_over_the_peers(bench):
    nodes = [bench.doc(f"node-{n}", files=sysfs("mlx5_0")) for n in "abc"]
    profile = {"nic": {"firmware": {PSID: ["28.39.1002"]}}}

    seen = bench.judge(*nodes, profile=profile)

    assert set(seen.by_node("nic-fw-consistent").values()) == {"FAIL"}


def test_r40_nccl_1277_another_device_name_on_the_same_rail_is_named(bench):
    nodes = [bench.doc(f"node-{n}", files=sysfs("mlx5_0")) for n in "abc"]
    renamed = bench.doc("node-d", files=sysfs("mlx5_3"))

    seen = bench.judge(*nodes, renamed)

    assert seen.status("nic-naming", node="node-d") == "FAIL"
    assert seen.status("nic-naming", node="node-a") == "PASS"


ALL_NAMES = "names of all devices"


def only_named(*devices):
    """What `rdma link` tells: names and states, and no PCI address."""
    rows = [{**F38[0], "ifname": name, "netdev": f"n{name}"} for name in devices]
    return {"rdma -j link": json.dumps(rows)}


def test_r40_nccl_1277_names_of_another_pattern_disagree_without_pci_addresses(bench):
    one = bench.doc("node-a", cmds=only_named("mlx5_0", "mlx5_3", "mlx5_5", "mlx5_8"))
    two = bench.doc("node-b", cmds=only_named("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"))

    seen = bench.judge(one, two)

    for node in ("node-a", "node-b"):
        assert seen.status("nic-naming", ALL_NAMES, node) == "WARN"
    observed = seen.one("nic-naming", ALL_NAMES, "node-a").observed
    assert observed == "mlx5_0, mlx5_3, mlx5_5, mlx5_8"


def test_r40_the_one_node_of_another_pattern_fails_without_pci_addresses(bench):
    nodes = [bench.doc(f"node-{n}", cmds=only_named("mlx5_0", "mlx5_1")) for n in "abc"]
    odd = bench.doc("node-d", cmds=only_named("mlx5_0", "mlx5_3"))

    seen = bench.judge(*nodes, odd)

    finding = seen.one("nic-naming", ALL_NAMES, "node-d")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert seen.status("nic-naming", ALL_NAMES, "node-a") == "PASS"


def test_r40_the_same_names_do_not_tell_that_they_are_the_same_slots(bench):
    nodes = [bench.doc(f"node-{n}", cmds=only_named("mlx5_0", "mlx5_1")) for n in "abc"]

    seen = bench.judge(*nodes)

    told = seen.statuses("nic-naming", "node-a")
    assert told == {"rail0": "UNKNOWN", "rail1": "UNKNOWN", ALL_NAMES: "PASS"}


def test_r40_a_node_with_fewer_devices_is_a_matter_of_the_count(bench):
    nodes = [bench.doc(f"node-{n}", cmds=only_named("mlx5_0", "mlx5_1")) for n in "abc"]
    short = bench.doc("node-d", cmds=only_named("mlx5_1"))

    seen = bench.judge(*nodes, short)

    assert seen.status("nic-naming", ALL_NAMES, "node-d") == "SKIP"
    assert seen.status("nic-count", node="node-d") == "FAIL"


def test_a_named_device_that_is_not_there_fails_the_count(bench):
    seen = bench.judge(bench.doc(files=sysfs("mlx5_0")), nics=("mlx5_0", "mlx5_7"))

    assert seen.status("nic-count") == "FAIL"
    assert "mlx5_7" in seen.one("nic-count").observed


def test_a_selection_that_leaves_no_port_fails(bench):
    files = sysfs("mlx5_0", state="1: DOWN", phys="3: Disabled")

    assert bench.judge(bench.doc(files=files)).status("nic-count") == "FAIL"
