"""/proc/sys/net/ipv4/conf: settings that hold for a device, or for all of them.

For rp_filter, arp_ignore and arp_announce the greater of `all` and the device's own
value is in effect (kernel: Documentation/networking/ip-sysctl.rst).
"""

from __future__ import annotations

from checks.facts import Facts, Unread

BASE = "/proc/sys/net/ipv4/conf"


def effective(facts: Facts, netdev: str, leaf: str) -> int:
    """The value in effect; Unread unless both values are known."""
    return max(facts.number(f"{BASE}/{name}/{leaf}") for name in ("all", netdev))


def at_least(facts: Facts, netdev: str, leaf: str, wanted: int) -> bool:
    """Whether the value in effect reaches `wanted`; one of the two may suffice."""
    refused: Unread | None = None
    for name in ("all", netdev):
        try:
            if facts.number(f"{BASE}/{name}/{leaf}") >= wanted:
                return True
        except Unread as error:
            refused = error
    if refused is not None:
        raise refused
    return False


def configured(facts: Facts, leaf: str) -> tuple[str, ...]:
    """Devices whose own value of a setting was read, but for `all` and `default`."""
    paths = facts.matching(f"{BASE}/*/{leaf}")
    return tuple(
        name
        for name in (path.split("/")[-2] for path in paths)
        if name not in {"all", "default", "lo"}
    )
