"""`nvme smart-log /dev/nvmeN -o json`: how an NVMe disk judges itself.

Numbers; with `-v` newer versions print `critical_warning` as an object with its value.
Counters of 128 bits are numbers, or text where JSON has no such numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from checks.facts import Result

NVME = "/sys/class/nvme"
_WARNINGS = (
    "little spare left",
    "temperature out of bounds",
    "reliability degraded",
    "read-only",
    "volatile memory backup failed",
    "persistent memory region read-only",
)
"""Bits of the critical warning, from the lowest: NVM Express base, Get Log Page 02h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of one disk; `used_percent` is of the life that its maker promises."""

    critical: int
    used_percent: int
    media_errors: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the critical warning means."""
        named = [text for at, text in enumerate(_WARNINGS) if self.critical >> at & 1]
        unnamed = self.critical >> len(_WARNINGS)
        return (*named, *([f"critical_warning {self.critical:#x}"] if unnamed else []))


def parse_smart_log(loaded: Any, source: str) -> Health:
    """The health, from the JSON as it was loaded."""
    if not isinstance(loaded, Mapping):
        raise Garbled(source, "no object")
    used = "percent_used" if "percent_used" in loaded else "percentage_used"
    return Health(
        critical=_number(loaded.get("critical_warning"), source, "critical_warning"),
        used_percent=_number(loaded.get(used), source, used),
        media_errors=_number(loaded.get("media_errors"), source, "media_errors"),
    )


@derived
def disks(facts: Facts) -> tuple[str, ...]:
    """Controllers of NVMe on this node's own bus, by name; Unread if nobody looked."""
    every = [name for name in facts.names(NVME) if re.fullmatch(r"nvme\d+", name)]
    far = {
        path.split("/")[-2]
        for path in facts.matching(f"{NVME}/*/transport")
        if facts.line(path) not in {"pcie", ""}
    }
    return tuple(sorted(set(every) - far, key=lambda name: (len(name), name)))


def smart_log(facts: Facts, disk: str) -> Result:
    """The log as it was asked for; Unread where it was not."""
    return facts.result("nvme", "smart-log", f"/dev/{disk}")


def _number(value: Any, source: str, name: str) -> int:
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Garbled(source, f"no {name}")
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise Garbled(source, f"{name} is no number: {value!r:.40}") from None
