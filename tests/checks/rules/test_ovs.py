"""Open vSwitch rules, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

LIST = "ovs-vsctl --timeout=5 --format=json list"
VERSION = {"ovs-appctl -T 3 version": "ovs-vswitchd (Open vSwitch) 3.1.0\n"}
EMPTY = ["set", []]


def table(headings, *data):
    return json.dumps({"data": list(data), "headings": headings.split(",")})


F01_LINE = (
    "ovs-vsctl --timeout=5 --format=json --columns=name,type,admin_state,link_state,"
    "mtu,mtu_request,error,ofport list Interface"
)
F01 = (
    '{"data":[["ens7f1np1","",["set",[]],["set",[]],["set",[]],["set",[]],"could not'
    ' open network device ens7f1np1 (No such device)",-1],["br0","internal","up","up",'
    '9000,["set",[]],["set",[]],65534],["ens1f0np0","","up","up",9000,9000,["set",[]],'
    '1]],"headings":["name","type","admin_state","link_state","mtu","mtu_request",'
    '"error","ofport"]}'
)


def test_f01_r71_ovs_issues_110_a_missing_nic_fails_critically_and_blocks_its_ofport(
    bench,
):
    seen = bench.judge(bench.doc(cmds={F01_LINE: F01}))

    failed = seen.one("ovs-iface-error", "ens7f1np1")
    assert (failed.status, failed.severity) == ("FAIL", "critical")
    assert "No such device" in failed.observed
    assert seen.status("ovs-iface-error", "br0") == "PASS"
    assert seen.status("ovs-iface-error", "ens1f0np0") == "PASS"
    blocked = seen.one("ovs-iface-ofport", "ens7f1np1")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("ovs-iface-error",))
    assert seen.status("ovs-iface-ofport", "ens1f0np0") == "PASS"
    assert seen.statuses("ovs-mtu-request") == {
        "br0": "PASS",
        "ens1f0np0": "PASS",
        "ens7f1np1": "SKIP",
    }
    assert seen.report.exit_code() == 1


F02_CTL = "/var/run/openvswitch/ovs-vswitchd.4711.ctl"
F02 = {
    f"{LIST} Interface": table(
        "name,type,admin_state,link_state,mtu,mtu_request,error,ofport",
        ["ens1f0np0", "", "up", "up", 9000, 9000, EMPTY, 1],
    ),
    f"ovs-appctl -t {F02_CTL} version": (
        1,
        "",
        f"2026-09-01T00:00:00Z|00001|unixctl|WARN|failed to connect to {F02_CTL}\n"
        f'ovs-appctl: cannot connect to "{F02_CTL}" (No such file or directory)\n',
    ),
}


def test_f02_a_dead_vswitchd_fails_although_the_database_says_up(bench):
    doc = bench.doc(cmds=F02, files={"/proc/4711": {"errno": "ENOENT"}})

    seen = bench.judge(doc)

    failed = seen.one("ovs-vswitchd-alive")
    assert (failed.status, failed.severity) == ("FAIL", "critical")
    for check in ("ovs-iface-error", "ovs-iface-ofport", "ovs-mtu-request"):
        blocked = seen.one(check, "ens1f0np0")
        assert (blocked.status, blocked.blocked_by) == ("SKIP", ("ovs-vswitchd-alive",))
    assert seen.status("ovs-db-reachable") == "PASS"


def test_f02_a_missing_pidfile_is_a_dead_vswitchd_too(bench):
    told = (
        'ovs-appctl: cannot read pidfile "/var/run/openvswitch/ovs-vswitchd.pid"'
        " (No such file or directory)\n"
    )

    seen = bench.judge(bench.doc(cmds={"ovs-appctl -T 3 version": (1, "", told)}))

    assert seen.status("ovs-vswitchd-alive") == "FAIL"


def test_a_stale_pid_is_a_dead_vswitchd_and_a_live_one_proves_nothing(bench):
    pid = {"/run/openvswitch/ovs-vswitchd.pid": "4711\n"}
    gone = bench.doc(files={**pid, "/proc/4711": {"errno": "ENOENT"}})
    there = bench.doc(files={**pid, "/proc/4711": ("status",)})
    none = bench.doc(
        files={
            "/run/openvswitch": ("db.sock",),
            "/run/openvswitch/ovs-vswitchd.pid": {"errno": "ENOENT"},
        }
    )

    def status(doc):
        return bench.judge(doc, only="ovs-vswitchd-alive").status("ovs-vswitchd-alive")

    assert status(gone) == "FAIL"
    assert status(there) == "UNKNOWN"
    assert status(none) == "FAIL"


def test_a_vswitchd_that_hangs_fails_and_one_that_may_not_be_asked_is_unknown(bench):
    def status(entry):
        doc = bench.doc(cmds={"ovs-appctl -T 3 version": entry})
        return bench.judge(doc).status("ovs-vswitchd-alive")

    hung = {"rc": -9, "stdout": "", "stderr": "", "ms": 5000, "timeout": True}
    assert status(hung) == "FAIL"
    assert status((-14, "", "")) == "FAIL"
    assert status((142, "", "")) == "FAIL"
    denied = 'ovs-appctl: cannot connect to "/run/x.ctl" (Permission denied)\n'
    assert status((1, "", denied)) == "UNKNOWN"
    assert status((127, "", "not found")) in {"UNKNOWN", "SKIP"}
    assert status("ovs-vsw") == "UNKNOWN"
    assert status(VERSION["ovs-appctl -T 3 version"]) == "PASS"


def test_an_answer_of_ovsdb_server_is_none_of_vswitchd(bench):
    line = "ovs-appctl -t ovsdb-server version"

    seen = bench.judge(bench.doc(cmds={line: "ovsdb-server (Open vSwitch) 3.1.0\n"}))

    assert seen.status("ovs-vswitchd-alive") == "UNKNOWN"


def test_a_database_that_is_down_fails_and_blocks_what_is_read_from_it(bench):
    told = (
        "ovs-vsctl: unix:/var/run/openvswitch/db.sock: database connection failed"
        " (No such file or directory)\n"
    )
    doc = bench.doc(
        cmds={f"{LIST} {name}": (1, "", told) for name in ("Open_vSwitch", "Interface")}
        | VERSION
    )

    seen = bench.judge(doc)

    failed = seen.one("ovs-db-reachable")
    assert (failed.status, failed.severity) == ("FAIL", "critical")
    for check in ("ovs-iface-error", "ovs-hw-offload", "ovs-cfg-converged"):
        assert seen.status(check) == "SKIP"
        assert seen.one(check).blocked_by == ("ovs-db-reachable",)


def test_a_database_that_only_root_may_ask_is_unknown(bench):
    told = "ovs-vsctl: unix:/x/db.sock: database connection failed (Permission denied)"
    cmds = {f"{LIST} Open_vSwitch": (1, "", told)}

    plain = bench.doc(cmds=cmds, collector={"euid": 1000})
    root = bench.doc(cmds=cmds)

    assert bench.judge(plain).status("ovs-db-reachable") == "UNKNOWN"
    assert bench.judge(root).status("ovs-db-reachable") == "FAIL"


def test_f03_an_empty_ofport_without_an_error_text_fails(bench):
    text = (
        '{"data":[["br1",["set",[]],["set",[]]]],"headings":["name","error","ofport"]}'
    )

    seen = bench.judge(bench.doc(cmds={f"{LIST} Interface": text}))

    failed = seen.one("ovs-iface-ofport", "br1")
    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert seen.status("ovs-iface-error", "br1") == "PASS"


F04 = (
    '{"data":[["br-rdma",1500,1500],["ens1f0np0",9000,9000]],'
    '"headings":["name","mtu","mtu_request"]}'
)
F04B = (
    '{"data":[["br-rdma",9000,["set",[]]],["ens1f0np0",9000,9000]],'
    '"headings":["name","mtu","mtu_request"]}'
)


def test_f04_r70_an_internal_port_pinned_below_its_uplink_fails(bench):
    seen = bench.judge(bench.doc(cmds={f"{LIST} Interface": F04}))

    assert seen.statuses("ovs-mtu-request") == {"br-rdma": "FAIL", "ens1f0np0": "PASS"}
    assert seen.one("ovs-mtu-request", "br-rdma").severity == "error"
    assert set(seen.statuses("ovs-iface-error").values()) == {"UNKNOWN"}


def test_f04b_an_internal_port_that_follows_passes(bench):
    seen = bench.judge(bench.doc(cmds={f"{LIST} Interface": F04B}))

    assert seen.statuses("ovs-mtu-request") == {"br-rdma": "PASS", "ens1f0np0": "PASS"}


def test_an_mtu_request_that_is_not_in_effect_fails(bench):
    text = table("name,mtu,mtu_request", ["ens1f0np0", 1500, 9000])
    held = table("name,mtu,mtu_request", ["ens1f0np0", 9000, 9000])
    kernel = {"/sys/class/net/ens1f0np0/mtu": "1500\n"}

    one = bench.judge(bench.doc(cmds={f"{LIST} Interface": text}))
    other = bench.judge(bench.doc(cmds={f"{LIST} Interface": held}, files=kernel))

    assert one.status("ovs-mtu-request") == "FAIL"
    assert other.status("ovs-mtu-request") == "FAIL"


def test_an_uplink_below_the_profile_fails(bench):
    doc = bench.doc(cmds={f"{LIST} Interface": F04B})

    seen = bench.judge(doc, profile={"ovs": {"mtu": 9100}})

    assert seen.status("ovs-mtu-request", "ens1f0np0") == "FAIL"


def test_mtus_are_compared_only_within_one_bridge(bench):
    cmds = {
        f"{LIST} Bridge": table(
            "_uuid,name,ports",
            [["uuid", "b1"], "br-rdma", ["set", [["uuid", "p1"], ["uuid", "p2"]]]],
            [["uuid", "b2"], "br-int", ["uuid", "p3"]],
        ),
        f"{LIST} Port": table(
            "_uuid,name,interfaces",
            [["uuid", "p1"], "br-rdma", ["uuid", "i1"]],
            [["uuid", "p2"], "ens1f0np0", ["uuid", "i2"]],
            [["uuid", "p3"], "tap0", ["uuid", "i3"]],
        ),
        f"{LIST} Interface": table(
            "_uuid,name,type,mtu,mtu_request,error,ofport",
            [["uuid", "i1"], "br-rdma", "internal", 9000, EMPTY, EMPTY, 65534],
            [["uuid", "i2"], "ens1f0np0", "", 9000, EMPTY, EMPTY, 1],
            [["uuid", "i3"], "tap0", "", 1500, EMPTY, EMPTY, 2],
            [["uuid", "i4"], "patch-a", "patch", EMPTY, EMPTY, EMPTY, 3],
        ),
    }

    seen = bench.judge(bench.doc(cmds=cmds | VERSION))

    assert seen.statuses("ovs-mtu-request") == {
        "br-rdma": "PASS",
        "ens1f0np0": "PASS",
        "tap0": "PASS",
    }


def configuration(*pair):
    return table("next_cfg,cur_cfg", list(pair))


def test_f09_a_configuration_that_is_not_applied_in_two_samples_fails(bench):
    line = f"{LIST} Open_vSwitch"

    def status(*samples):
        entry = [(10.0 + 2 * at, configuration(*s)) for at, s in enumerate(samples)]
        seen = bench.judge(bench.doc(cmds={line: entry} | VERSION))
        return seen.status("ovs-cfg-converged")

    assert status((118, 112), (118, 112)) == "FAIL"
    assert status((118, 112), (118, 118)) == "PASS"
    assert status((118, 112), (120, 118)) == "PASS"
    assert status((118, 118), (119, 118)) == "UNKNOWN"
    assert status((118, 112)) == "UNKNOWN"
    assert status((118, 118)) == "PASS"


def test_f09_two_samples_of_one_instant_do_not_fail(bench):
    entry = [(10.0, configuration(118, 112)), (10.2, configuration(118, 112))]
    line = "ovs-vsctl --timeout=5 --format=json --columns=next_cfg,cur_cfg list"

    seen = bench.judge(bench.doc(cmds={f"{line} Open_vSwitch": entry}))

    assert seen.status("ovs-cfg-converged") == "UNKNOWN"


def other_config(name, *pairs):
    return bench_doc(name, table("other_config", [["map", [list(p) for p in pairs]]]))


def bench_doc(name, text):
    return {
        "schema": "preflight.facts/1",
        "collector": {"euid": 0},
        "node": {"hostname": name, "virt": "none"},
        "cmds": {
            f"{LIST} Open_vSwitch": {
                "rc": 0,
                "stdout": text,
                "stderr": "",
                "ms": 1,
                "timeout": False,
            }
        },
        "files": {},
    }


def test_f07_a_node_without_offload_among_three_with_it_fails_and_drift_is_info(bench):
    like = [
        other_config(f"node-{n}", ("hw-offload", "true"), ("max-idle", "30000"))
        for n in "abc"
    ]

    seen = bench.judge(*like, other_config("node-d"))

    failed = seen.one("ovs-hw-offload", node="node-d")
    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert "unset" in failed.observed
    assert failed.expected == "true (3 of 4)"
    assert seen.status("ovs-hw-offload", node="node-a") == "PASS"
    drift = seen.one("ovs-max-idle", node="node-d")
    assert (drift.status, drift.severity) == ("PASS", "info")
    assert not [f for f in seen.report.findings if f.bad and f.id != "ovs-hw-offload"]


def test_f07b_a_capital_letter_is_no_boolean_for_ovs(bench):
    seen = bench.judge(other_config("node-a", ("hw-offload", "True")))

    assert seen.status("ovs-hw-offload") == "FAIL"


def test_unset_offload_is_the_same_as_false(bench):
    nodes = [other_config(f"node-{n}", ("hw-offload", "false")) for n in "abc"]

    seen = bench.judge(*nodes, other_config("node-d"))

    assert set(seen.by_node("ovs-hw-offload").values()) == {"PASS"}


def test_the_profile_decides_about_offload_on_a_single_node(bench):
    doc = other_config("node-a")

    wanted = bench.judge(doc, profile={"ovs": {"hw_offload": True}})
    refused = bench.judge(doc, profile={"ovs": {"hw_offload": False}})

    assert wanted.status("ovs-hw-offload") == "FAIL"
    assert refused.status("ovs-hw-offload") == "PASS"


def test_r67_ovn_160_a_daemon_older_than_its_package_or_its_peers_is_named(bench):
    def doc(name, running, installed=None):
        answer = f"ovs-vswitchd (Open vSwitch) {running}\n"
        cmds = {"ovs-appctl -T 3 version": answer}
        if installed:
            told = f"ovs-vswitchd (Open vSwitch) {installed}\n"
            cmds["ovs-vswitchd --version"] = told
        return bench.doc(name, cmds=cmds)

    like = [doc(f"node-{n}", "3.1.0", "3.1.0") for n in "abc"]
    seen = bench.judge(*like, doc("node-d", "2.17.7"), doc("node-e", "2.17.7", "3.1.0"))

    assert seen.status("ovs-version", node="node-a") == "PASS"
    assert seen.status("ovs-version", node="node-d") == "WARN"
    assert seen.status("ovs-version", node="node-e") == "FAIL"


def flows(*lines):
    return "".join(f" cookie=0x0, duration=1s, {line}\n" for line in lines)


NORMAL = "table=0, n_packets=5, n_bytes=9, priority=0 actions=NORMAL"
TRACKED = "table=0, n_packets=1, n_bytes=9, priority=9,ip,ct_state=-trk actions=ct()"


def test_r68_sriov_network_operator_38_skip_sw_with_conntrack_in_use_fails(bench):
    def status(policy, *lines):
        doc = other_config("node-a", *([("tc-policy", policy)] if policy else []))
        if lines:
            doc["cmds"]["ovs-ofctl dump-flows br-int"] = {
                "rc": 0,
                "stdout": "NXST_FLOW reply (xid=0x4):\n" + flows(*lines),
            }
        return bench.judge(doc).status("ovs-tc-policy")

    assert status("skip_sw", NORMAL, TRACKED) == "FAIL"
    assert status("skip_sw", NORMAL) == "PASS"
    assert status("skip_sw") == "UNKNOWN"
    assert status("none", TRACKED) == "PASS"
    assert status(None) == "PASS"


def test_a_node_without_open_vswitch_is_skipped_and_not_failed(bench):
    gone = {"/run/openvswitch": {"errno": "ENOENT"}}
    tools = {f"{LIST} Open_vSwitch": (1, "", "database connection failed")}

    for cmds in ({}, tools):
        seen = bench.judge(bench.doc(cmds=cmds, files=gone))
        statuses = {f.status.value for f in seen.report.findings if f.id[:4] == "ovs-"}
        assert statuses == {"SKIP"}


def test_a_node_of_which_nothing_tells_about_ovs_is_unknown(bench):
    seen = bench.judge(bench.doc(files={"/proc/cmdline": "ro\n"}))

    for check in ("ovs-vswitchd-alive", "ovs-iface-error", "ovs-mtu-request"):
        assert seen.status(check) == "UNKNOWN"


def test_open_vswitch_that_the_profile_expects_and_that_is_not_there_fails(bench):
    gone = {"/run/openvswitch": {"errno": "ENOENT"}}

    seen = bench.judge(bench.doc(files=gone), profile={"ovs": {"expected": True}})

    assert seen.status("ovs-expected") == "FAIL"
    blocked = seen.one("ovs-vswitchd-alive")
    assert (blocked.status, blocked.blocked_by) == ("SKIP", ("ovs-expected",))


def test_open_vswitch_that_the_profile_rules_out_fails(bench):
    doc = bench.doc(cmds=VERSION)

    seen = bench.judge(doc, profile={"ovs": {"expected": False}})

    assert seen.status("ovs-expected") == "FAIL"


def test_a_denied_or_truncated_table_never_passes(bench):
    whole = F01
    cut = {"rc": 0, "stdout": whole[: len(whole) // 2]}
    short = {"rc": 0, "stdout": whole, "bytes": len(whole) + 1}
    denied = (1, "", "ovs-vsctl: database connection failed (Permission denied)")

    for entry in (cut, short, denied):
        doc = bench.doc(cmds={F01_LINE: entry} | VERSION, collector={"euid": 1000})
        seen = bench.judge(doc)
        for check in ("ovs-iface-error", "ovs-iface-ofport", "ovs-mtu-request"):
            assert seen.status(check) == "UNKNOWN"
