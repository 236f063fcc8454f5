"""Open vSwitch at work, from the catalogue's fixtures and reports."""

from __future__ import annotations

import json

import pytest

LIST = "ovs-vsctl --timeout=5 --format=json list"
LOG = "/var/log/openvswitch/ovs-vswitchd.log"
F05 = """---- bond0 ----
bond_mode: balance-tcp
bond may use recirculation: yes, Recirc-ID : 1
bond-hash-basis: 0
lb_output action: disabled, bond-id: -1
updelay: 0 ms
downdelay: 0 ms
next rebalance: 8657 ms
lacp_status: negotiated
lacp_fallback_ab: false
active-backup primary: <none>
active member mac: 02:00:5e:00:53:01(p0)

member p0: enabled
  active member
  may_enable: true

member p1: disabled
  may_enable: false
"""


def test_f05_r73_a_disabled_member_fails_although_lacp_says_negotiated(bench):
    seen = bench.judge(bench.doc(cmds={"ovs-appctl bond/show": F05}))

    assert seen.statuses("ovs-bond-members") == {"bond0/p0": "PASS", "bond0/p1": "FAIL"}
    failed = seen.one("ovs-bond-members", "bond0/p1")
    assert failed.severity == "error"
    assert failed.observed == "disabled, may_enable: false"


def test_f05b_the_words_of_older_versions_mean_the_same(bench):
    text = (
        F05.replace("member p1: disabled", "member p1: enabled")
        .replace("may_enable: false", "may_enable: true")
        .replace("member", "slave")
    )

    seen = bench.judge(bench.doc(cmds={"ovs-appctl -T 3 bond/show": text}))

    assert seen.statuses("ovs-bond-members") == {"bond0/p0": "PASS", "bond0/p1": "PASS"}


LACP = """---- bond0 ----
  status: active negotiated
  sys_id: 02:00:5e:00:53:01
  lacp_time: slow

member: p0: current attached
  port_id: 1
  may_enable: true

  actor sys_id: 02:00:5e:00:53:01
  partner sys_id: 02:00:5e:00:53:fe
  partner state: activity aggregation

member: p1: {state}
  port_id: 2
  may_enable: true

  actor sys_id: 02:00:5e:00:53:01
  partner sys_id: {partner}
  partner state: timeout
"""


@pytest.mark.parametrize(
    ("state", "partner", "verdict"),
    [
        ("current attached", "02:00:5e:00:53:fe", "PASS"),
        ("current attached", "00:00:00:00:00:00", "FAIL"),
        ("expired attached", "02:00:5e:00:53:fe", "FAIL"),
        ("defaulted detached", "00:00:00:00:00:00", "FAIL"),
    ],
)
def test_f05_r73_a_member_without_a_partner_fails(bench, state, partner, verdict):
    healthy = F05.replace("disabled\n", "enabled\n").replace("e: false\n\n", "e: true")
    healthy = healthy.replace("may_enable: false", "may_enable: true")
    cmds = {
        "ovs-appctl bond/show": healthy,
        "ovs-appctl lacp/show": LACP.format(state=state, partner=partner),
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("ovs-bond-members", "bond0/p1") == verdict
    assert seen.status("ovs-bond-members", "bond0/p0") == "PASS"


def test_a_bond_that_is_cut_off_is_unknown(bench):
    for at in (F05.index("member p0"), F05.index("may_enable: true"), 30):
        seen = bench.judge(bench.doc(cmds={"ovs-appctl bond/show": F05[:at]}))
        assert set(seen.statuses("ovs-bond-members").values()) == {"UNKNOWN"}


def test_a_bond_of_which_only_one_member_is_shown_is_unknown(bench):
    cut = F05[: F05.index("member p1")]

    seen = bench.judge(bench.doc(cmds={"ovs-appctl bond/show": cut}))

    assert seen.statuses("ovs-bond-members") == {"bond0/p0": "UNKNOWN"}


def test_a_member_that_only_lacp_tells_of_is_no_pass_beside_a_cut_bond(bench):
    cmds = {
        "ovs-appctl bond/show": F05[: F05.index("ember p1")],
        "ovs-appctl lacp/show": LACP.format(
            state="current attached", partner="02:00:5e:00:53:fe"
        ),
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("ovs-bond-members", "bond0/p1") == "UNKNOWN"


def test_a_bond_that_speaks_lacp_needs_every_member_in_it(bench):
    healthy = F05.replace("disabled", "enabled").replace(": false", ": true")
    whole = LACP.format(state="current attached", partner="02:00:5e:00:53:fe")
    for at in (0, 30, whole.index("member: p1")):
        cmds = {"ovs-appctl bond/show": healthy, "ovs-appctl lacp/show": whole[:at]}
        seen = bench.judge(bench.doc(cmds=cmds))
        assert "PASS" not in [
            f.status.value for f in seen.all("ovs-bond-members", "bond0/p1")
        ]


def test_a_database_without_bonds_has_no_members_to_judge(bench):
    port = {"data": [["p0", ["uuid", "i1"]]], "headings": ["name", "interfaces"]}
    cmds = {f"{LIST} Port": json.dumps(port), "ovs-appctl bond/show": ""}

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("ovs-bond-members") == "SKIP"


F06 = [
    "2026-09-01T03:14:48.824Z|00035|dpif_netlink(handler2)|ERR|failed to offload flow:"
    " Operation not supported: pf0vf2",
    "2026-09-01T09:44:47.383Z|00005|dpif_netlink(handler3)|ERR|failed to offload flow:"
    " No such file or directory: br-ext",
    "2026-09-01T06:50:43.423Z|00290|netdev_offload_tc(handler3)|ERR|flow_put: recirc_id"
    " sharing not supported",
    "2026-09-01T03:14:56.222Z|00069|dpif_netlink(revalidator11)|ERR|Dropped 2 log"
    " messages in last 8 seconds (most recently, 8 seconds ago) due to excessive rate",
]
QUIET = "2026-09-01T03:14:40.000Z|00001|vlog|INFO|opened log file\n"


def test_f06_r66_r67_flows_that_are_not_offloaded_fail(bench):
    text = "".join(f"{line}\n" for line in F06)

    finding = bench.judge(bench.doc(files={LOG: text})).one("ovs-offload-failures")

    assert (finding.status, finding.severity) == ("FAIL", "error")
    assert "3 times" in finding.observed
    assert "pf0vf2" in finding.observed


@pytest.mark.parametrize("line", F06[:3])
def test_f06_each_of_the_three_reasons_fails_by_itself(bench, line):
    doc = bench.doc(files={LOG: QUIET + line + "\n"})

    assert bench.judge(doc).status("ovs-offload-failures") == "FAIL"


def test_an_old_failure_is_over_after_a_day_of_the_log(bench):
    later = "2026-09-03T00:00:00Z|00400|bridge|INFO|bridge br0: using datapath ID 1\n"

    doc = bench.doc(files={LOG: F06[0] + "\n" + later})

    assert bench.judge(doc).status("ovs-offload-failures") == "PASS"


def test_f08_r69_atmosphere_949_packets_too_big_for_a_port_fail(bench):
    line = (
        "2026-02-08T16:24:36Z|271237|netdev_linux|WARN|tap1a2b3c4d-30: Dropped packet:"
        " Too big. GRO/TSO enabled?"
    )

    failed = bench.judge(bench.doc(files={LOG: line})).one("ovs-mtu-slowpath-drop")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert "tap1a2b3c4d-30" in failed.observed


def test_a_log_that_cannot_be_read_is_unknown_and_a_quiet_one_passes(bench):
    def statuses(entry):
        seen = bench.judge(
            bench.doc(files={LOG: entry, "/run/openvswitch": ("db.sock",)})
        )
        return {
            seen.status(check)
            for check in ("ovs-offload-failures", "ovs-mtu-slowpath-drop")
        }

    assert statuses({"errno": "EACCES"}) == {"UNKNOWN"}
    assert statuses({"errno": "ENOENT"}) == {"UNKNOWN"}
    assert statuses({"text": QUIET, "bytes": 10_000}) == {"UNKNOWN"}
    assert statuses("") == {"UNKNOWN"}
    assert statuses({"text": "", "bytes": 0}) == {"PASS"}
    assert statuses(QUIET) == {"PASS"}


def lookups(lost, header=""):
    return f"{header}  lookups: hit:88123 missed:1042 lost:{lost}"


def test_f10_lost_upcalls_between_two_samples_fail(bench):
    def status(*texts):
        samples = [(10.0 + 2 * at, text) for at, text in enumerate(texts)]
        doc = bench.doc(cmds={"ovs-appctl dpctl/show": samples})
        return bench.judge(doc).one("ovs-upcall-lost")

    failed = status(lookups(10), lookups(37))
    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert "27" in failed.observed
    assert status(lookups(10), lookups(10)).status == "PASS"
    assert status(lookups(10), "system@ovs-system:\n  flows: 7\n").status == "UNKNOWN"
    assert status(lookups(10)).status == "UNKNOWN"
    assert status(lookups(37), lookups(10)).status == "UNKNOWN"


def test_f10_a_number_that_is_cut_off_is_no_number(bench):
    whole = lookups(1, "system@ovs-system:\n") + "\n  flows: 7\n"
    cut = lookups(1, "system@ovs-system:\n")
    doc = bench.doc(cmds={"ovs-appctl dpctl/show": [(1.0, whole), (3.0, cut)]})

    assert bench.judge(doc).status("ovs-upcall-lost") == "UNKNOWN"


F61 = [
    " cookie=0x0, duration=21.707s, table=0, n_packets=1164, n_bytes=1259448,"
    " idle_age=0, priority=100,udp,tp_dst=4791 actions=drop",
    " cookie=0x0, duration=30.033s, table=0, n_packets=1111, n_bytes=916332,"
    " idle_age=1, priority=0 actions=NORMAL",
]


@pytest.mark.parametrize(
    "header", ["NXST_FLOW reply (xid=0x4):", "OFPST_FLOW reply (OF1.3) (xid=0x2):"]
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_f61_a_flow_that_drops_roce_fails(bench, header, end):
    text = "\n".join([header, *F61]) + end
    line = "ovs-ofctl -O OpenFlow13 dump-flows br-rail2"

    failed = bench.judge(bench.doc(cmds={line: text})).one("ovs-flow-drop-roce")

    assert (failed.status, failed.severity) == ("FAIL", "error")
    assert failed.subject == "br-rail2"
    assert "tp_dst=4791 actions=drop (1164 packets)" in failed.observed


def dump(*matches):
    return "NXST_FLOW reply (xid=0x4):\n" + "".join(
        f" cookie=0x0, duration=1s, table=0, n_packets=1, n_bytes=1, {m}\n"
        for m in matches
    )


@pytest.mark.parametrize(
    ("match", "verdict"),
    [
        ("priority=0 actions=NORMAL", "PASS"),
        ("priority=9,udp,tp_dst=67 actions=drop", "PASS"),
        ("priority=9,udp,tp_dst=4791 actions=NORMAL", "PASS"),
        ("priority=9,udp6,tp_dst=4791 actions=drop", "FAIL"),
        ("priority=9,tcp,tp_dst=50051 actions=drop", "FAIL"),
        ("priority=9,tcp,tp_dst=22 actions=drop", "PASS"),
        ("priority=9,ip,nw_dst=198.51.100.0/24 actions=drop", "FAIL"),
        ("priority=9,tcp,nw_dst=198.51.100.0/24,tp_dst=22 actions=drop", "PASS"),
        ("priority=9,ip,nw_dst=203.0.113.0/24 actions=drop", "PASS"),
        ("priority=0 actions=drop", "PASS"),
    ],
)
def test_only_flows_that_drop_roce_rails_or_control_fail(bench, match, verdict):
    address = {
        "family": "inet",
        "local": "198.51.100.7",
        "prefixlen": 24,
        "scope": "global",
    }
    link = {
        "ifindex": 4,
        "ifname": "ens1f0np0",
        "flags": ["UP", "LOWER_UP"],
        "mtu": 4200,
        "operstate": "UP",
        "link_type": "ether",
        "address": "02:00:5e:10:00:01",
        "addr_info": [address],
    }
    cmds = {
        "ovs-ofctl dump-flows br0": dump(match),
        "ip -j -d addr": json.dumps([link]),
    }

    seen = bench.judge(bench.doc(cmds=cmds))

    assert seen.status("ovs-flow-drop-roce") == verdict


def test_flows_that_are_cut_off_or_missing_are_unknown(bench):
    text = dump("priority=0 actions=NORMAL", "priority=1,ip actions=output:2")
    doc = bench.doc(cmds={"ovs-ofctl dump-flows br0": text[:-3]})
    bridge = {"data": [["br0"], ["br1"]], "headings": ["name"]}
    two = bench.doc(
        cmds={
            "ovs-ofctl dump-flows br0": text,
            f"{LIST} Bridge": json.dumps(bridge),
        }
    )
    none = bench.doc(cmds={"ovs-ofctl dump-flows br0": dump()})

    assert bench.judge(doc).status("ovs-flow-drop-roce") == "UNKNOWN"
    assert bench.judge(none).status("ovs-flow-drop-roce") == "UNKNOWN"
    assert bench.judge(two).statuses("ovs-flow-drop-roce") == {
        "br0": "PASS",
        "br1": "UNKNOWN",
    }


def test_r72_ovn_kubernetes_3227_length_checks_with_offload_warn(bench):
    def status(offload, match):
        other = {
            "data": [[["map", [["hw-offload", offload]]]]],
            "headings": ["other_config"],
        }
        cmds = {
            f"{LIST} Open_vSwitch": json.dumps(other),
            "ovs-ofctl dump-flows br-int": dump(match),
        }
        return bench.judge(bench.doc(cmds=cmds)).status("ovs-check-pkt-len")

    checks = "priority=9,ip actions=check_pkt_larger(1500)->NXM_NX_REG9[1]"
    assert status("true", checks) == "WARN"
    assert status("false", checks) == "PASS"
    assert status("true", "priority=0 actions=NORMAL") == "PASS"


def test_a_flow_limit_that_shrank_or_is_used_up_warns(bench):
    def status(now, limit):
        text = (
            "system@ovs-system:\n"
            f"  flows         : (current {now}) (avg 0) (max 0) (limit {limit})\n"
            "  dump duration : 1ms\n"
        )
        doc = bench.doc(cmds={"ovs-appctl -T 3 upcall/show": text})
        return bench.judge(doc).status("ovs-flow-limit")

    assert status(0, 10_000) == "PASS"
    assert status(9_500, 10_000) == "WARN"
    assert status(0, 4_000) == "WARN"


def test_drops_on_an_idle_node_warn(bench):
    line = "ovs-appctl -T 3 coverage/read-counter drop_action_of_pipeline"

    def status(*texts):
        entry = [(1.0 + 2 * at, text) for at, text in enumerate(texts)]
        seen = bench.judge(bench.doc(cmds={line: entry}))
        return seen.status("ovs-drop-coverage", "drop_action_of_pipeline")

    assert status("4\n", "9\n") == "WARN"
    assert status("4\n", "4\n") == "PASS"
    assert status("4\n") == "UNKNOWN"
    unknown = (2, "", "No such counter\novs-appctl: server returned an error\n")
    assert status(unknown, unknown) == "SKIP"
