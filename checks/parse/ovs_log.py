"""The log of vswitchd: `TIME|SEQ|MODULE(THREAD)|LEVEL|MESSAGE`, one event a line.

From /var/log/openvswitch, or from `journalctl -u` or `tail` where the log is elsewhere.
The time is ISO 8601 in UTC, with or without milliseconds. "Now" is the last line of the
log and not the clock: a daemon whose configuration rests says nothing for weeks, and
what it said last still holds.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived, first

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "/var/log/openvswitch/ovs-vswitchd.log"
_EVENT = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)Z\|\d+\|([^|(]+)(?:\([^|]*\))?\|"
    r"([A-Z]+)\|(.*)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line; `t` in seconds since the epoch."""

    t: float
    module: str
    level: str
    text: str


@lru_cache(maxsize=1024)
def parse_log(text: str) -> tuple[Event, ...]:
    """Events in the order of the log; lines of another shape are left out."""
    found = []
    for line in text.splitlines():
        match = _EVENT.search(line)
        if match is None:
            continue
        t = dt.datetime.fromisoformat(match[1]).replace(tzinfo=dt.UTC).timestamp()
        found.append(Event(t=t, module=match[2], level=match[3], text=match[4]))
    return tuple(found)


@derived
def events(facts: Facts) -> tuple[Event, ...]:
    """The log as far as it was collected; Unread where nothing of it can be seen.

    A log of no length is one that was just rotated, where its length was measured.
    """
    readers: list[Callable[[], str]] = [
        lambda path=path: facts.text(path)  # type: ignore[misc]
        for path in (LOG, *facts.matching("/*/ovs-vswitchd.log"))
    ]
    readers += [
        lambda result=result: result.text()  # type: ignore[misc]
        for program in ("tail", "cat", "journalctl", "grep")
        for result in facts.find(program)
        if "ovs-vswitchd" in result.line or "openvswitch" in result.line
    ]
    text = first(*readers)
    found = parse_log(text)
    if not found and not _is_rotated(facts, text):
        raise Unread("empty", LOG, "no line of the log in it")
    return found


def last_day(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of the 24 h before the end of the log."""
    if not events:
        return ()
    since = max(event.t for event in events) - 86_400
    return tuple(event for event in events if event.t >= since)


def _is_rotated(facts: Facts, text: str) -> bool:
    try:
        return not text and facts.entry(LOG).get("bytes") == 0
    except Unread:
        return False
