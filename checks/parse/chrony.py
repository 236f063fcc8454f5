"""`chronyc -c tracking`, `timedatectl`: how far the clock is off, and who keeps it.

`chronyc -c tracking` is one line of fourteen comma-separated fields; the fifth is the
offset of the system clock in seconds, the last the leap status. Without a daemon it
writes `506 Cannot talk to daemon` to *stdout*, rc 1. `timedatectl show` says whether
the kernel counts the clock as synchronised, by whomever, and not how far it is off.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "chronyc -c tracking"
FIELDS = 14
UNSYNCHRONISED = "Not synchronised"
_LEAPS = frozenset({"Normal", "Insert second", "Delete second", UNSYNCHRONISED})
_OFFSET = re.compile(r"^\s*Offset: ([+-]?[\d.]+)(us|ms|s|min)\s*$", re.MULTILINE)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """What chronyd says of the clock; `offset_s` is its distance from true time."""

    source: str
    stratum: int
    offset_s: float
    leap: str

    @property
    def is_synchronised(self) -> bool:
        return self.leap != UNSYNCHRONISED


def parse_tracking(text: str) -> Tracking:
    """One line of fourteen fields, whole."""
    lines = text.strip().splitlines()
    fields = lines[0].split(",") if len(lines) == 1 else []
    if len(fields) != FIELDS or fields[-1] not in _LEAPS:
        raise Garbled(SOURCE, f"not the {FIELDS} fields of a whole answer")
    try:
        stratum, offset = int(fields[2]), float(fields[4])
    except ValueError:
        raise Garbled(SOURCE, f"no offset: {fields[4]!r}") from None
    if not math.isfinite(offset):
        raise Garbled(SOURCE, f"no offset: {fields[4]!r}")
    return Tracking(
        source=fields[1] or fields[0],
        stratum=stratum,
        offset_s=offset,
        leap=fields[-1],
    )


@derived
def tracking(facts: Facts) -> Tracking:
    """What the running chronyd says; Unread where none answers."""
    return parse_tracking(facts.result("chronyc", "tracking").text())


@derived
def chronyd_is_silent(facts: Facts) -> bool:
    """chronyc ran and no daemon answered it, or there is no chronyc at all."""
    result = facts.result("chronyc", "tracking")
    if result.timed_out or result.truncated:
        return False
    return result.rc != 0


@derived
def timedatectl(facts: Facts) -> Mapping[str, str]:
    """The properties that `timedatectl show` prints."""
    text = facts.result("timedatectl", "show").text()
    rows = (line.partition("=") for line in text.splitlines())
    return {name: value for name, equals, value in rows if equals}


def says(facts: Facts, name: str) -> bool:
    """A yes/no property of `timedatectl show`."""
    value = timedatectl(facts).get(name)
    if value not in {"yes", "no"}:
        raise Garbled("timedatectl show", f"no {name}")
    return value == "yes"


@derived
def timesyncd_offset_s(facts: Facts) -> float:
    """The offset that systemd-timesyncd tells, in seconds."""
    text = facts.result("timedatectl", "timesync-status").text()
    found = _OFFSET.search(text)
    if found is None:
        raise Unread("garbled", "timedatectl timesync-status", "no offset")
    return float(found[1]) * _UNITS[found[2]]


@derived
def ptp_offset_s(facts: Facts) -> float:
    """The offset from the master that `pmc ... TIME_STATUS_NP` tells, in seconds."""
    text = facts.result("pmc").text()
    found = re.search(r"^\s*master_offset\s+(-?\d+)\s*$", text, re.MULTILINE)
    if found is None or not re.search(r"^\s*gmPresent\s+true\s*$", text, re.MULTILINE):
        raise Unread("garbled", "pmc", "no master offset, or no grandmaster")
    return int(found[1]) / 1e9
