"""The tables of faults as text: what they match, spare, count, and how they end."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from chaos.errors import UsageError
from chaos.faults import nft

SPARE = nft.Spare(peers=("198.19.8.1", "fd00::1"), ports=(22, 9100))


def table(*matches: nft.Match, effect=nft.DROP, ttl_s=30.0) -> nft.Table:
    return nft.Table(
        name="moonquake_r_f", matches=matches, effect=effect, ttl_s=ttl_s, spare=SPARE
    )


RAIL = nft.Match(device="rail0")
SOCKET = nft.Match(device="rail0", local="10.0.0.1", local_port=7100)
PAIR = nft.Match(device="ctl0", remote="10.0.0.2", remote_port=7000)
SIX = nft.Match(device="rail0", local="fd00::7", local_port=7100)


def lines(one: nft.Table) -> list[str]:
    return nft.create(one).splitlines()


def test_the_first_rules_of_each_chain_spare_management_and_the_last_acts() -> None:
    for chain in ("input", "output"):
        rules = [line for line in lines(table(RAIL)) if f" {chain} " in line]
        rules = [line for line in rules if line.startswith("add rule")]

        assert all(rule.endswith(" accept") for rule in rules[:-1])
        assert rules[-1].endswith(" drop")
        assert any("198.19.8.1" in rule for rule in rules)
        assert any("fd00::1" in rule for rule in rules)
        assert any("{ 22, 9100 }" in rule for rule in rules)


def test_a_rule_matches_only_what_stands_in_a_set_with_a_timeout() -> None:
    text = nft.create(table(SOCKET, ttl_s=1.5))

    assert "flags timeout" in text
    assert '{ "rail0" . 10.0.0.1 . 7100 timeout 1500ms }' in text
    assert "iifname . ip daddr . tcp dport @on_0 counter name hit_in drop" in text
    assert "oifname . ip saddr . tcp sport @on_0 counter name hit_out drop" in text


def test_matches_of_different_shape_or_family_have_sets_of_their_own() -> None:
    text = nft.create(table(SOCKET, PAIR, SIX))

    assert "type ifname . ipv4_addr . inet_service;" in text
    assert "type ifname . ipv6_addr . inet_service;" in text
    assert "iifname . ip saddr . tcp sport @on_1" in text
    assert "iifname . ip6 daddr . tcp dport @on_2" in text


def test_matches_of_one_shape_share_a_set_but_not_a_rate() -> None:
    other = nft.Match(device="rail0", local="10.0.0.1", local_port=7101)
    rate = nft.Effect(bytes_per_s=500_000)

    assert nft.create(table(SOCKET, other)).count("add set") == 1
    assert nft.create(table(SOCKET, other, effect=rate)).count("add set") == 2


def test_a_renewal_survives_an_element_that_has_expired() -> None:
    text = nft.renew(table(RAIL)).splitlines()

    assert [line.split()[0] for line in text] == ["add", "delete", "add"]
    assert "timeout" not in text[0]
    assert "timeout 30000ms" in text[2]


def test_deleting_needs_no_table_to_be_there() -> None:
    assert nft.delete("moonquake_x").splitlines() == [
        "add table inet moonquake_x",
        "delete table inet moonquake_x",
    ]


@pytest.mark.parametrize("name", ["mgm*", 'a" drop', "a b", "", "a" * 16, "a;b", "a\n"])
def test_a_pattern_or_hostile_text_is_no_device(name) -> None:
    with pytest.raises(UsageError, match="no name of a network device"):
        nft.device_name(name)


def test_a_match_of_everything_is_refused() -> None:
    with pytest.raises(UsageError, match="is everything"):
        nft.create(table(nft.Match()))
    with pytest.raises(UsageError, match="nothing to act on"):
        nft.create(table())


def test_addresses_of_two_families_are_no_match() -> None:
    with pytest.raises(UsageError, match="two families"):
        nft.create(table(nft.Match(local="10.0.0.1", remote="fd00::1")))


@pytest.mark.parametrize("address", ["10.0.0.1; drop", "0.0.0.0/0", "x", "10.0.0.1 }"])
def test_an_address_is_an_address(address) -> None:
    with pytest.raises(ValueError, match="address"):
        nft.create(table(nft.Match(remote=address)))


def test_a_table_is_named_after_run_and_fault_in_letters_that_nft_takes() -> None:
    name = nft.table_name("r-1.x", "loss-2;drop")

    assert name == "moonquake_r_1_x_loss_2_drop"


def test_a_bucket_passes_the_largest_segment_of_the_kernel() -> None:
    text = nft.create(table(SOCKET, effect=nft.Effect(bytes_per_s=1000)))

    assert f"burst {128 << 10} bytes" in text


def test_counters_of_both_ways_are_summed_and_others_ignored() -> None:
    text = (
        '{"nftables": [{"metainfo": {}},'
        '{"counter": {"name": "hit_in", "packets": 3, "bytes": 100}},'
        '{"counter": {"name": "hit_out", "packets": 4, "bytes": 50}},'
        '{"counter": {"name": "theirs", "packets": 9, "bytes": 9}}]}'
    )

    assert nft.read_counters(text) == (7, 150)


EFFECTS = {
    "drop": nft.DROP,
    "reset": nft.RESET,
    "count": nft.COUNT,
    "rate": nft.Effect(bytes_per_s=500_000),
    "loss": nft.Effect(share=0.125, directions=("in",)),
}


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("unshare"),
    reason="needs root, nft and unshare: run as root with nftables installed",
)
@pytest.mark.parametrize("effect", EFFECTS)
def test_the_kernel_takes_what_is_built(effect) -> None:
    one = table(RAIL, SOCKET, PAIR, SIX, effect=EFFECTS[effect])
    twice = nft.create(one) + nft.renew(one) + nft.renew(one)
    script = twice + nft.delete(one.name) + nft.delete(one.name)
    done = subprocess.run(
        ["unshare", "--net", "nft", "-f", "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
