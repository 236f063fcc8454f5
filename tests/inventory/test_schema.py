"""What may be said about hosts, whoever says it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from inventory import HostEntry, Inventory, InventoryError, Plane, Rail


def host(name: str = "a", **fields: object) -> HostEntry:
    return HostEntry.model_validate({"name": name, "address": name, **fields})


def test_a_host_is_safe_unless_told_otherwise() -> None:
    entry = host()

    assert (entry.chaos, entry.manage, entry.sudo) == ("refused", False, False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "not opted in"),
        ({"chaos": "allowed"}, "names no environment"),
        ({"chaos": "allowed", "environment": "Production"}, "protected"),
        ({"chaos": "allowed", "environment": "x", "groups": ["prod"]}, "protected"),
        ({"chaos": "allowed", "environment": "staging"}, ""),
    ],
)
def test_a_host_may_be_broken_only_when_everything_speaks_for_it(
    fields: dict[str, object], words: str
) -> None:
    entry = host(**fields)
    reason = Inventory(hosts=(entry,)).why_not(entry)

    assert words in reason
    assert bool(reason) == bool(words)


def test_a_protected_inventory_protects_hosts_that_call_themselves_otherwise() -> None:
    entry = host(chaos="allowed", environment="staging")
    inventory = Inventory(hosts=(entry,), environment="live")

    assert "live" in inventory.why_not(entry)


def test_a_prefix_says_the_subnet() -> None:
    rail = Rail.model_validate({"name": "r", "device": "e", "address": "10.0.1.2/22"})

    assert (rail.address, rail.subnet) == ("10.0.1.2", "10.0.0.0/22")


def test_bdf_and_mac_are_compared_in_one_spelling() -> None:
    rail = Rail(name="r", bdf="0000:3B:00.0", mac="AA:BB:CC:00:11:22")

    assert (rail.bdf, rail.mac) == ("0000:3b:00.0", "aa:bb:cc:00:11:22")


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "2001:db8::1", "10.0.0.1", "n.a-b"]
)
def test_addresses_and_names_are_taken(address: str) -> None:
    assert host(address=address).address == address


@pytest.mark.parametrize(
    "address", ["", "-x", "a b", "a;b", "fe80::1%$(id)", "a..b", "a/b", "10.0.0.1\n"]
)
def test_what_could_be_more_than_an_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError):
        host(address=address)


def test_hosts_that_share_a_machine_or_an_address_are_refused() -> None:
    one = host("a", control=Plane(address="10.0.0.1"))
    two = host("b", control=Plane(address="10.0.0.1"))

    with pytest.raises(ValidationError, match=r"a and b share the address 10\.0\.0\.1"):
        Inventory(hosts=(one, two))


def test_one_machine_behind_two_ports_is_two_hosts() -> None:
    hosts = (host("a", address="h", port=1), host("b", address="h", port=2))

    assert len(Inventory(hosts=hosts).hosts) == 2


def test_a_limited_inventory_knows_only_the_chosen() -> None:
    inventory = Inventory(
        hosts=(host("a", roles=["store"]), host("b", roles=["store"])),
        groups={"g": ("a", "b"), "h": ("b",)},
    )
    limited = inventory.limit("g,!h")

    assert [entry.name for entry in limited.hosts] == ["a"]
    assert limited.groups == {"g": ("a",), "h": ()}
    assert [entry.name for entry in limited.with_role("store")] == ["a"]


def test_a_host_that_is_not_there_is_an_error_of_the_operator() -> None:
    with pytest.raises(InventoryError, match="there is no host z"):
        Inventory(hosts=(host(),)).host("z")


def test_root_is_reached_through_sudo_only_where_the_host_says_so() -> None:
    assert host().elevated(["id"]) == ["id"]
    assert host(sudo=True).elevated(["id"]) == ["sudo", "-n", "--", "id"]
