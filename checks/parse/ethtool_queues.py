"""`ethtool -g` and `-l`: rings and channels of a NIC, as they are set now.

Two sections of the same names, `Pre-set maximums:` and `Current hardware settings:`;
a NIC without a kind says `n/a`, older versions leave it out or say 0. A value without
the end of its line was cut off. A driver that lacks the operation ends with an error.
"""

from __future__ import annotations

import re

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

_NOW = re.compile(r"^Current hardware settings:[ \t]*\n", re.MULTILINE)
_VALUE = re.compile(r"^([A-Z]\w*(?: \w+)*):[ \t]*(\d+|n/a)[ \t]*\n", re.MULTILINE)


def parse_current(text: str, source: str) -> dict[str, int]:
    """What is set now, by name; what the NIC does not have is left out."""
    parts = _NOW.split(text, maxsplit=1)
    if len(parts) != 2:
        raise Garbled(source, "no current settings in it")
    found = dict(_VALUE.findall(parts[1]))
    return {name: int(value) for name, value in found.items() if value != "n/a"}


@derived
def rings(facts: Facts, netdev: str) -> dict[str, int]:
    """RX and TX, in descriptors."""
    source = f"ethtool -g {netdev}"
    found = parse_current(facts.result("ethtool", "rings", netdev).text(), source)
    if not {"RX", "TX"} <= set(found):
        raise Garbled(source, "not both of RX and TX")
    return {name: found[name] for name in ("RX", "TX")}


@derived
def channels(facts: Facts, netdev: str) -> dict[str, int]:
    """Queues by kind; `Combined` is the last one that is printed."""
    source = f"ethtool -l {netdev}"
    found = parse_current(facts.result("ethtool", "channels", netdev).text(), source)
    if "Combined" not in found:
        raise Garbled(source, "no combined channels")
    return {name: found[name] for name in ("RX", "TX", "Combined") if found.get(name)}
