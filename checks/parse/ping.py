"""`ping -c 1 -M do -s BYTES -I SOURCE TARGET`: one packet that may not be fragmented.

The summary (`1 packets transmitted, 1 received, ...`) is the last word; rc 1 is no
reply, rc 2 another error. `message too long, mtu=1500` and `Frag needed` name the MTU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from checks.facts import Facts, Result, Unread, derived

_SUMMARY = re.compile(r"(\d+) packets transmitted, (\d+)(?: packets)? received")
_TOO_LONG = re.compile(
    r"(?:message too long|frag(?:mentation)? needed)[^\n]*", re.IGNORECASE
)
IPV4_HEADERS = 28
"""Bytes of IPv4 and ICMP headers around the payload of a ping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """One ping; `size` is the whole packet in bytes, None if not forbidden to split."""

    line: str
    source: str
    target: str
    size: int | None
    received: bool
    too_long: str


@derived
def pings(facts: Facts) -> tuple[tuple[Ping, ...], tuple[Unread, ...]]:
    """(pings bound to a source address, those that cannot be read)."""
    read: list[Ping] = []
    unread: list[Unread] = []
    for result in facts.find("ping"):
        try:
            found = _ping(result)
        except Unread as error:
            unread.append(error)
            continue
        if found is not None:
            read.append(found)
    return tuple(read), tuple(unread)


def _ping(result: Result) -> Ping | None:
    """None where it is bound to no address: `-I DEVICE` manufactures reachability."""
    source = result.reading.option("-I") or ""
    if not _is_address(source) or not result.reading.words:
        return None
    told = f"{result.ended().stdout}\n{result.stderr}"
    summary = _SUMMARY.search(result.stdout)
    too_long = _TOO_LONG.search(told)
    if summary is None and too_long is None:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    payload = result.reading.option("-s") or ""
    whole = result.reading.option("-M") == "do" and payload.isdigit()
    return Ping(
        line=result.line,
        source=source,
        target=result.reading.words[-1],
        size=int(payload) + IPV4_HEADERS if whole else None,
        received=summary is not None and int(summary[2]) > 0 and result.rc == 0,
        too_long=too_long[0].strip() if too_long else "",
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
