"""`dns SERVER NAME` of the collector: what a name server answered, and how soon.

Return code 0 with an address a line; 1 with the reason: the name of a response code
(`NXDOMAIN`), of an errno, or `no answer` after the collector's patience; 2 where what
came back is no answer to the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from checks.facts import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question and what became of it; `refusal` is "" where it was answered."""

    server: str
    name: str
    addresses: tuple[str, ...]
    refusal: str
    ms: float


@derived
def questions(facts: Facts) -> tuple[Result, ...]:
    """Every question that was asked, by name; Unread where nobody asked."""
    found = facts.find("dns")
    if not found:
        raise Unread("missing", "dns SERVER NAME", "not collected: give --kubernetes")
    return tuple(sorted(found, key=lambda result: result.line))


def answer(result: Result) -> Answer:
    """The answer; Unread where it is not whole."""
    if len(result.ended().reading.words) != 2:
        raise Garbled(result.line, "no server and name")
    server, name = result.reading.words
    if result.rc not in {0, 1}:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    if not result.ms:  # a question takes some time: nobody measured it
        raise Unread("missing", result.line, "no time")
    refusal = result.complaint if result.rc else ""
    addresses = () if refusal else _addresses(result)
    return Answer(
        server=server, name=name, addresses=addresses, refusal=refusal, ms=result.ms
    )


def _addresses(result: Result) -> tuple[str, ...]:
    text = result.text()
    if not text.endswith("\n"):
        raise Garbled(result.line, "its last line is not whole")
    try:
        return tuple(str(ip_address(line)) for line in text.splitlines())
    except ValueError as error:
        raise Garbled(result.line, str(error)) from None
