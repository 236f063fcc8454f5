"""GID rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

IB = "/sys/class/infiniband"
F43 = """\
0 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb IB/RoCE v1 bond0
1 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb RoCE v2 bond0
2 0000:0000:0000:0000:0000:ffff:c633:6406 IB/RoCE v1 bond0
3 0000:0000:0000:0000:0000:ffff:c633:6406 RoCE v2 bond0
"""
F43B = """\
0 fe80:0000:0000:0000:5054:00ff:fe01:0001 RoCE v2 eth1
1 0000:0000:0000:0000:0000:ffff:c0a8:6501 RoCE v2 eth1
"""
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tlink_layer:\t\tEthernet
\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0ac0:ebff:feda:1cfb, RoCE v1
\t\t\tGID[  1]:\t\tfe80::ac0:ebff:feda:1cfb, RoCE v2
\t\t\tGID[  2]:\t\t0000:0000:0000:0000:0000:ffff:c633:6406, RoCE v1
\t\t\tGID[  3]:\t\t::ffff:198.51.100.6, RoCE v2
"""


def gids(rows, device="mlx5_0", empty=()):
    """The sysfs files of a GID table, from `index gid type netdev` lines."""
    base = f"{IB}/{device}/ports/1"
    found = {
        f"{base}/state": "4: ACTIVE\n",
        f"{base}/phys_state": "5: LinkUp\n",
        f"{base}/link_layer": "Ethernet\n",
    }
    for row in rows.splitlines():
        index, gid, rest = row.split(" ", 2)
        kind, _, netdev = rest.rpartition(" ")
        found[f"{base}/gids/{index}"] = f"{gid}\n"
        found[f"{base}/gid_attrs/types/{index}"] = f"{kind}\n"
        found[f"{base}/gid_attrs/ndevs/{index}"] = (
            {"errno": "EINVAL"} if netdev == "-" else f"{netdev}\n"
        )
    for index in empty:
        found[f"{base}/gids/{index}"] = f"{ZERO}\n"
        found[f"{base}/gid_attrs/types/{index}"] = {"errno": "EINVAL"}
    return found


def addr(netdev, *addresses, **more):
    rows = [
        {
            "family": "inet6" if ":" in text else "inet",
            "local": text.split("/")[0],
            "prefixlen": int(text.split("/")[1]),
            "scope": "link" if text.startswith("fe80") else "global",
            **more,
        }
        for text in addresses
    ]
    link = {
        "ifname": netdev,
        "flags": ["UP", "LOWER_UP"],
        "operstate": "UP",
        "link_type": "ether",
        "mtu": 4200,
        "addr_info": rows,
    }
    return {"ip -j -d addr": json.dumps([link])}


def version(text):
    return {"mooncake_master --version": f"mooncake_master {text}\n"}


@pytest.mark.parametrize(
    ("pin", "status", "word"),
    [
        ("3", "PASS", "198.51.100.6"),
        ("1", "FAIL", "link-local"),
        ("2", "FAIL", "v1"),
        ("5", "FAIL", "empty"),
        ("", "FAIL", "read as 0"),
        ("three", "FAIL", "read as 0"),
    ],
)
def test_f43_r13_libfabric_12673_a_pinned_index_is_judged_by_what_it_holds(
    bench, pin, status, word
):
    files = gids(F43) | bench.env(MC_GID_INDEX=pin)
    files[f"{IB}/mlx5_0/ports/1/gid_attrs/types/5"] = {"errno": "EINVAL"}

    finding = bench.judge(bench.doc(files=files)).one("roce-gid-pinned", "mlx5_0")

    assert (finding.status, finding.severity) == (status, "critical")
    assert word in finding.observed


def test_f43_a_slot_nobody_wrote_down_is_empty_where_the_table_was_read(bench):
    doc = bench.doc(files=gids(F43) | bench.env(MC_GID_INDEX="5"))

    assert bench.judge(doc).status("roce-gid-pinned") == "FAIL"


def test_f43_a_listed_slot_that_was_not_read_is_unknown(bench):
    files = gids(F43) | bench.env(MC_GID_INDEX="5")
    files[f"{IB}/mlx5_0/ports/1/gids"] = tuple(str(n) for n in range(256))

    assert bench.judge(bench.doc(files=files)).status("roce-gid-pinned") == "UNKNOWN"


@pytest.mark.parametrize("more", [{}, {"MC_MTU": "4096"}])
def test_f43_unset_passes_and_index_3_is_foretold(bench, more):
    files = gids(F43) | (bench.env(**more) if more else {})

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("roce-gid-pinned") == "PASS"
    choice = seen.one("roce-gid-mooncake-choice", "mlx5_0")
    assert choice.status == "PASS"
    assert "[3] 198.51.100.6" in choice.observed


@pytest.mark.parametrize("pin", ["0", "1", "2", "5"])
def test_f43_a_bad_pin_blocks_what_rests_on_it(bench, pin):
    seen = bench.judge(bench.doc(files=gids(F43) | bench.env(MC_GID_INDEX=pin)))

    blocked = seen.one("roce-gid-mooncake-choice")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("roce-gid-pinned",))


@pytest.mark.parametrize(
    ("pin", "status"), [("3", "PASS"), ("1", "FAIL"), ("2", "FAIL"), ("5", "FAIL")]
)
def test_f43_the_text_of_ibv_devinfo_means_the_same(bench, pin, status):
    doc = bench.doc(cmds={"ibv_devinfo -v": DEVINFO}, files=bench.env(MC_GID_INDEX=pin))

    seen = bench.judge(doc)

    assert seen.status("roce-gid-pinned", "mlx5_0") == status
    assert seen.status("roce-gid-table", "mlx5_0") == "PASS"


def test_f43_unset_is_foretold_from_ibv_devinfo_too(bench):
    seen = bench.judge(bench.doc(cmds={"ibv_devinfo -v": DEVINFO.rstrip()}))

    assert "[3]" in seen.one("roce-gid-mooncake-choice").observed
    assert seen.status("roce-gid-mooncake-choice") == "PASS"


def test_old_rdma_core_tells_no_types_so_nothing_is_concluded(bench):
    text = DEVINFO.replace(", RoCE v1", "").replace(", RoCE v2", "")
    doc = bench.doc(cmds={"ibv_devinfo -v": text}, files=bench.env(MC_GID_INDEX="3"))

    seen = bench.judge(doc)

    assert seen.status("roce-gid-v2") == "UNKNOWN"
    assert seen.status("roce-gid-pinned") == "UNKNOWN"


@pytest.mark.parametrize(("pin", "status"), [("3", "FAIL"), ("1", "PASS")])
def test_f43b_r13_on_soft_roce_and_irdma_index_1_is_the_address(bench, pin, status):
    files = gids(F43B, "rxe1", empty=(2, 3)) | bench.env(MC_GID_INDEX=pin)

    assert bench.judge(bench.doc(files=files)).status("roce-gid-pinned") == status


def test_f43b_unset_passes_by_every_version(bench):
    doc = bench.doc(files=gids(F43B, "rxe1", empty=(2, 3)))

    assert bench.judge(doc).status("roce-gid-mooncake-choice") == "PASS"


F46 = """\
2 ::ffff:10.1.2.3 RoCE v2 ens1
5 2001:db8::5 RoCE v2 ens1
"""


def test_f46_a_slaac_address_outranks_the_private_ipv4_of_the_rail(bench):
    cmds = addr("ens1", "10.1.2.3/24", "2001:db8::5/64")

    finding = bench.judge(bench.doc(cmds=cmds, files=gids(F46))).one(
        "roce-gid-mooncake-choice", "mlx5_0"
    )

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert "[5] 2001:db8::5" in finding.observed
    assert "10.1.2.3" in finding.expected


def test_f46_the_table_alone_tells_as_much(bench):
    seen = bench.judge(bench.doc(files=gids(F46)))

    assert seen.status("roce-gid-mooncake-choice") == "FAIL"


def test_f46_the_profile_may_name_the_address_of_the_rail(bench):
    profile = {
        "rails": [{"name": "rail0", "device": "mlx5_0", "address": "2001:db8::5"}]
    }

    seen = bench.judge(bench.doc(files=gids(F46)), profile=profile)

    assert seen.status("roce-gid-mooncake-choice") != "FAIL"


def test_f46_a_gid_of_docker_is_never_preferred(bench):
    rows = "1 ::ffff:172.17.0.1 RoCE v2 docker0\n3 ::ffff:10.1.2.3 RoCE v2 ens1\n"
    cmds = version("0.3.12") | addr("ens1", "10.1.2.3/24")
    files = gids(rows) | bench.env(MC_MTU="4096")

    finding = bench.judge(bench.doc(cmds=cmds, files=files)).one(
        "roce-gid-mooncake-choice"
    )

    assert (finding.status, "[3]" in finding.observed) == ("PASS", True)


def test_f46_a_gid_without_netdev_outranks_a_private_one_with_it(bench):
    rows = "1 ::ffff:192.168.9.9 RoCE v2 -\n3 ::ffff:10.1.2.3 RoCE v2 ens1\n"

    finding = bench.judge(bench.doc(files=gids(rows))).one("roce-gid-mooncake-choice")

    assert (finding.status, "192.168.9.9" in finding.observed) == ("FAIL", True)


R01 = """\
0 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb IB/RoCE v1 bond0
1 fe80:0000:0000:0000:0ac0:ebff:feda:1cfb RoCE v2 bond0
2 2001:0db8:0000:0000:0000:0000:0000:0005 IB/RoCE v1 bond0
3 2001:0db8:0000:0000:0000:0000:0000:0005 RoCE v2 bond0
"""


@pytest.mark.parametrize(
    ("installed", "status"),
    [
        ("0.3.7.post2", "FAIL"),
        ("0.3.8.post1", "FAIL"),
        ("0.3.9", "FAIL"),
        ("0.3.12", "PASS"),
    ],
)
def test_r01_mooncake_1593_only_ipv6_is_chosen_since_pr_1597(bench, installed, status):
    cmds = version(installed) | addr("bond0", "2001:db8::5/64")

    seen = bench.judge(bench.doc(cmds=cmds, files=gids(R01)))

    assert seen.status("roce-gid-mooncake-choice") == status


def test_r01_the_first_ipv6_of_0_3_10_is_the_link_local_one(bench):
    cmds = version("0.3.10") | addr("bond0", "2001:db8::5/64")

    finding = bench.judge(bench.doc(cmds=cmds, files=gids(R01))).one(
        "roce-gid-mooncake-choice"
    )

    assert (finding.status, "[1]" in finding.observed) == ("FAIL", True)


def test_r01_after_pr_1597_a_lone_global_ipv6_is_the_choice(bench):
    rows = "".join(row + "\n" for row in R01.splitlines()[2:])
    cmds = version("0.3.10.post1") | addr("bond0", "2001:db8::5/64")

    seen = bench.judge(bench.doc(cmds=cmds, files=gids(rows)))

    assert seen.status("roce-gid-mooncake-choice") == "PASS"


def test_r01_an_unknown_version_is_no_pass_where_versions_differ(bench):
    cmds = addr("bond0", "2001:db8::5/64")

    seen = bench.judge(bench.doc(cmds=cmds, files=gids(R01)))

    assert seen.status("roce-gid-mooncake-choice") == "UNKNOWN"


def test_the_metadata_of_the_wheel_tells_the_version(bench):
    path = (
        "/usr/lib/python3.11/site-packages/"
        "mooncake_transfer_engine-0.3.9.dist-info/METADATA"
    )
    files = gids(R01) | {path: "Metadata-Version: 2.1\nVersion: 0.3.9\n"}
    doc = bench.doc(cmds=addr("bond0", "2001:db8::5/64"), files=files)

    assert bench.judge(doc).status("roce-gid-mooncake-choice") == "FAIL"


def test_r02_sglang_30737_a_null_gid_is_chosen_by_old_versions(bench):
    rows = "1 2001:db8::5 RoCE v2 bond0\n"
    cmds = version("0.3.6") | addr("bond0", "2001:db8::5/64")

    finding = bench.judge(bench.doc(cmds=cmds, files=gids(rows, empty=(0,)))).one(
        "roce-gid-mooncake-choice"
    )

    assert (finding.status, "NULL" in finding.observed) == ("FAIL", True)


def test_r05_network_operator_222_all_gids_zero_fails_and_blocks_the_rest(bench):
    doc = bench.doc(files=gids("", empty=range(16)) | bench.env(MC_GID_INDEX="3"))

    seen = bench.judge(doc)

    table = seen.one("roce-gid-table", "mlx5_0")
    assert (table.status, table.severity) == ("FAIL", "critical")
    for check in ("v2", "routable", "pinned", "mooncake-choice"):
        finding = seen.one(f"roce-gid-{check}")
        assert (finding.status, finding.blocked_by) == ("SKIP", ("roce-gid-table",))


def test_r05_show_gids_that_finds_none_is_a_failure_of_every_port(bench):
    text = "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\nn_gids_found=0\n"
    rows = [
        {"ifname": f"mlx5_{n}", "port": 1, "state": "ACTIVE"}
        | {"physical_state": "LINK_UP"}
        for n in range(2)
    ]
    doc = bench.doc(cmds={"show_gids": text, "rdma -j link": json.dumps(rows)})

    assert bench.judge(doc).statuses("roce-gid-table") == {
        "mlx5_0": "FAIL",
        "mlx5_1": "FAIL",
    }


def test_show_gids_without_its_last_line_is_unknown(bench):
    text = "DEV\tPORT\tINDEX\tGID\n---\nmlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff"
    rows = [{"ifname": "mlx5_0", "state": "ACTIVE", "physical_state": "LINK_UP"}]
    doc = bench.doc(cmds={"show_gids": text, "rdma -j link": json.dumps(rows)})

    assert bench.judge(doc).status("roce-gid-table") == "UNKNOWN"


def test_a_table_of_v1_entries_only_has_no_v2(bench):
    rows = "".join(row + "\n" for row in F43.splitlines() if "v2" not in row)

    finding = bench.judge(bench.doc(files=gids(rows))).one("roce-gid-v2")

    assert (finding.status, finding.severity) == ("FAIL", "critical")


def test_r10_nccl_769_a_link_local_gid_is_not_routable(bench):
    rows = "".join(row + "\n" for row in F43.splitlines()[:2])

    finding = bench.judge(bench.doc(files=gids(rows))).one("roce-gid-routable")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert bench.judge(bench.doc(files=gids(F43))).status("roce-gid-routable") == "PASS"


def test_r10_across_subnets_it_is_critical(bench):
    rows = "".join(row + "\n" for row in F43.splitlines()[:2])

    finding = bench.judge(
        bench.doc(files=gids(rows)), profile={"routes": {"cross_rail": True}}
    ).one("roce-gid-routable")

    assert finding.severity == "critical"


def test_an_overlay_or_a_deprecated_address_is_not_routable_either(bench):
    overlay = bench.doc(files=gids("1 ::ffff:10.244.0.1 RoCE v2 flannel.1\n"))
    old = bench.doc(
        cmds=addr("ens1", "2001:db8::5/64", deprecated=True),
        files=gids("1 2001:db8::5 RoCE v2 ens1\n"),
    )

    assert bench.judge(overlay).status("roce-gid-routable") == "FAIL"
    assert bench.judge(old).status("roce-gid-routable") == "FAIL"


def test_r06_nccl_718_one_index_for_all_fails_where_the_table_is_shifted(bench):
    shifted = F43.replace("\n2 ", "\n6 ").replace("\n3 ", "\n5 ")
    docs = [
        bench.doc(f"pod-{n}", files=gids(shifted) | bench.env(NCCL_IB_GID_INDEX="5"))
        for n in "abc"
    ]
    moved = F43.replace("\n2 ", "\n6 ").replace("\n3 ", "\n7 ")
    odd = bench.doc("pod-d", files=gids(moved) | bench.env(NCCL_IB_GID_INDEX="5"))

    seen = bench.judge(*docs, odd)

    assert seen.by_node("roce-gid-pinned") == {
        "pod-a": "PASS",
        "pod-b": "PASS",
        "pod-c": "PASS",
        "pod-d": "FAIL",
    }
    finding = seen.one("roce-gid-index-uniform", node="pod-d")
    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert finding.blocked_by == ("roce-gid-pinned",)


def test_r06_without_a_pinned_index_tables_may_differ(bench):
    moved = F43.replace("\n2 ", "\n6 ").replace("\n3 ", "\n7 ")
    docs = [bench.doc(f"pod-{n}", files=gids(F43)) for n in "abc"]

    seen = bench.judge(*docs, bench.doc("pod-d", files=gids(moved)))

    assert set(seen.by_node("roce-gid-index-uniform").values()) == {"SKIP"}


def test_r08_nccl_2157_an_index_that_drifted_since_the_baseline_warns(bench):
    moved = F43.replace("\n2 ", "\n4 ").replace("\n3 ", "\n5 ")
    key = bench.judge(bench.doc(files=gids(F43))).one("roce-gid-index-uniform")
    previous = {(key.node, key.id, key.key): key.value}

    seen = bench.judge(bench.doc(files=gids(moved)), previous=previous)

    finding = seen.one("roce-gid-index-uniform")
    assert (finding.status, finding.observed) == ("WARN", "5")


def test_r08_a_gid_without_its_address_is_left_over_from_a_flap(bench):
    cmds = addr("bond0", "198.51.100.9/24")

    finding = bench.judge(bench.doc(cmds=cmds, files=gids(F43))).one(
        "roce-gid-ip-match"
    )

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert "198.51.100.9 on bond0 has no RoCE v2 GID" in finding.observed
    assert "198.51.100.6" in finding.observed


def test_gids_and_addresses_that_match_pass(bench):
    cmds = addr("bond0", "198.51.100.6/24", "fe80::1/64")

    seen = bench.judge(bench.doc(cmds=cmds, files=gids(F43)))

    assert seen.status("roce-gid-ip-match") == "PASS"


def test_without_ip_addr_a_match_is_unknown(bench):
    doc = bench.doc(files=gids(F43))

    assert bench.judge(doc).status("roce-gid-ip-match") == "UNKNOWN"


def test_r09_dgx_spark_40_a_drifted_pin_fails_on_that_hca_only(bench):
    moved = F43.replace("\n2 ", "\n5 ").replace("\n3 ", "\n4 ")
    files = (
        gids(F43, "rocep1s0f0")
        | gids(moved.replace("bond0", "ens2"), "roceP2p1s0f0", empty=(2, 3))
        | bench.env(MC_GID_INDEX="3")
    )

    assert bench.judge(bench.doc(files=files)).statuses("roce-gid-pinned") == {
        "rocep1s0f0": "PASS",
        "roceP2p1s0f0": "FAIL",
    }


def test_r11_glm_172_each_device_of_a_list_is_judged_by_itself(bench):
    files = (
        gids(F43, "rocep1s0f0")
        | gids("", "roceP2p1s0f0", empty=range(8))
        | bench.env(MC_GID_INDEX="3", NCCL_IB_HCA="rocep1s0f0,roceP2p1s0f0")
    )

    seen = bench.judge(bench.doc(files=files))

    assert seen.statuses("roce-gid-table") == {
        "rocep1s0f0": "PASS",
        "roceP2p1s0f0": "FAIL",
    }
    assert seen.status("roce-gid-pinned", "rocep1s0f0") == "PASS"


def test_r11_zero_ports_judged_are_unknown_and_never_a_pass(bench):
    files = bench.env(MC_GID_INDEX="3") | {"/proc/cmdline": "ro\n"}

    assert bench.judge(bench.doc(files=files)).status("roce-gid-pinned") == "UNKNOWN"


def test_r15_mooncake_1384_a_gid_without_a_netdev_disables_the_device(bench):
    rows = F43.replace(" bond0", " -")
    files = gids(rows) | bench.env(MC_GID_INDEX="3")
    cmds = version("0.3.8.post1") | addr("bond0", "198.51.100.6/24")
    strict = bench.judge(bench.doc(cmds=cmds, files=files))
    cmds = version("0.3.7.post2") | addr("bond0", "198.51.100.6/24")
    before = bench.judge(bench.doc(cmds=cmds, files=files))

    assert strict.status("roce-gid-ip-match") == "FAIL"
    assert "disabled" in strict.one("roce-gid-mooncake-choice").observed
    assert before.status("roce-gid-mooncake-choice") == "PASS"


def test_r88_a_table_read_as_sysfs_triples_counts_like_any_other(bench):
    seen = bench.judge(bench.doc(files=gids(F43) | bench.env(UCX_IB_GID_INDEX="auto")))

    assert seen.status("roce-gid-table") == "PASS"
    assert seen.status("roce-gid-pinned") == "PASS"


def test_an_environment_that_may_not_be_read_may_pin_anything(bench):
    files = gids(F43) | {"/proc/4242/environ": {"errno": "EACCES"}}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("roce-gid-pinned") == "UNKNOWN"
    assert seen.status("roce-gid-mooncake-choice") == "UNKNOWN"


def test_an_infiniband_port_has_no_roce_gids(bench):
    files = gids("0 fe80::1 IB/RoCE v1 -\n")
    files[f"{IB}/mlx5_0/ports/1/link_layer"] = "InfiniBand\n"

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("roce-gid-v2") == "SKIP"
    assert seen.status("roce-gid-pinned") == "SKIP"


def test_a_denied_table_is_unknown(bench):
    files = gids(F43) | {f"{IB}/mlx5_0/ports/1/gids/3": {"errno": "EACCES"}}

    seen = bench.judge(bench.doc(files=files))

    assert seen.status("roce-gid-table") == "UNKNOWN"


def test_a_gid_that_is_cut_off_is_unknown(bench):
    files = gids(F43) | {f"{IB}/mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:f"}

    assert bench.judge(bench.doc(files=files)).status("roce-gid-table") == "UNKNOWN"


def test_r07_many_gids_warn(bench):
    rows = "".join(f"{n} ::ffff:10.0.{n}.1 RoCE v2 ens1.{n}\n" for n in range(9))

    assert bench.judge(bench.doc(files=gids(rows))).status("roce-gid-churn") == "WARN"
    assert bench.judge(bench.doc(files=gids(F43))).status("roce-gid-churn") == "PASS"


def test_r13_an_iwarp_device_is_no_roce_device(bench):
    files = gids(F43) | {f"{IB}/mlx5_0/node_type": "4: RNIC\n"}
    good = gids(F43) | {f"{IB}/mlx5_0/node_type": "1: CA\n"}

    finding = bench.judge(bench.doc(files=files)).one("roce-transport")

    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert bench.judge(bench.doc(files=good)).status("roce-transport") == "PASS"
