"""Whether the addresses and routes of a rail are there after a reboot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.nmcli import managed
from checks.rules.declare import NotHere, check
from checks.rules.subjects import each_rail

if TYPE_CHECKING:
    from checks.node import Node
    from checks.rails import Rail

_KEPT = "/etc/NetworkManager/system-connections"
_LOST = "/run/NetworkManager/system-connections"
_ELSEWHERE = (
    "/etc/netplan",
    "/etc/systemd/network",
    "/etc/network/interfaces.d",
    "/etc/sysconfig/network-scripts",
)


@check(
    "route-nm-managed",
    group="route",
    severity="W",
    why="what is configured by hand, or by a profile in /run, is lost at the next boot",
    fix=("nmcli connection modify PROFILE ... (persistent)", "or netplan apply"),
    source=("R09 DGX-Spark PR#40: NetworkManager profiles in /run",),
    needs=("nmcli -t -f DEVICE,STATE,CONNECTION d", _KEPT, _LOST, "/etc/netplan"),
    over=each_rail,
)
def nm_managed(node: Node, rail: Rail) -> Outcome:
    if not rail.netdev:
        raise Unread("missing", rail.name, "its network device is not known")
    wanted = "a profile that survives a reboot"
    try:
        every = managed(node.facts)
    except Unread as error:
        return _without(node.facts, error)
    known = every.get(rail.netdev)
    if known is None or not known.is_managed:
        return _unmanaged(node.facts, rail, wanted)
    if not known.connection:
        return bad(f"{rail.netdev} is {known.state} without a profile", wanted)
    return _profile(node.facts, rail, known.connection, wanted)


def _without(facts: Facts, error: Unread) -> Outcome:
    """Without NetworkManager something else has to hold the configuration."""
    if error.kind != "no tool":
        raise error
    places = _configured(facts)
    if not places:
        raise NotHere("no NetworkManager, and no other configuration was collected")
    return ok(f"configured in {', '.join(places)}")


def _configured(facts: Facts) -> list[str]:
    found = []
    for path in _ELSEWHERE:
        try:
            if facts.names(path):
                found.append(path)
        except Unread:
            continue
    return found


def _unmanaged(facts: Facts, rail: Rail, wanted: str) -> Outcome:
    places = _configured(facts)
    if places:
        told = f"not by NetworkManager; configured in {', '.join(places)}"
        return ok(told, wanted)
    for path in ("/etc/netplan", "/etc/systemd/network"):
        facts.names(path)  # Unread: nobody looked, so nothing is known to be missing
    return bad(f"{rail.netdev} is managed by nothing that is known", wanted)


def _profile(facts: Facts, rail: Rail, name: str, wanted: str) -> Outcome:
    if _has(facts, _KEPT, name):
        return ok(f"profile {name} in {_KEPT}", wanted)
    if not _has(facts, _LOST, name):
        raise Unread("missing", _KEPT, f"no file of profile {name} was seen")
    if name.startswith("netplan-") and facts.names("/etc/netplan"):
        return ok(f"profile {name}, made from /etc/netplan", wanted)
    return bad(f"profile {name} of {rail.netdev} is in /run only", wanted)


def _has(facts: Facts, directory: str, name: str) -> bool:
    files = facts.names(directory)
    return bool({name, f"{name}.nmconnection"} & set(files))
