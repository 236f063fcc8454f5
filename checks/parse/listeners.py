"""`ss -Hltn`: TCP ports that somebody on the node listens on.

Columns `State Recv-Q Send-Q Local:Port Peer:Port [Process]`; the local address may be
`*`, `0.0.0.0`, `[::]`, `127.0.0.1%lo`, `[::ffff:127.0.0.1]`. With `-p` the process is
named, if root asked. The list has no end mark: only what is in it is evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "ss -Hltn"
_PROCESS = re.compile(r'users:\(\("([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listening socket; `address` is "" for every address of the node."""

    address: str
    port: int
    process: str

    @property
    def only_loopback(self) -> bool:
        return self.address != "" and is_loopback(self.address)


def is_loopback(text: str) -> bool:
    """Whether an address names this node only; text that is none does not."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def parse_ss(text: str) -> tuple[Listener, ...]:
    """Listening sockets, in the order of the tool; a header line is passed over."""
    rows = text.splitlines()
    if rows and not text.endswith("\n") and len(rows[-1].split()) < 5:
        raise Garbled(SOURCE, "its last line is not whole")
    return tuple(_listener(row) for row in rows if _is_row(row))


@derived
def listeners(facts: Facts) -> tuple[Listener, ...]:
    """Every listening TCP socket of the host."""
    for result in facts.find("ss"):
        options = result.reading.options
        if "-l" in options or "--listening" in options:
            if "-u" in options and "-t" not in options:
                continue
            return parse_ss(result.text())
    raise Unread("missing", SOURCE, "not collected")


def _is_row(row: str) -> bool:
    return row.split()[:1] == ["LISTEN"]


def _listener(row: str) -> Listener:
    words = row.split()
    host, colon, port = words[3].rpartition(":") if len(words) > 4 else ("", "", "")
    if not colon or not port.isdigit():
        raise Garbled(SOURCE, f"no listening socket: {row.strip()[:60]!r}")
    host = host.strip("[]").partition("%")[0]
    process = _PROCESS.search(row)
    return Listener(
        address="" if host in {"*", "0.0.0.0", "::"} else host,
        port=int(port),
        process=process[1] if process else "",
    )
