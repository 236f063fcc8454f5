"""`configured netdevs` of the collector: which files of the boot name which devices.

`# N files`, then N lines `PATH NAME NAME ...`; `?` instead of the names where a file
may not be read. The files themselves hold secrets of wireless networks and VPNs, so of
their text only the names of devices that exist are kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "configured netdevs"
_COUNT = re.compile(r"# (\d+) files")
_UNREADABLE = "?"


def parse_configured(text: str) -> dict[str, frozenset[str]]:
    """Names of devices by the path of the file that names them."""
    lines = text.split("\n")
    count = _COUNT.fullmatch(lines[0])
    if count is None or len(lines) != int(count[1]) + 2 or lines[-1]:
        raise Garbled(SOURCE, "not as many lines as files")
    rows = [line.split(" ") for line in lines[1:-1]]
    return {row[0]: frozenset(row[1:]) for row in rows}


@derived
def configured(facts: Facts) -> Mapping[str, frozenset[str]]:
    """Names of devices by file; Unread where nobody looked."""
    return parse_configured(facts.result("configured", "netdevs").text())


def named_by(facts: Facts, netdev: str) -> str:
    """The file that configures a device at boot; "" where none does."""
    every = configured(facts)
    for path, names in sorted(every.items()):
        if netdev in names:
            return path
    closed = sorted(path for path, names in every.items() if _UNREADABLE in names)
    if closed:
        raise Unread("denied", closed[0], "it may not be read")
    return ""
