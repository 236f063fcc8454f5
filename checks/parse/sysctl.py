"""Kernel settings: files below /proc/sys, or what `sysctl NAME` prints of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived, first
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Iterable

RANGE = "net.ipv4.ip_local_port_range"
RESERVED = "net.ipv4.ip_local_reserved_ports"
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def path_of(name: str) -> str:
    """The file of a setting."""
    return f"/proc/sys/{name.replace('.', '/')}"


@derived
def setting(facts: Facts, name: str) -> str:
    """A setting as text, without blanks around; may be empty."""
    return first(
        lambda: facts.line(path_of(name)),
        lambda: _of_tool(facts, name),
    )


def number(facts: Facts, name: str) -> int:
    """A setting that is one whole number."""
    text = setting(facts, name)
    if not text.isdigit():
        raise Garbled(path_of(name), f"not a number: {text[:40]!r}")
    return int(text)


@derived
def ephemeral_ports(facts: Facts) -> range:
    """Ports that outgoing connections take."""
    words = setting(facts, RANGE).split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise Garbled(path_of(RANGE), f"no range of ports: {words}")
    return range(int(words[0]), int(words[1]) + 1)


@derived
def reserved_ports(facts: Facts) -> tuple[range, ...]:
    """Ports that no outgoing connection takes unasked."""
    return parse_ports(setting(facts, RESERVED))


def parse_ports(text: str) -> tuple[range, ...]:
    """`50051,15000-17000`; empty text is none."""
    spans = []
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        row = _SPAN.fullmatch(part)
        if row is None:
            raise Garbled(path_of(RESERVED), f"no list of ports: {text[:60]!r}")
        spans.append(range(int(row[1]), int(row[2] or row[1]) + 1))
    return tuple(spans)


def covered(span: range, by: Iterable[range]) -> bool:
    """Whether every port of a span lies in one of those ranges."""
    left = set(span)
    for each in by:
        left -= set(each)
    return not left


def _of_tool(facts: Facts, name: str) -> str:
    """`name = value`, or the value alone with `-n`; several names in one call too."""
    for result in facts.find("sysctl"):
        words = result.reading.words
        if words == (name,) and "-n" in result.reading.options:
            return result.text().strip()
        for line in result.text(ok=(0, 255)).splitlines():
            key, equals, value = line.partition("=")
            if equals and key.strip() == name:
                return value.strip()
    raise Unread("missing", path_of(name), "not collected")
