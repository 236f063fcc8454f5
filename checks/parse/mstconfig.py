"""`mstconfig -d BDF -e q` (`mlxconfig` is the same): settings kept in the NIC.

With `-e` a row has three values: default, current, after the next boot; `*` marks rows
whose values differ. Without `-e` there is only the last. Values are words with a number
in parentheses (`ETH(2)`, `per_mkey(0)`) or plain numbers; arrays are `Array[0..7]`. A
last row without an end of line is taken only where its last value is seen to be whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "mstconfig -e q"
_ROW = re.compile(r"^\*?\s*([A-Z][A-Z0-9_]+(?:\[\d+\])?)\s+(\S.*?)\s*$")
_ONE_COLUMN = re.compile(r"^Configurations:\s+Next Boot\s*$", re.MULTILINE)
_READ_ONLY = re.compile(r"\s*\((?:RO|read only)\)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting; `default` and `current` are None where the query was without -e."""

    name: str
    default: str | None
    current: str | None
    after_boot: str


@lru_cache(maxsize=1024)
def parse_mstconfig(text: str) -> Mapping[str, Setting]:
    """Settings by name."""
    found = {}
    columns = 1 if _ONE_COLUMN.search(text) else 3
    for line in _whole_lines(text):
        row = _ROW.match(_READ_ONLY.sub(" ", line))
        if row:
            setting = _setting(row[1], row[2].split(), columns)
            if setting is not None:
                found[row[1]] = setting
    if not found:
        raise Garbled(SOURCE, "no setting in it")
    return found


@derived
def nic_settings(facts: Facts, bdf: str) -> Mapping[str, Setting]:
    """The settings of the NIC at a PCI address."""
    return parse_mstconfig(facts.result("mstconfig", bdf).text())


def asked_addresses(facts: Facts) -> tuple[str, ...]:
    """PCI addresses of the NICs that the tool was asked about."""
    every = {
        r.reading.words[0] for r in facts.find("mstconfig") if len(r.reading.words) > 0
    }
    return tuple(sorted(every))


def _whole_lines(text: str) -> list[str]:
    lines = text.splitlines()
    if text.endswith("\n") or not lines or lines[-1].rstrip().endswith(")"):
        return lines
    return lines[:-1]


def _setting(name: str, values: list[str], columns: int) -> Setting | None:
    if len(values) != columns:
        return None
    if columns == 1:
        return Setting(name=name, default=None, current=None, after_boot=values[0])
    default, current, after = values
    return Setting(name=name, default=default, current=current, after_boot=after)
