"""`ethtool -i NETDEV`: driver, version, firmware.

There is no JSON of this operation (`--json -i` ends with rc 1). The version of a driver
of the kernel is the kernel's release. A bond says `driver: bonding` and its ABI number
as firmware, a representor `mlx5e_rep`; both tell nothing of the NIC. More lines always
follow the version, so a version without an end of line was cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

SOURCE = "ethtool -i"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What drives a network device."""

    name: str
    version: str
    firmware: str
    bus: str


@lru_cache(maxsize=1024)
def parse_driver(text: str) -> Driver:
    """The first lines; a device without a version has an empty one."""
    fields: dict[str, str] = {}
    for line in text[: text.rfind("\n") + 1].splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    if not fields.get("driver") or "version" not in fields:
        raise Garbled(SOURCE, "no driver or no version in it")
    return Driver(
        name=fields["driver"],
        version=fields["version"],
        firmware=fields.get("firmware-version", ""),
        bus=fields.get("bus-info", ""),
    )


@derived
def ethtool_driver(facts: Facts, netdev: str) -> Driver:
    """The driver of a network device."""
    return parse_driver(facts.result("ethtool", "driver", netdev).text())


def described_netdevs(facts: Facts) -> tuple[str, ...]:
    """Network devices whose driver was asked for."""
    every = {
        result.reading.words[1]
        for result in facts.find("ethtool", "driver")
        if len(result.reading.words) > 1
    }
    return tuple(sorted(every))
