"""`dcb -j pfc|app|ets show dev NETDEV`: the kernel's own view of QoS.

Traps: `prio_pfc` is a list of eight booleans, by priority; in `dscp_prio` each pair is
followed by a third element " " in current iproute2. A device without DCB: rc 1,
"Attribute read: Operation not supported", and a blank line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

PRIORITIES = 8
NOT_SUPPORTED = "Operation not supported"


@derived
def dcb_pfc(facts: Facts, netdev: str) -> tuple[int, ...]:
    """The priorities with PFC."""
    return parse_pfc(facts.result("dcb", "pfc", netdev).json())


@derived
def dcb_dscp(facts: Facts, netdev: str) -> dict[int, int]:
    """DSCP to priority, as far as it was set; empty where nothing was."""
    return parse_dscp(facts.result("dcb", "app", netdev).json())


@derived
def dcb_willing(facts: Facts, netdev: str) -> bool:
    """Whether the NIC lets the switch overrule its settings."""
    return parse_willing(facts.result("dcb", "ets", netdev).json())


def dcb_netdevs(facts: Facts) -> tuple[str, ...]:
    """NICs that the tool was asked about."""
    every = {r.reading.words[1] for r in facts.find("dcb") if len(r.reading.words) > 1}
    return tuple(sorted(every))


def parse_pfc(loaded: Any) -> tuple[int, ...]:
    """The priorities whose flag is set."""
    flags = _mapping(loaded, "dcb pfc").get("prio_pfc")
    if not isinstance(flags, list) or len(flags) != PRIORITIES:
        raise Garbled("dcb pfc", "no eight flags in prio_pfc")
    return tuple(at for at, flag in enumerate(flags) if flag is True or flag == "on")


def parse_dscp(loaded: Any) -> dict[int, int]:
    """DSCP to priority, of the first two elements of every pair."""
    rows = _mapping(loaded, "dcb app").get("dscp_prio", [])
    if not isinstance(rows, list):
        raise Garbled("dcb app", "dscp_prio is no list")
    try:
        return {int(row[0]): int(row[1]) for row in rows}
    except (TypeError, ValueError, IndexError, KeyError):
        raise Garbled("dcb app", "dscp_prio holds no pairs of numbers") from None


def parse_willing(loaded: Any) -> bool:
    """The flag `willing`, a boolean or on/off."""
    value = _mapping(loaded, "dcb ets").get("willing")
    if value not in {True, False, "on", "off"}:
        raise Garbled("dcb ets", "it does not say whether it is willing")
    return value in {True, "on"}


def _mapping(loaded: Any, what: str) -> Mapping[str, Any]:
    found = loaded[0] if isinstance(loaded, list) and len(loaded) == 1 else loaded
    if not isinstance(found, Mapping):
        raise Garbled(what, "no object")
    return found
