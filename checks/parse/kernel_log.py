"""The kernel's log: `dmesg -J`, `dmesg`, `journalctl -k -b -o json`, in that order.

The ring buffer may have wrapped: that a line is absent proves little, that it is there
proves much. With `kernel.dmesg_restrict=1` reading is refused: that is `denied`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, Result, Unread, derived, first
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Callable

_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(.*)$")
_DATED = re.compile(r"^\[\w{3} \w{3} [^\]]*\]\s?(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message; `t` is in seconds since boot, None where the source has no time."""

    t: float | None
    text: str


def parse_dmesg_json(document: Any) -> tuple[Line, ...]:
    """`dmesg -J` of util-linux 2.38 and later."""
    rows = document.get("dmesg") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise Garbled("dmesg -J", "no list called dmesg")
    return tuple(
        Line(t=_seconds(row.get("time")), text=str(row.get("msg", ""))) for row in rows
    )


def parse_dmesg(text: str) -> tuple[Line, ...]:
    """Plain `dmesg`, with or without times."""
    found = []
    for line in text.splitlines():
        stamped = _STAMP.match(line)
        dated = _DATED.match(line)
        if stamped:
            found.append(Line(t=float(stamped[1]), text=stamped[2]))
        elif line.strip():
            found.append(Line(t=None, text=dated[1] if dated else line.strip()))
    return tuple(found)


def parse_journal(text: str) -> tuple[Line, ...]:
    """`journalctl -o json`: one object a line; binary messages are left out."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            raise Garbled("journalctl -k", "a line that is no whole JSON") from None
        if isinstance(row, Mapping) and isinstance(row.get("MESSAGE"), str):
            us = _seconds(row.get("_SOURCE_MONOTONIC_TIMESTAMP"))
            t = None if us is None else us / 1e6
            found.append(Line(t=t, text=row["MESSAGE"]))
    return tuple(found)


@derived
def kernel_log(facts: Facts) -> tuple[Line, ...]:
    """Messages of this boot, oldest first; Unread where nobody may read them."""
    every = [
        *facts.find("dmesg"),
        *(
            r
            for r in facts.find("journalctl")
            if r.reading.option("-k", "--dmesg") == ""
        ),
    ]
    if not every:
        raise Unread("missing", "dmesg -J", "not collected")
    readers: list[Callable[[], tuple[Line, ...]]] = [
        lambda result=result: _read(result)  # type: ignore[misc]
        for result in every
    ]
    return first(*readers)


def _of_kernel(result: Result) -> bool:
    return not {"-k", "--dmesg"}.isdisjoint(result.reading.options)


def _read(result: Result) -> tuple[Line, ...]:
    result.ended()
    if "not permitted" in result.stderr or "denied" in result.stderr.lower():
        raise Unread("denied", result.line, result.complaint)
    if result.rc != 0:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    if result.reading.program == "journalctl":
        # Who may not see the messages of others is answered with nothing, and rc 0.
        told = result.stdout if _is_chosen(result) else result.text()
        if told.strip() == _NO_ENTRIES:
            raise Unread("empty", result.line, "no entries")
        as_json = result.reading.option("-o", "--output") in {"json", "json-seq"}
        return parse_journal(told) if as_json else parse_dmesg(told)
    if result.reading.option("-J", "--json") is not None:
        return parse_dmesg_json(result.json())
    return parse_dmesg(result.text())


_NO_ENTRIES = "-- No entries --"


def _is_chosen(result: Result) -> bool:
    """Only some lines were asked for, so there may be none."""
    return any(
        result.reading.option(short, long) is not None
        for short, long in (("-p", "--priority"), ("-g", "--grep"), ("-S", "--since"))
    )


def _seconds(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
