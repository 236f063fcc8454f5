"""`ethtool --show-fec`, `-a` and `-S`: FEC, pause frames, counters of a NIC.

An operation that the driver lacks: rc 1 or 75, `netlink error: Operation not supported`
(with `--json` also `[ ]`). FEC names follow `Active FEC encoding:`. Pause fields stand
one a line, `RX:\t\toff`; the last one that is printed is `TX` (newer versions add the
negotiated ones below). Counters are `     name: number`.
"""

from __future__ import annotations

import re

from checks.facts import Facts, Result, derived
from checks.parse.garbled import Garbled

_FEC = re.compile(r"^Active FEC encodings?:[ \t]*(\S.*?)[ \t]*\n", re.MULTILINE)
_PAUSE = re.compile(r"^(Autonegotiate|RX|TX):[ \t]+(on|off)\s*$", re.MULTILINE)
_COUNTER = re.compile(r"^\s+([\w\[\]. -]+?):\s+(\d+)\s*\n", re.MULTILINE)


def parse_fec(text: str) -> str:
    """The encoding in use, e.g. `RS`."""
    found = _FEC.search(text)
    if found is None:
        raise Garbled("ethtool --show-fec", "no active encoding in it")
    return found[1]


def parse_pause(text: str) -> dict[str, bool]:
    """Autonegotiate, RX and TX."""
    found = {name: word == "on" for name, word in _PAUSE.findall(text)}
    if set(found) != {"Autonegotiate", "RX", "TX"}:
        raise Garbled("ethtool -a", "not all three of its fields")
    return found


def parse_statistics(text: str) -> dict[str, int]:
    """Counters by name, as far as their lines are whole."""
    found = {name: int(value) for name, value in _COUNTER.findall(text)}
    if not found:
        raise Garbled("ethtool -S", "no counter in it")
    return found


@derived
def active_fec(facts: Facts, netdev: str) -> str:
    return parse_fec(facts.result("ethtool", "fec", netdev).text())


@derived
def pause(facts: Facts, netdev: str) -> dict[str, bool]:
    return parse_pause(facts.result("ethtool", "pause", netdev).text())


@derived
def statistics(facts: Facts, netdev: str) -> tuple[dict[str, int], ...]:
    """Counters of every sample, oldest first."""
    samples = facts.samples("ethtool", "statistics", netdev)
    return tuple(parse_statistics(each.text()) for each in samples)


def unsupported(result: Result) -> bool:
    """The driver has no such operation."""
    return "not supported" in result.stderr
