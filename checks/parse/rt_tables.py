"""Names of routing tables: /etc/iproute2/rt_tables, and those that are reserved.

`ip -j rule` prints a table by name where rt_tables has one. A table is canonical when
it is its number, except for the reserved ones, which are their names.
"""

from __future__ import annotations

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

RESERVED = {"255": "local", "254": "main", "253": "default"}
_PLACES = (
    "/etc/iproute2/rt_tables",
    "/usr/share/iproute2/rt_tables",
    "/usr/lib/iproute2/rt_tables",
)


def parse_rt_tables(text: str) -> dict[str, str]:
    """Number by name; comments and what is no pair are passed over."""
    found = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) >= 2 and words[0].isdigit():
            found[words[1]] = words[0]
    return found


@derived
def canonical_table(facts: Facts) -> dict[str, str]:
    """Canonical table by every known spelling; ask with `.get(named, named)`."""
    names: dict[str, str] = dict(RESERVED)
    every = (*_PLACES, *facts.matching("/etc/iproute2/rt_tables.d/*.conf"))
    for path in every:
        try:
            text = facts.text(path)
        except Unread:
            continue
        for name, number in parse_rt_tables(text).items():
            names.setdefault(name, RESERVED.get(number, number))
    return names


_DSFIELD = {
    "default": 0x00,
    "lowdelay": 0x10,
    "throughput": 0x08,
    "reliability": 0x04,
    "mincost": 0x02,
    "EF": 0xB8,
    **{f"CS{n}": n << 5 for n in range(1, 8)},
    **{f"AF{c}{d}": (c << 5) | (d << 3) for c in range(1, 5) for d in range(1, 4)},
}


def type_of_service(text: str, what: str) -> int:
    """A TOS byte, as a number or by its name in /etc/iproute2/rt_dsfield."""
    if text in _DSFIELD:
        return _DSFIELD[text]
    try:
        return int(text, 0)
    except ValueError:
        raise Garbled(what, f"no type of service: {text[:40]!r}") from None
