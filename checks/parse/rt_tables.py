"""Names of routing tables: /etc/iproute2/rt_tables, and those that are reserved.

`ip -j rule` prints a table by name where rt_tables has one. A table is canonical when
it is its number, except for the reserved ones, which are their names.
"""

from __future__ import annotations

from checks.facts import Facts, Unread, derived

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
