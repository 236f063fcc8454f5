"""`mlxreg -d BDF --reg_name NAME --get`: fields of a register of the NIC.

A heading, a row of `=`, then `field_name  | 0x00000001` rows. Reading registers is
opt-in; the exact heading differs by version, so only rows with a value count. A value
has eight digits; one with fewer is cut off.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ROW = re.compile(r"^\s*(\w+)\s*\|\s*(0x[0-9a-fA-F]{8})\s*$", re.MULTILINE)


def register(facts: Facts, devices: Iterable[str], name: str) -> Mapping[str, int]:
    """Fields of one register of a NIC; Unread `missing` where nobody asked for it.

    Args:
        devices: how the NIC may be called: PCI address, RDMA device, network device.
    """
    every = [
        result
        for device in sorted(devices)
        for result in facts.find("mlxreg", device)
        if result.reading.option("--reg_name") == name
    ]
    if not every:
        raise Unread("missing", f"mlxreg --reg_name {name}", "not collected")
    good = [r for r in every if r.rc == 0 and not (r.timed_out or r.truncated)]
    return parse_register((good or every)[0].text(), name)


def register_devices(facts: Facts) -> tuple[str, ...]:
    """NICs that the tool was asked about."""
    every = {r.reading.words[0] for r in facts.find("mlxreg") if r.reading.words}
    return tuple(sorted(every))


def parse_register(text: str, name: str) -> dict[str, int]:
    """Values by field."""
    found = {field: int(value, 16) for field, value in _ROW.findall(text)}
    if not found:
        raise Garbled(f"mlxreg --reg_name {name}", "no field in it")
    return found
