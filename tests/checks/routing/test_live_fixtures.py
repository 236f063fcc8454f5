"""The fixtures about routes, made of veth rails and judged from the kernel's own dumps.

Every document also has the kernel's `ip route get` for every rail and peer, so that the
engine is checked against it once more: a difference would be an own fault.
"""

from __future__ import annotations

import json

import pytest

ETH2, ETH3 = "rail0 (eth2, 12.12.12.43)", "rail1 (eth3, 13.13.2.13)"
NICS = ("eth2", "eth3")
PEERS = ("12.12.12.44", "13.13.2.14")
LEAVES = ("rp_filter", "arp_ignore", "arp_announce")


def settings(made, names):
    """The sysctl files of these devices and of all, as the kernel has them."""
    base = "/proc/sys/net/ipv4/conf"
    paths = [f"{base}/{name}/{leaf}" for name in ("all", *names) for leaf in LEAVES]
    return {path: made.run("cat", path).stdout for path in paths}


def collect(bench, made, *, names=NICS, pairs=(), name="node-a"):
    """A document of what the collector would read, with live answers for pairs."""
    cmds = made.facts(
        "ip -j -d addr",
        "ip -j -4 rule",
        "ip -j -4 route show table all",
        "ip -j neigh",
        *[f"ip -j route get {dst} from {src}" for src, dst in pairs],
    )
    tables = {
        row["table"]
        for row in json.loads(cmds["ip -j -4 rule"][1])
        if row.get("table") not in {None, "local", "main", "default"}
    }
    cmds |= made.facts(*[f"ip -j route show table {t}" for t in sorted(tables)])
    return bench.doc(name, cmds=cmds, files=settings(made, names))


def f11(namespace, rt_tables=None):
    """Mooncake#1026: two rails in main, the default over a third device."""
    made = namespace(rt_tables)
    made.ip("link set lo up")
    made.rail("eth10", "192.0.2.10/24")
    made.rail("eth2", "12.12.12.43/16")
    made.rail("eth3", "13.13.2.13/24")
    made.ip("route add default via 192.0.2.254 dev eth10")
    return made


PAIRS = [(src, dst) for src in ("12.12.12.43", "13.13.2.13") for dst in PEERS]


def test_f11_live(bench, namespace):
    document = collect(bench, f11(namespace), pairs=PAIRS)

    seen = bench.judge(document, nics=NICS)

    assert seen.statuses("route-peer-same-rail") == {ETH2: "PASS", ETH3: "PASS"}
    assert seen.statuses("route-cross-rail") == {ETH2: "WARN", ETH3: "WARN"}
    assert set(seen.statuses("route-prefix-consistent").values()) == {"WARN"}
    assert seen.statuses("route-get-consistent") == {ETH2: "PASS", ETH3: "PASS"}
    strict = bench.judge(document, nics=NICS, profile={"routes": {"cross_rail": True}})
    assert strict.statuses("route-source-rule") == {ETH2: "FAIL", ETH3: "FAIL"}
    assert strict.statuses("route-cross-rail") == {ETH2: "FAIL", ETH3: "FAIL"}


def test_f12_live_the_table_does_not_exist(bench, namespace):
    made = f11(namespace)
    made.ip("rule add pref 103 from 13.13.2.13 lookup 103")

    seen = bench.judge(collect(bench, made, pairs=PAIRS), nics=NICS)

    finding = seen.one("route-table-empty", ETH3)
    assert (finding.status, finding.severity) == ("FAIL", "critical")
    assert "does not exist" in finding.observed
    assert seen.one("route-get-consistent", ETH3).blocked_by == ("route-table-empty",)


def test_f12b_live_the_table_was_emptied(bench, namespace):
    made = f11(namespace)
    made.ip("rule add pref 103 from 13.13.2.13 lookup 103")
    made.ip("route add 13.13.2.0/24 dev eth3 table 103")
    made.ip("route del 13.13.2.0/24 dev eth3 table 103")

    seen = bench.judge(collect(bench, made), nics=NICS)

    assert seen.status("route-table-empty", ETH3) == "FAIL"


def test_f12c_live_the_table_has_a_name(bench, namespace, tmp_path):
    names = tmp_path / "rt_tables"
    names.write_text("255\tlocal\n254\tmain\n253\tdefault\n103\trail3\n")
    made = f11(namespace, names)
    made.ip("rule add pref 103 from 13.13.2.13 lookup 103")
    made.ip("route add default via 13.13.2.1 dev eth3 table 103")
    document = collect(bench, made, pairs=PAIRS)
    assert '"table":"rail3"' in document["cmds"]["ip -j -4 rule"]["stdout"]
    document["files"]["/etc/iproute2/rt_tables"] = {"text": names.read_text()}

    seen = bench.judge(document, nics=NICS)

    assert seen.status("route-table-empty", ETH3) == "PASS"
    assert seen.status("route-cross-rail", ETH3) == "PASS"
    assert seen.status("route-table-default", ETH3) == "PASS"


def same_subnet(namespace, *, carrier=True):
    made = namespace()
    made.ip("link set lo up")
    made.rail("eth2", "192.168.1.1/24")
    made.rail("eth3", "192.168.1.2/24", carrier=carrier)
    return made


SUBNET = [(f"192.168.1.{n}", "192.168.1.77") for n in (1, 2)]


def test_f13_live(bench, namespace):
    made = same_subnet(namespace)
    for leaf in ("arp_ignore", "arp_announce"):
        made.sysctl(f"conf/all/{leaf}", 0)

    seen = bench.judge(collect(bench, made, pairs=SUBNET), nics=NICS)

    assert seen.status("route-same-subnet-multi-nic") == "FAIL"
    second = seen.one("route-get-consistent", "rail1 (eth3, 192.168.1.2)")
    assert second.status == "FAIL", "the kernel itself sends it out of the first NIC"


def test_f13b_live(bench, namespace):
    made = same_subnet(namespace)
    for at in (1, 2):
        made.ip(f"rule add pref 10{at} from 192.168.1.{at} lookup 10{at}")
        made.ip(f"route add 192.168.1.0/24 dev eth{at + 1} table 10{at}")
        made.ip(f"route add default via 192.168.1.254 dev eth{at + 1} table 10{at}")
    made.sysctl("conf/all/arp_ignore", 1)
    made.sysctl("conf/all/arp_announce", 2)

    seen = bench.judge(collect(bench, made, pairs=SUBNET), nics=NICS)

    assert seen.status("route-same-subnet-multi-nic") == "PASS"
    assert set(seen.statuses("route-get-consistent").values()) == {"PASS"}


def test_f13c_live(bench, namespace):
    made = same_subnet(namespace, carrier=False)

    seen = bench.judge(collect(bench, made), nics=NICS)

    assert seen.status("route-same-subnet-multi-nic") == "SKIP"


@pytest.mark.parametrize(
    ("everybody", "own", "status"), [(1, 0, "FAIL"), (0, 2, "PASS"), (2, 1, "PASS")]
)
def test_f15_live(bench, namespace, everybody, own, status):
    made = f11(namespace)
    made.sysctl("conf/all/rp_filter", everybody)
    for name in NICS:
        made.sysctl(f"conf/{name}/rp_filter", own)

    seen = bench.judge(collect(bench, made), nics=NICS)

    assert seen.status("route-rp-filter", ETH3) == status


def test_f18_live(bench, namespace):
    made = namespace()
    made.rail("eth2", "192.0.2.43/24")
    made.rail("eth3", "198.51.100.43/24")
    mac = json.loads(made.ip("-j link show eth3"))[0]["address"]
    made.ip("route add 203.0.113.0/24 via 192.0.2.1 dev eth2")
    made.ip(f"neigh add 192.0.2.44 lladdr {mac} dev eth2 nud reachable")
    made.ip("neigh add 192.0.2.1 lladdr 02:00:5e:00:00:01 dev eth2 nud permanent")
    made.ip("neigh change 192.0.2.1 dev eth2 nud failed")
    other = namespace()
    other.rail("eth2", "192.0.2.44/24")

    seen = bench.judge(
        collect(bench, made),
        collect(bench, other, names=("eth2",), name="node-b"),
        nics=NICS,
    )

    eth2 = "rail0 (eth2, 192.0.2.43)"
    assert seen.status("route-gateway-neigh", eth2, "node-a") == "FAIL"
    assert "our own eth3" in seen.one("route-dup-ip", eth2, "node-a").observed


def test_f19_live(bench, namespace):
    made = f11(namespace)
    made.ip("rule add pref 100 fwmark 0x200/0xf00 lookup 2004")
    made.ip(
        "rule add pref 101 not from 203.0.113.0/24 lookup main suppress_prefixlength 0"
    )
    made.ip("rule add pref 102 from 12.12.12.43 lookup 102")
    made.ip("route add default via 12.12.0.1 dev eth2 table 102")
    made.ip("route add default via 192.0.2.254 dev eth10 table 2004")

    seen = bench.judge(collect(bench, made, pairs=PAIRS), nics=NICS)

    finding = seen.one("route-rule-order", ETH2)
    assert (finding.status, finding.severity) == ("PASS", "info")
    assert seen.status("route-cross-rail", ETH2) == "WARN", "main knows eth3's subnet"
