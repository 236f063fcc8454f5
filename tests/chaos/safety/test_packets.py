"""The interpreter of nft scripts: what a rule may hit, and what it does not know."""

from __future__ import annotations

import pytest

from chaos.safety.packets import Flow, Ruleset, Unknown

TABLE = "inet moonquake_t"


def rules(*texts: str, hook: str = "input", names=None) -> Ruleset:
    found = Ruleset(names=names or {})
    found.read(
        f"add table {TABLE}\n"
        f"add set {TABLE} on {{ type ifname . ipv4_addr; flags timeout; }}\n"
        f"add chain {TABLE} c"
        f" {{ type filter hook {hook} priority 0; policy accept; }}\n"
        + "".join(f"add rule {TABLE} c {text}\n" for text in texts)
    )
    return found


def flow(**fields) -> Flow:
    given = {"label": "it", "direction": "in", **fields}
    return Flow(**given)


SSH = flow(protocol="tcp", local_port=22, remote="10.0.0.9", device="eth0")


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("drop", True),
        ("counter drop", True),
        ("counter name hit_in drop", True),
        ("tcp dport 22 drop", True),
        ("tcp dport 23 drop", False),
        ("tcp sport 22 drop", True),  # it may come from there
        ("udp dport 22 drop", False),
        ("tcp dport { 21, 22 } drop", True),
        ("tcp dport 20-30 drop", True),
        ("ip saddr 10.0.0.9 drop", True),
        ("ip saddr 10.0.0.8 drop", False),
        ("ip saddr 10.0.0.0/24 drop", True),
        ("ip saddr 10.0.1.0/24 drop", False),
        ("ip daddr 10.0.0.9 drop", True),  # ours may be that
        ("ip6 saddr ::ffff:10.0.0.9 drop", True),
        ("ip6 saddr ::1 drop", False),
        ('iifname "eth0" drop', True),
        ('iifname "eth1" drop', False),
        ('iifname "eth*" drop', True),
        ('oifname "eth0" drop', False),
        ("meta l4proto { tcp, udp } drop", True),
        ("meta l4proto icmpv6 drop", False),
        ("ip saddr 10.0.0.9 tcp dport 23 drop", False),
        ("ip saddr 10.0.0.9 tcp dport 22 counter name x", False),
        ("iifname . ip saddr @on drop", False),
        ("ip saddr . tcp dport { 10.0.0.9 . 22, 10.0.0.1 . 1 } drop", True),
        ("ip saddr . tcp dport { 10.0.0.9 . 23, 10.0.0.1 . 22 } drop", False),
    ],
)
def test_a_rule_hits_what_it_may_match(text, hit) -> None:
    assert bool(rules(text).hits(SSH)) is hit


def test_elements_make_a_rule_hit() -> None:
    found = rules("iifname . ip saddr @on drop")
    found.read(f'add element {TABLE} on {{ "eth0" . 10.0.0.9 timeout 5s }}\n')

    assert found.hits(SSH) == "moonquake_t c"
    assert not found.hits(flow(device="eth1"))


def test_only_a_certain_accept_saves() -> None:
    assert not rules("ip saddr 10.0.0.9 accept", "drop").hits(SSH)
    assert rules("ip daddr 10.0.0.1 accept", "drop").hits(SSH)
    assert rules("limit rate over 9 bytes/second accept", "drop").hits(SSH)
    assert rules("drop", "accept").hits(SSH)


def test_a_chain_of_the_other_direction_does_not_hit() -> None:
    assert not rules("drop", hook="output").hits(SSH)
    assert rules("drop", hook="prerouting").hits(SSH)


def test_another_name_of_a_device_is_the_device() -> None:
    names = {"eth0": "eth0", "oob": "eth0"}

    assert rules('iifname "oob" drop', names=names).hits(SSH)
    assert rules('iifname "oo*" drop', names=names).hits(SSH)
    with pytest.raises(Unknown, match="device eth9"):
        rules('iifname "eth9" drop', names=names).hits(SSH)


@pytest.mark.parametrize(
    "text",
    [
        "ip saddr != 10.0.0.1 drop",
        "jump other",
        "goto other",
        "queue num 1",
        "dup to 10.0.0.1",
        "ip saddr @nowhere drop",
        "ip saddr host.example drop",
        "tcp dport http-alt drop",
        "tcp flags syn drop",
        "ip saddr",
        "ip saddr { 10.0.0.1",
        "limit rate over 0 bytes/second drop",
        "limit rate over many bytes/second drop",
        "ip saddr . tcp dport { 10.0.0.9 } drop",
        "meta mark set 1 accept",
    ],
)
def test_what_it_does_not_know_is_unknown(text) -> None:
    with pytest.raises(Unknown):
        rules(text).hits(SSH)


@pytest.mark.parametrize(
    "script",
    [
        "flush ruleset",
        "delete table inet filter",
        "add table ip moonquake_t",
        f"add set {TABLE} s {{ type ipv4_addr; elements = {{ 10.0.0.1 }}; }}",
        f"add chain {TABLE} c {{ type nat hook input priority 0; policy accept; }}",
        f"add chain {TABLE} c {{ type filter hook egress priority 0; policy accept; }}",
        f"add chain {TABLE} c {{ type filter hook input priority 0; policy drop; }}",
        f"add chain {TABLE} c",
        f"insert rule {TABLE} c drop",
        f"add rule {TABLE} nowhere drop",
        "table inet moonquake_t { chain c { drop } }",
    ],
)
def test_a_script_that_is_not_of_our_making_is_unknown(script) -> None:
    with pytest.raises(Unknown):
        Ruleset().read(script + "\n")


@pytest.mark.parametrize(
    "line",
    [
        f"add table {TABLE}",
        f"add counter {TABLE} x",
        f"add set {TABLE} s {{ type ipv4_addr; flags timeout; }}",
        f"add element {TABLE} on {{ 10.0.0.1 timeout 5s }}",
        f"add rule {TABLE} c drop",
        f"add rule {TABLE} c tcp dport 22 accept",
        f"add rule {TABLE} c counter name x",
    ],
)
@pytest.mark.parametrize("tail", ["; flush ruleset", "# x", "\\", "; drop", "{ }"])
def test_nothing_hides_behind_a_command(line, tail) -> None:
    with pytest.raises(Unknown):
        rules(f"accept\n{line} {tail}")


def test_comments_and_continuations_are_unknown() -> None:
    with pytest.raises(Unknown):
        rules("ip saddr 10.0.0.1 # accept")
    with pytest.raises(Unknown):
        Ruleset().read("add table inet moonquake_t; flush ruleset\n")
