"""What a packet filter does with a new connection: told where one outcome is left."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from ipaddress import ip_network
from pathlib import Path

import pytest

from checks.nftables import Packet, outcomes
from checks.parse.nft import parse_ruleset

CHECK = "route-nftables-drop"
MODULES = "nf_tables 1 0 - Live 0x0\n"
LINK = {
    "ifname": "eth0",
    "flags": ["UP", "LOWER_UP"],
    "mtu": 4200,
    "link_type": "ether",
    "addr_info": [
        {"family": "inet", "local": "198.18.0.1", "prefixlen": 24, "scope": "global"}
    ],
}


def judged(bench, told, modules=MODULES, link=LINK):
    cmds = {"ip -j -d addr": json.dumps([link])}
    if told is not None:
        cmds["nft -j list ruleset"] = told
    node = bench.doc(cmds=cmds, files={"/proc/modules": modules})
    return bench.judge(node, only=CHECK, nics=("eth0",)).one(CHECK)


spec = spec_from_file_location(
    "routing_namespaces_nft", Path(__file__).parent / "routing/conftest.py"
)
_SPACES = module_from_spec(spec)
spec.loader.exec_module(_SPACES)
namespace = _SPACES.namespace


@pytest.fixture
def nft(namespace):
    """Loads a ruleset into a namespace and gives what nft shows of it."""
    if shutil.which("nft") is None:
        pytest.skip("needs nft: apt install nftables")
    made = namespace()
    made.ip("link add eth0 type veth peer name peth0")

    def show(*rules, policy="accept", more="", hook="type filter hook input"):
        body = "\n".join(rules)
        chain = f"chain in {{\n{hook} priority 0; policy {policy};\n{body}\n}}"
        made.run("nft", "flush", "ruleset")
        made.run("nft", "-f", "-", text=f"table inet t {{\n{more}\n{chain}\n}}\n")
        return made.run("nft", "-j", "list", "ruleset").stdout

    return show


OPEN = "tcp dport { 22, 12001, 15000-17000 } accept"


@pytest.mark.parametrize(
    ("rules", "policy"),
    [
        ((), "accept"),
        ((OPEN,), "drop"),
        (("ct state established,related accept", "iifname lo accept", OPEN), "drop"),
        (("ct state invalid drop", "udp dport 4791 drop", OPEN), "drop"),
        (("ip saddr 198.18.0.0/16 accept",), "drop"),
        (('meta l4proto tcp iifname "eth*" accept',), "drop"),
        (("tcp dport 12002 drop", "tcp dport 14999 reject"), "accept"),
        (("iifname eth1 drop", "ip daddr 198.18.1.1 drop"), "accept"),
        (("ct state != new drop",), "accept"),
        (("counter", OPEN, "limit rate 1/second accept", "drop"), "accept"),
    ],
)
def test_a_filter_that_lets_them_in_passes(bench, nft, rules, policy):
    finding = judged(bench, nft(*rules, policy=policy))

    assert finding.status == "PASS", finding.observed


@pytest.mark.parametrize(
    ("rules", "policy", "port"),
    [
        ((), "drop", 12001),
        (("tcp dport 12001 drop",), "accept", 12001),
        (("tcp dport 12001 reject with tcp reset",), "accept", 12001),
        (("tcp dport { 12001, 15000-16000 } accept",), "drop", 16001),
        (("tcp dport 15683 drop",), "accept", 15683),
        (("ip saddr 203.0.113.0/24 accept",), "drop", 12001),
        (("ip saddr 198.18.0.0/24 tcp dport 12001 drop",), "accept", 12001),
        (('iifname "eth0" meta l4proto tcp drop',), "accept", 12001),
        (("ct state new tcp dport >= 1 accept", "ct state new drop"), "accept", None),
        (("limit rate 5/second", "drop"), "accept", 12001),
    ],
)
def test_a_filter_that_drops_one_of_them_is_named(bench, nft, rules, policy, port):
    finding = judged(bench, nft(*rules, policy=policy))

    if port is None:
        assert finding.status == "UNKNOWN"
    else:
        assert finding.status == "FAIL"
        assert finding.observed == f"chain inet t in drops TCP {port} of eth0"


def test_jumps_sets_and_returns_are_followed(bench, nft):
    more = """set open { type inet_service; flags interval; elements = { 12001 } }
        chain more { tcp dport @open return; drop; }"""

    dropped = judged(bench, nft("jump more", more=more))

    assert dropped.status == "FAIL"
    assert "drops TCP 15000" in dropped.observed


def test_a_chain_that_returns_goes_on_where_it_was_called(bench, nft):
    more = "chain more { tcp dport 12001-17000 return; drop; }"

    assert judged(bench, nft("jump more", more=more)).status == "PASS"
    assert judged(bench, nft("jump more", "drop", more=more)).status == "FAIL"
    assert judged(bench, nft("goto more", "drop", more=more)).status == "PASS"


@pytest.mark.parametrize(
    "rule",
    [
        "ip saddr 198.18.0.7 drop",
        "tcp flags & (fin|syn|rst|ack) == syn drop",
        "meta mark 7 drop",
        "tcp sport 1024-65535 drop",
        "ct count over 20 drop",
    ],
)
def test_what_may_drop_some_of_them_is_unknown(bench, nft, rule):
    finding = judged(bench, nft(rule))

    assert finding.status == "UNKNOWN"
    assert "chain inet t in may drop TCP 12001 of eth0" in finding.observed


def test_other_hooks_and_devices_do_not_matter(bench, nft):
    forward = "type filter hook forward"

    assert judged(bench, nft("drop", hook=forward)).status == "PASS"


def test_peers_behind_a_router_may_come_from_anywhere(bench, nft):
    (address,) = LINK["addr_info"]
    link = {**LINK, "addr_info": [{**address, "prefixlen": 31}]}
    told = nft("ip saddr 198.18.0.0/16 accept", policy="drop")

    assert judged(bench, told, link=link).status == "UNKNOWN"


def test_iptables_of_old_is_not_in_it_so_nothing_passes(bench, nft):
    modules = "iptable_filter 16384 1 - Live 0x0\n"

    assert judged(bench, nft(), modules=modules).status == "UNKNOWN"
    assert judged(bench, nft("drop"), modules=modules).status == "FAIL"


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (None, "SKIP"),
        ((127, "", "not found"), "UNKNOWN"),
        ((1, "", "Operation not permitted (you must be root)"), "UNKNOWN"),
        ('{"nftables": []}', "PASS"),
        ('{"nftables": [{"rule": 7}]}', "UNKNOWN"),
        ('{"nftables": [{"rule"', "UNKNOWN"),
        ("[]", "UNKNOWN"),
    ],
)
def test_what_was_not_read_is_told_apart(bench, told, status):
    assert judged(bench, told).status == status


CLIENT = """
import socket, sys
for line in sys.stdin:
    wire = socket.socket()
    wire.settimeout(0.7)
    try:
        wire.connect(("198.18.0.2", int(line)))
    except ConnectionRefusedError:
        print("accept", flush=True)
    except TimeoutError:
        print("drop", flush=True)
    wire.close()
"""
MATCHES = (
    "tcp dport 12001",
    "tcp dport { 22, 15000-16000 }",
    "tcp dport 15000-17000",
    "tcp dport != 12001",
    'iifname "eth0"',
    'iifname "eth1"',
    "ip saddr 198.18.0.0/24",
    "ip saddr 203.0.113.0/24",
    "ip daddr 198.18.0.2",
    "ct state new",
    "ct state established,related",
    "udp dport 12001",
    "meta l4proto tcp",
    "meta nfproto ipv6",
    "tcp dport @some",
)
VERDICTS = ("accept", "drop", "return", "jump sub", "goto sub", "counter")


def rules_of(rng, verdicts):
    return [
        " ".join([*rng.sample(MATCHES, rng.choice((0, 1, 1, 2))), rng.choice(verdicts)])
        for _ in range(rng.choice((1, 2, 3, 4)))
    ]


def test_the_kernel_does_what_is_predicted_of_random_rulesets(namespace):
    if shutil.which("nft") is None:
        pytest.skip("needs nft: apt install nftables")
    here, there = namespace(), namespace()
    there.ip("link add eth0 type veth peer name far")
    there.ip(f"link set far netns {here._holder.pid}")
    for space, name, address in ((there, "eth0", 2), (here, "far", 1)):
        space.ip(f"addr add 198.18.0.{address}/24 dev {name}")
        space.ip(f"link set {name} up")
    rng = random.Random(4)
    net = f"--net=/proc/{here._holder.pid}/ns/net"
    seen = Counter()
    with subprocess.Popen(
        ["nsenter", net, sys.executable, "-c", CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        for _ in range(40):
            sub = "\n".join(rules_of(rng, VERDICTS[:3]))
            base = "\n".join(rules_of(rng, VERDICTS))
            text = f"""flush ruleset
            table inet t {{
            set some {{ type inet_service; elements = {{ 12001, 16001 }} }}
            chain sub {{ {sub}
            }}
            chain in {{
            type filter hook input priority 0; policy {rng.choice(("accept", "drop"))};
            {base}
            }}
            }}"""
            if there.run("nft", "-f", "-", text=text, check=False).returncode:
                continue  # nft refuses rules that contradict themselves
            told = parse_ruleset(
                json.loads(there.run("nft", "-j", "list", "ruleset").stdout)
            )
            for port in (12001, 15683, 16001):
                packet = Packet(
                    netdev="eth0",
                    target="198.18.0.2",
                    network=ip_network("198.18.0.0/24"),
                    port=port,
                )
                client.stdin.write(f"{port}\n")
                client.stdin.flush()
                answer = client.stdout.readline().strip()
                assert outcomes(told, packet) == {"inet t in": {answer}}, text
                seen[answer] += 1
        client.stdin.close()

    assert min(seen["accept"], seen["drop"]) > 20
