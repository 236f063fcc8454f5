"""A question to the route engine, as `ip route get` asks it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

UDP = 17
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A packet of our own from `src` to `dst` (numbers), as the kernel classifies it.

    Without a protocol it is that of `ip route get`: UDP for IPv4, none for IPv6.
    """

    dst: int
    src: int = 0
    iif: str = LOOPBACK
    oif: str = ""
    mark: int = 0
    tos: int = 0
    protocol: int | None = None
    sport: int = 0
    dport: int = 0
    uid: int = 0


@lru_cache(maxsize=1 << 17)
def number(address: str) -> int:
    """An address as a number; kept, for a fleet names each of its addresses often."""
    return int(ip_address(address))


def ask(src: str, dst: str) -> Query:
    """The query of `ip route get DST from SRC`."""
    return Query(src=number(src), dst=number(dst))
