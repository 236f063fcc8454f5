"""NIC links, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

PSID = "MT_0000000838"
F13C = [
    {
        "ifindex": 4,
        "ifname": "ens1f0",
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": 4200,
        "operstate": "UP",
        "link_type": "ether",
        "address": "02:00:5e:10:00:01",
        "addr_info": [
            {
                "family": "inet",
                "local": "192.168.1.1",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
    },
    {
        "ifindex": 5,
        "ifname": "ens1f1",
        "flags": ["BROADCAST", "MULTICAST", "UP"],
        "mtu": 4200,
        "operstate": "DOWN",
        "link_type": "ether",
        "address": "02:00:5e:10:00:02",
        "addr_info": [
            {
                "family": "inet",
                "local": "192.168.1.2",
                "prefixlen": 24,
                "scope": "global",
            }
        ],
    },
]


def device(name="mlx5_0", *, bdf="0000:1a:00.0", netdev="ens1f0np0", **more):
    """Sysfs of one RDMA device; `more` are leaves below it or below its port."""
    base = f"/sys/class/infiniband/{name}"
    found = {
        f"{base}/device": {"link": f"../../../{bdf}"},
        f"{base}/board_id": f"{PSID}\n",
        f"{base}/ports/1/state": "4: ACTIVE\n",
        f"{base}/ports/1/phys_state": "5: LinkUp\n",
        f"{base}/ports/1/link_layer": "Ethernet\n",
        f"{base}/ports/1/gid_attrs/ndevs/0": f"{netdev}\n",
    }
    return found | {f"{base}/{leaf}": text for leaf, text in more.items()}


def test_f13c_a_rail_without_carrier_fails_as_such(bench):
    seen = bench.judge(bench.doc(cmds={"ip -j -d addr": json.dumps(F13C)}))

    assert seen.statuses("nic-netdev-oper") == {"ens1f0": "PASS", "ens1f1": "FAIL"}
    assert seen.one("nic-netdev-oper", "ens1f1").severity == "critical"


def test_an_active_rdma_port_whose_netdev_is_down_fails(bench):
    files = device() | {"/sys/class/net/ens1f0np0/operstate": "down\n"}

    finding = bench.judge(bench.doc(files=files)).one("nic-netdev-oper")

    assert finding.status == "FAIL"
    assert finding.observed == "RDMA port ACTIVE, ens1f0np0 is down (operstate)"


def test_a_port_that_is_down_explains_its_netdev(bench):
    files = device(**{"ports/1/state": "1: DOWN\n", "ports/1/phys_state": "2: Polling"})
    files["/sys/class/net/ens1f0np0/operstate"] = "up\n"

    finding = bench.judge(bench.doc(files=files)).one("nic-netdev-oper")

    assert (finding.status, finding.blocked_by) == ("SKIP", ("nic-port-state",))


def test_a_netdev_that_no_source_tells_of_is_unknown(bench):
    assert bench.judge(bench.doc(files=device())).status("nic-netdev-oper") == "UNKNOWN"


def test_links_that_are_cut_off_leave_the_netdev_unknown_although_sysfs_says_up(bench):
    files = device() | {"/sys/class/net/ens1f0np0/operstate": "up\n"}
    cmds = {"ip -j -d addr": json.dumps(F13C)[:200]}

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("nic-netdev-oper") == "UNKNOWN"


BOND = {
    "ports/1/rate": "400 Gb/sec (4X NDR)\n",
}


def bonded(speed="800000\n"):
    found = device("mlx5_bond_0", netdev="bond0", **BOND)
    return found | {"/sys/class/net/bond0/speed": speed}


def test_f39_r46_the_speed_of_a_bond_counts_and_not_the_rate_of_one_leg(bench):
    profile = {"nic": {"min_rate_gbps": 800}}

    seen = bench.judge(bench.doc(files=bonded()), profile=profile)

    assert seen.status("nic-rate", "mlx5_bond_0") == "PASS"


def test_f39_the_profile_may_say_it_as_any_compared_check(bench):
    profile = {"expect": {"nic-rate": [">=800"]}}

    assert (
        bench.judge(bench.doc(files=bonded()), profile=profile).status("nic-rate")
        == "PASS"
    )


def test_r46_a_bond_that_lost_a_leg_fails_although_its_rdma_rate_is_as_before(bench):
    profile = {"nic": {"min_rate_gbps": 800}}

    seen = bench.judge(bench.doc(files=bonded("400000\n")), profile=profile)

    assert seen.status("nic-rate") == "FAIL"
    assert seen.one("nic-rate").observed == "400 Gb/s"


def test_a_bond_that_tells_no_speed_is_unknown(bench):
    files = device("mlx5_bond_0", netdev="bond0", **BOND)

    assert bench.judge(bench.doc(files=files)).status("nic-rate") == "UNKNOWN"


def test_one_slow_rail_among_its_peers_is_named(bench):
    def rated(name, rate):
        return bench.doc(name, files=device(**{"ports/1/rate": rate}))

    fast = [rated(f"node-{n}", "400 Gb/sec (4X NDR)\n") for n in "abc"]

    seen = bench.judge(*fast, rated("node-d", "100 Gb/sec (2X HDR)\n"))

    finding = seen.one("nic-rate", node="node-d")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert (finding.observed, finding.expected) == ("100", "400 (3 of 4)")


def test_a_rate_without_its_end_is_unknown_and_never_another_rate(bench):
    files = device(**{"ports/1/rate": "400 Gb/sec (4X"})

    assert bench.judge(bench.doc(files=files)).status("nic-rate") == "UNKNOWN"


@pytest.mark.parametrize(("count", "verdict"), [("2", "WARN"), ("1", "PASS")])
def test_r40_no_numa_node_is_bad_only_where_there_are_several(bench, count, verdict):
    nodes = tuple(f"node{n}" for n in range(int(count)))
    files = device(**{"device/numa_node": "-1\n"})
    files["/sys/devices/system/node"] = (*nodes, "possible")

    assert bench.judge(bench.doc(files=files)).status("nic-numa") == verdict


def test_a_virtual_machine_tells_no_numa_node_and_is_not_blamed(bench):
    files = device(**{"device/numa_node": "-1\n"})

    seen = bench.judge(bench.doc(files=files, virt="kvm"))

    assert seen.status("nic-numa") == "SKIP"


def test_r40_mooncake_2790_a_nic_on_another_numa_node_than_its_peers_warns(bench):
    def on(name, numa):
        return bench.doc(name, files=device(**{"device/numa_node": f"{numa}\n"}))

    seen = bench.judge(*[on(f"node-{n}", 0) for n in "abc"], on("node-d", 1))

    assert seen.status("nic-numa", node="node-d") == "WARN"
    assert seen.status("nic-numa", node="node-a") == "PASS"


def test_a_numa_node_that_is_no_number_is_unknown(bench):
    files = device(**{"device/numa_node": "?\n"})

    assert bench.judge(bench.doc(files=files)).status("nic-numa") == "UNKNOWN"


def test_r61_a_virtual_function_without_a_guid_fails(bench):
    vf = device("mlx5_4", bdf="0000:1a:00.2", netdev="ens1f0v0")
    vf["/sys/class/infiniband/mlx5_4/device/physfn"] = {"link": "../0000:1a:00.0"}
    vf["/sys/class/infiniband/mlx5_4/node_guid"] = "0000:0000:0000:0000\n"
    files = device(**{"device/sriov_numvfs": "1\n"}) | vf

    seen = bench.judge(bench.doc(files=files))

    finding = seen.one("nic-vf-config", "mlx5_4")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert seen.status("nic-vf-config", "mlx5_0") == "SKIP"


def test_r61_fewer_virtual_functions_than_the_profile_wants_fail(bench):
    files = device(**{"device/sriov_numvfs": "0\n"})

    seen = bench.judge(bench.doc(files=files), profile={"nic": {"vfs": 8}})

    assert seen.status("nic-vf-config") == "FAIL"
    assert seen.one("nic-vf-config").expected == "8 VFs (profile)"


def test_a_nic_without_sriov_is_not_asked_for_virtual_functions(bench):
    files = device(**{"device/sriov_numvfs": {"errno": "ENOENT"}})

    assert bench.judge(bench.doc(files=files)).status("nic-vf-config") == "SKIP"


def test_settings_of_virtual_functions_are_compared_between_nodes(bench):
    def with_vfs(name, trust):
        vf = {"vf": 0, "link_state": "auto", "trust": trust, "spoofchk": True}
        row = {**F13C[0], "ifname": "ens1f0np0", "vfinfo_list": [vf]}
        return bench.doc(
            name,
            cmds={"ip -j -d addr": json.dumps([row])},
            files=device(**{"device/sriov_numvfs": "1\n"}),
        )

    nodes = [with_vfs(f"node-{n}", True) for n in "abc"]

    seen = bench.judge(*nodes, with_vfs("node-d", False))

    assert seen.status("nic-vf-config", node="node-d") == "FAIL"
    assert "trust false" in seen.one("nic-vf-config", node="node-d").observed


def statistics(crc, symbols=3):
    return (
        "NIC statistics:\n"
        f"     rx_symbol_err_phy: {symbols}\n     rx_crc_errors_phy: {crc}\n"
    )


def test_errors_that_grow_between_two_samples_warn_and_totals_do_not(bench):
    def sampled(name, before, after):
        line = "ethtool -S ens1f0np0"
        samples = [(1.0, statistics(before)), (3.0, statistics(after))]
        return bench.doc(name, cmds={line: samples}, files=device())

    seen = bench.judge(sampled("node-a", 0, 4), sampled("node-b", 90, 90))

    assert seen.by_node("nic-symbol-err") == {"node-a": "WARN", "node-b": "PASS"}


def test_one_sample_tells_no_change(bench):
    cmds = {"ethtool -S ens1f0np0": statistics(0)}

    seen = bench.judge(bench.doc(cmds=cmds, files=device()))

    assert seen.status("nic-symbol-err") == "UNKNOWN"


def test_a_driver_without_fec_is_no_question(bench):
    entry = (75, "", "netlink error: Operation not supported\n")
    cmds = {"ethtool --show-fec ens1f0np0": entry}

    assert bench.judge(bench.doc(cmds=cmds, files=device())).status("nic-fec") == "SKIP"


def bonded_links(*legs, up=True):
    """`ip addr` of bond0 over these legs; the last leg may be down."""

    def row(name, **more):
        return {**F13C[0], "ifname": name, "addr_info": [], **more}

    rows = [row(name, master="bond0") for name in legs]
    if not up:
        rows[-1] |= {"flags": ["UP"], "operstate": "DOWN"}
    return json.dumps([*rows, row("bond0", linkinfo={"info_kind": "bond"})])


def test_r46_two_rdma_devices_below_a_bond_are_no_roce_lag(bench):
    files = device(netdev="ens1f0np0")
    files |= device("mlx5_1", bdf="0000:1a:00.1", netdev="ens1f1np1")
    cmds = {"ip -j -d addr": bonded_links("ens1f0np0", "ens1f1np1")}

    finding = bench.judge(bench.doc(cmds=cmds, files=files)).one("nic-eswitch-lag")

    assert (finding.status, finding.subject) == ("WARN", "bond0")
    assert "mlx5_1 on ens1f1np1" in finding.observed


@pytest.mark.parametrize(("up", "verdict"), [(True, "PASS"), (False, "WARN")])
def test_r46_one_rdma_device_over_a_bond_is_whole_only_with_both_legs(
    bench, up, verdict
):
    cmds = {"ip -j -d addr": bonded_links("ens1f0np0", "ens1f1np1", up=up)}
    files = device("mlx5_bond_0", netdev="bond0")

    seen = bench.judge(bench.doc(cmds=cmds, files=files))

    assert seen.status("nic-eswitch-lag", "bond0") == verdict


def test_a_bond_of_other_nics_is_no_question(bench):
    cmds = {"ip -j -d addr": bonded_links("eno1", "eno2", up=False)}

    seen = bench.judge(bench.doc(cmds=cmds, files=device()))

    assert seen.status("nic-eswitch-lag") == "PASS"
    assert seen.one("nic-eswitch-lag").observed == "no RDMA NIC is in a bond"


def test_links_that_nobody_read_leave_the_bond_unknown(bench):
    assert bench.judge(bench.doc(files=device())).status("nic-eswitch-lag") == "UNKNOWN"
