"""`connect PEER:PORT from SOURCE`: TCP connections that `--active` tried, rail to rail.

The entry has rc 0 and `connected` on stdout where the connection stood; a listener of
ours is named, with the address that it saw: `connected, seen as 198.18.0.1, by node-b`.
rc 1 is a failure, with the errno's name on stderr (`ETIMEDOUT`, `ECONNREFUSED`,
`EHOSTUNREACH`, ...) or `another end answered`; rc 2 says nothing of the path: it could
not be tried, or nobody is known to have listened. `listen ADDRESS:PORT` tells of the
listeners of this node: rc 0, or the errno with which the port could not be bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

HANDSHAKE_PORT = 12001
ENGINE_PORTS = range(15000, 17001)
SOURCE = "connect PEER:PORT from RAIL_IP"
_STOOD = re.compile(r"connected(?:, seen as (\S+), by (\S+))?\n")
_UNTRIED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """One try; `error` is "" where it stood, `refusal` says why nothing is known."""

    line: str
    source: str
    target: str
    port: int
    error: str = ""
    refusal: Unread | None = None

    @property
    def stood(self) -> bool:
        return not self.error and self.refusal is None

    @property
    def where(self) -> str:
        return spelled(self.target, self.port)


def spelled(address: str, port: int) -> str:
    """ADDRESS:PORT, with brackets around IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@derived
def handshakes(facts: Facts) -> tuple[Handshake, ...]:
    """Every connection that was tried from an address of this node."""
    found = [_handshake(result) for result in facts.find("connect")]
    return tuple(each for each in found if each is not None)


@derived
def not_listened(facts: Facts) -> dict[str, str]:
    """Why this node did not listen, by ADDRESS:PORT."""
    return {
        result.reading.words[0]: result.complaint
        for result in facts.find("listen")
        if result.rc != 0 and result.reading.words
    }


def _handshake(result: Result) -> Handshake | None:
    """None where it is another kind of connection."""
    words = result.reading.words
    if len(words) != 3 or words[1] != "from":
        return None
    host, _, port = words[0].rpartition(":")
    target = host.strip("[]")
    if not (_is_address(target) and _is_address(words[2]) and port.isdigit()):
        return None
    error, refusal = "", None
    try:
        error = _error(result, words[2])
    except Unread as unread:
        refusal = unread
    return Handshake(
        line=result.line,
        source=words[2],
        target=target,
        port=int(port),
        error=error,
        refusal=refusal,
    )


def _error(result: Result, source: str) -> str:
    """How it failed, "" where it stood; Unread where that is not known."""
    if result.ended().rc == _UNTRIED or result.rc < 0:
        raise Unread("failed", result.line, result.complaint)
    if result.rc != 0:
        return result.complaint
    stood = _STOOD.fullmatch(result.stdout)
    if stood is None:
        raise Garbled(result.line, f"no answer of ours: {result.complaint!r}")
    if stood[1] and ip_address(stood[1]) != ip_address(source):
        return f"{stood[2]} sees {stood[1]} instead of {source}"
    return ""


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
