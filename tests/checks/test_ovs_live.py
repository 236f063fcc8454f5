"""Real Open vSwitch, collected by the real collector and judged.

ovsdb-server and ovs-vswitchd with the userspace datapath run in namespaces of their
own (network, mounts, processes), with /run and the log directory of their own: the
system's Open vSwitch is neither seen nor touched, and all of it ends with one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checks import collector
from checks.framing import decode
from checks.judge import judge
from checks.profile import Profile
from checks.rules import all_rules

TOOLS = ("unshare", "nsenter", "ovs-vswitchd", "ovsdb-server", "ovsdb-tool")
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
RUN = "/run/openvswitch"
LOGS = "/var/log/openvswitch"
SETTLE_S = 15.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
        reason="needs root and openvswitch-switch: apt-get install openvswitch-switch",
    ),
    pytest.mark.skipif(
        not (SCHEMA.exists() and Path(LOGS).is_dir() and Path("/dev/net/tun").exists()),
        reason=f"needs {SCHEMA}, {LOGS} and /dev/net/tun",
    ),
]


class Lab:
    """Namespaces with one Open vSwitch; everything ends with its first process."""

    def __init__(self):
        mounts = f"mount -t tmpfs run /run && mount -t tmpfs logs {LOGS}"
        script = f"{mounts} && mkdir {RUN} && ip link set lo up && echo ready && cat"
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                script,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout.readline() == b"ready\n"
        pid = self._holder.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._inside = ["nsenter", "--target", children[0], "--net", "--mount", "--pid"]

    def run(self, *argv, check=True, text=None):
        """Runs a program inside; its CompletedProcess."""
        environment = {k: v for k, v in os.environ.items() if k != "OVS_RUNDIR"}
        done = subprocess.run(
            [*self._inside, *argv],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            env={**environment, "LC_ALL": "C"},
        )
        assert not check or done.returncode == 0, (argv, done.stderr)
        return done

    def start(self):
        database = f"{RUN}/conf.db"
        self.run("ovsdb-tool", "create", database, str(SCHEMA))
        self.start_database()
        self.run("ovs-vsctl", "--no-wait", "init")
        self.start_switch()

    def start_database(self):
        remote = f"--remote=punix:{RUN}/db.sock"
        self.run("ovsdb-server", f"{RUN}/conf.db", remote, "--pidfile", "--detach")

    def start_switch(self):
        options = ("--pidfile", "--detach", "--log-file", "--disable-system")
        self.run("ovs-vswitchd", *options)

    def kill(self, daemon):
        """Ends a daemon as a crash does: nothing is tidied up."""
        pid = self.run("cat", f"{RUN}/{daemon}.pid").stdout.strip()
        self.run("kill", "-9", pid)

    def vsctl(self, line):
        return self.run("ovs-vsctl", "--timeout=20", *line.split())

    def ip(self, line):
        self.run("ip", *line.split())

    def bridge(self, name, *ports):
        """A bridge of the userspace datapath, with ports that are there already."""
        self.vsctl(f"add-br {name} -- set bridge {name} datapath_type=netdev")
        for port in ports:
            self.vsctl(f"add-port {name} {port}")

    def nic(self, name, mtu=9000):
        """A veth end with a peer that is up: it has a carrier."""
        self.ip(f"link add {name} type veth peer name p{name}")
        for each in (name, f"p{name}"):
            self.ip(f"link set {each} mtu {mtu} up")

    def until(self, predicate):
        """Waits for the switch to settle."""
        end = time.monotonic() + SETTLE_S
        while not predicate():
            assert time.monotonic() < end, "the switch does not settle"
            time.sleep(0.1)

    def facts(self):
        """What the real collector sees, over its standard input as over SSH."""
        source = Path(collector.__file__).read_text(encoding="utf-8")
        done = self.run(sys.executable, "-", "--hostname", "lab", text=source)
        return decode(done.stdout.encode())

    def judged(self, **profile):
        """(status by (check, subject), findings by the same) of the OVS rules."""
        rules = [rule for rule in all_rules() if rule.group == "ovs"]
        document = self.facts()
        given = Profile.model_validate({"ovs": profile})
        report = judge([document], given, rules=rules)
        assert report.own_faults == ()
        return {(f.id, f.subject): f for f in report.findings}

    def close(self):
        self._holder.stdin.close()
        self._holder.wait(10)
        self._holder.stdout.close()


@pytest.fixture
def lab():
    made = Lab()
    try:
        made.start()
        yield made
    finally:
        made.close()


def statuses(findings, check):
    return {s: f.status.value for (name, s), f in findings.items() if name == check}


def test_a_working_switch_judges_clean(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0")
    lab.vsctl("set interface nic0 mtu_request=9000")
    lab.vsctl("set interface br-rdma mtu_request=9000")

    found = lab.judged(expected=True, hw_offload=False)

    for check in ("ovs-expected", "ovs-vswitchd-alive", "ovs-db-reachable"):
        assert statuses(found, check) == {"": "PASS"}
    for check in ("ovs-cfg-converged", "ovs-offload-failures", "ovs-upcall-lost"):
        assert statuses(found, check) == {"": "PASS"}
    for check in ("ovs-iface-error", "ovs-iface-ofport", "ovs-mtu-request"):
        assert statuses(found, check) == {"br-rdma": "PASS", "nic0": "PASS"}
    assert statuses(found, "ovs-flow-drop-roce") == {"br-rdma": "PASS"}
    assert statuses(found, "ovs-bond-members") == {"": "SKIP"}
    assert [f for f in found.values() if f.bad] == []
    unknown = {check for (check, _), f in found.items() if f.status == "UNKNOWN"}
    assert unknown <= {"ovs-uplink-in-bridge", "ovs-esw-mode"}, "there are no rails"


def test_a_missing_nic_fails_although_add_port_returned_zero(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0", "ens7f1np1")

    found = lab.judged()

    failed = found["ovs-iface-error", "ens7f1np1"]
    assert (failed.status, failed.severity) == ("FAIL", "critical")
    assert "No such device" in failed.observed
    assert found["ovs-iface-ofport", "ens7f1np1"].blocked_by == ("ovs-iface-error",)
    assert [key for key, f in found.items() if f.is_root] == [
        ("ovs-iface-error", "ens7f1np1")
    ]


def test_an_unsupported_datapath_leaves_ports_without_a_number_and_without_an_error(
    lab,
):
    lab.run("ovs-vsctl", "--no-wait", "add-br", "br1")
    log = ("cat", f"{LOGS}/ovs-vswitchd.log")
    lab.until(lambda: "unknown datapath" in lab.run(*log).stdout)

    found = lab.judged()

    assert found["ovs-iface-error", "br1"].status == "PASS"
    assert found["ovs-iface-ofport", "br1"].status == "FAIL"
    assert found["ovs-module-params", ""].status == "FAIL"


def test_an_internal_port_pinned_below_its_uplink_fails(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0")
    lab.vsctl("set interface nic0 mtu_request=9000")
    lab.vsctl("set interface br-rdma mtu_request=1500")

    found = lab.judged()

    assert statuses(found, "ovs-mtu-request") == {"br-rdma": "FAIL", "nic0": "PASS"}


def test_an_internal_port_without_a_request_follows_its_uplink(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0")

    assert set(statuses(lab.judged(), "ovs-mtu-request").values()) == {"PASS"}


def test_a_dead_vswitchd_is_seen_although_its_database_says_up(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0")
    state = ("ovs-vsctl", "get", "interface", "nic0", "link_state")
    lab.until(lambda: lab.run(*state).stdout == "up\n")

    lab.kill("ovs-vswitchd")
    found = lab.judged()

    assert lab.run(*state).stdout == "up\n"
    assert found["ovs-vswitchd-alive", ""].status == "FAIL"
    assert found["ovs-db-reachable", ""].status == "PASS"
    for check in ("ovs-iface-error", "ovs-iface-ofport", "ovs-mtu-request"):
        finding = found[check, "nic0"]
        assert (finding.status, finding.blocked_by) == ("SKIP", ("ovs-vswitchd-alive",))
    assert [key for key, f in found.items() if f.is_root] == [
        ("ovs-vswitchd-alive", "")
    ]


def test_a_configuration_that_a_dead_vswitchd_does_not_apply_is_its_fault(lab):
    lab.kill("ovs-vswitchd")
    lab.run("ovs-vsctl", "--no-wait", "add-br", "br9")

    found = lab.judged()

    assert found["ovs-cfg-converged", ""].blocked_by == ("ovs-vswitchd-alive",)


def test_a_vswitchd_that_is_stopped_does_not_answer_and_fails(lab):
    pid = lab.run("cat", f"{RUN}/ovs-vswitchd.pid").stdout.strip()
    lab.run("kill", "-STOP", pid)

    found = lab.judged()

    assert found["ovs-vswitchd-alive", ""].status == "FAIL"


def test_a_dead_database_is_seen_and_blocks_what_is_read_from_it(lab):
    lab.bridge("br-rdma")
    lab.kill("ovsdb-server")

    found = lab.judged()

    assert found["ovs-db-reachable", ""].status == "FAIL"
    assert found["ovs-vswitchd-alive", ""].status == "PASS"
    assert found["ovs-hw-offload", ""].blocked_by == ("ovs-db-reachable",)


def bonded(lab):
    """Two bridges, each with a bond of two legs, that speak LACP with each other."""
    for leg in ("0", "1"):
        lab.ip(f"link add a{leg} type veth peer name b{leg}")
        for side in "ab":
            lab.ip(f"link set {side}{leg} up")
    for side in "ab":
        lab.bridge(f"br-{side}")
        legs = f"{side}0 {side}1 bond_mode=balance-tcp lacp=active"
        rate = "other_config:lacp-time=fast"
        lab.vsctl(f"add-bond br-{side} bond-{side} {legs} {rate}")
    show = ("ovs-appctl", "lacp/show")
    lab.until(lambda: lab.run(*show).stdout.count(": current attached") == 4)
    lab.until(
        lambda: lab.run("ovs-appctl", "bond/show").stdout.count("may_enable: true") == 4
    )


LEGS = {"bond-a/a0", "bond-a/a1", "bond-b/b0", "bond-b/b1"}


def test_a_bond_that_negotiated_passes_and_a_leg_without_carrier_fails(lab):
    bonded(lab)
    assert statuses(lab.judged(), "ovs-bond-members") == dict.fromkeys(LEGS, "PASS")

    lab.ip("link set b1 down")
    lab.until(
        lambda: "member a1: disabled" in lab.run("ovs-appctl", "bond/show").stdout
    )
    found = statuses(lab.judged(), "ovs-bond-members")

    assert found == dict.fromkeys(LEGS, "PASS") | {
        "bond-a/a1": "FAIL",
        "bond-b/b1": "FAIL",
    }


def test_a_leg_whose_partner_says_nothing_fails_in_lacp(lab):
    bonded(lab)

    lab.vsctl("del-port br-b bond-b")
    lab.until(
        lambda: "current attached" not in lab.run("ovs-appctl", "lacp/show").stdout
    )
    found = lab.judged()

    assert statuses(found, "ovs-bond-members") == {
        "bond-a/a0": "FAIL",
        "bond-a/a1": "FAIL",
    }
    assert "LACP" in found["ovs-bond-members", "bond-a/a0"].observed


def test_a_flow_that_drops_roce_is_found(lab):
    lab.nic("nic0")
    lab.bridge("br-rdma", "nic0")
    flow = "priority=100,udp,tp_dst=4791,actions=drop"
    lab.run("ovs-ofctl", "add-flow", "br-rdma", flow)

    found = lab.judged()

    assert found["ovs-flow-drop-roce", "br-rdma"].status == "FAIL"
    assert [key for key, f in found.items() if f.is_root] == [
        ("ovs-flow-drop-roce", "br-rdma")
    ]


def test_offload_that_is_no_boolean_and_offload_that_is_asked(lab):
    lab.vsctl("set Open_vSwitch . other_config:hw-offload=True")
    assert lab.judged()["ovs-hw-offload", ""].status == "FAIL"

    lab.vsctl("set Open_vSwitch . other_config:hw-offload=true")
    assert lab.judged(hw_offload=True)["ovs-hw-offload", ""].status == "PASS"


def test_a_host_without_open_vswitch_is_skipped(lab):
    lab.kill("ovs-vswitchd")
    lab.kill("ovsdb-server")
    lab.run("rm", "-r", RUN)

    found = lab.judged()

    assert {f.status.value for f in found.values()} == {"SKIP"}
