"""`ip -j route get DST from SRC`: the kernel's own answer for one pair.

One object in a list. Unreachable is an empty stdout, rc 2 and a line of `RTNETLINK
answers: ...` on stderr. Nothing else is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

_ANSWER = "RTNETLINK answers: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One live answer. `error` is the kernel's refusal; then `dev` is empty."""

    line: str
    src: str
    dst: str
    dev: str
    type: str
    gateway: str
    error: str
    is_bound: bool
    """It was asked for a device, a mark or an input device: not a plain packet."""


@derived
def samples_of(
    facts: Facts, where: str = ""
) -> tuple[tuple[Sample, ...], tuple[Unread, ...]]:
    """(answers, refusals to be read) of every `ip route get` with a source."""
    read: list[Sample] = []
    unread: list[Unread] = []
    for result in facts.find("ip", "route", "get", where=where):
        words = result.reading.words
        if "from" not in words[:-1]:
            continue
        try:
            read.append(_sample(result))
        except Unread as error:
            unread.append(error)
    return tuple(read), tuple(unread)


def _sample(result: Result) -> Sample:
    words = result.reading.words[2:]
    named = {word: words[at + 1] for at, word in enumerate(words[:-1])}
    dst = named.get("to", words[0])
    src = named["from"]
    bound = bool({"oif", "iif", "mark", "dev", "tos"} & set(words))
    if result.ended().rc != 0:
        lines = [line for line in result.stderr.splitlines() if _ANSWER in line]
        if not lines:
            raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
        row: Mapping[str, object] = {}
        error = lines[0].partition(_ANSWER)[2].strip()
    else:
        row, error = _row(result), ""
    return Sample(
        line=result.line,
        src=src,
        dst=dst,
        dev=str(row.get("dev", "")),
        type=str(row.get("type", "unicast")),
        gateway=str(row.get("gateway", "")),
        error=error,
        is_bound=bound,
    )


def _row(result: Result) -> Mapping[str, object]:
    rows = result.json()
    if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], Mapping):
        return rows[0]
    raise Garbled(result.line, "not one route")
