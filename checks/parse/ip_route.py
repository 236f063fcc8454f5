"""`ip -j route`: routes of every table that was dumped.

Rows of table main omit `table`, also in `table all`. A missing table is a lone `[` with
rc 2 and "FIB table does not exist"; an emptied one is `[]` with rc 0. Multipath rows
have `nexthops` instead of `dev`; `metrics` is a list of one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled
from checks.parse.rt_tables import canonical_table, type_of_service

Network = IPv4Network | IPv6Network
NO_TABLE = "FIB table does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One next hop of a route."""

    dev: str
    gateway: str
    weight: int
    flags: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route; `table` is canonical (numbers resolved to the reserved names)."""

    dst: Network
    table: str
    type: str
    hops: tuple[Hop, ...]
    prefsrc: str
    source: Network | None
    scope: str
    protocol: str
    metric: int
    tos: int
    mtu: int | None
    flags: frozenset[str]

    @property
    def dev(self) -> str:
        """Its device; "" for a route without one, the first of a multipath route."""
        return self.hops[0].dev if self.hops else ""

    @property
    def is_default(self) -> bool:
        return self.dst.prefixlen == 0


def parse_routes(
    rows: Any, what: str, *, version: int, table: str, names: Mapping[str, str]
) -> tuple[Route, ...]:
    """Routes of one dump; `table` is that of rows that name none."""
    if not isinstance(rows, list):
        raise Garbled(what, "no list of routes")
    return tuple(_route(row, what, version, table, names) for row in rows if row)


def routes(
    facts: Facts, version: int = 4, where: str = ""
) -> dict[str, tuple[Route, ...]]:
    """Routes by table, of every dump there is. An absent table has no key.

    A table that was asked for and does not exist, or is empty, has an empty tuple.
    """
    return _routes(facts, version, where)


@derived
def _routes(facts: Facts, version: int, where: str) -> dict[str, tuple[Route, ...]]:
    found: dict[str, dict[Route, None]] = {}
    dumps = _dumps(facts, version, where)
    if not dumps:
        raise Unread("missing", "ip -j route show table all", "not collected")
    refused: list[Unread] = []
    for result in dumps:
        try:
            _take(facts, result, version, found)
        except Unread as error:
            refused.append(error)
    if refused and (not found or any(_is_of_all(e.what) for e in refused)):
        raise refused[0]
    return {table: tuple(rows) for table, rows in found.items()}


def tables_unread(facts: Facts, version: int = 4, where: str = "") -> frozenset[str]:
    """Tables whose own dump was asked for and could not be read."""
    return frozenset(
        table for table, count in _sizes(facts, version, where) if count is None
    )


def tables_empty(
    facts: Facts, version: int = 4, where: str = ""
) -> dict[str, tuple[str, bool]]:
    """Tables whose own dump has no route: its command, and whether they exist."""
    return _empty(facts, version, where)


@derived
def _empty(facts: Facts, version: int, where: str) -> dict[str, tuple[str, bool]]:
    return {
        _table_of(facts, result): (result.line, NO_TABLE not in result.stderr)
        for result in _dumps(facts, version, where)
        if "table" in result.reading.words and _count(result) == 0
    }


def all_tables_read(facts: Facts, version: int = 4, where: str = "") -> bool:
    """Whether there is a whole dump of all tables, so that others do not exist."""
    sizes = _sizes(facts, version, where)
    return any(table == "all" and count is not None for table, count in sizes)


def _dumps(facts: Facts, version: int, where: str) -> list[Result]:
    return [r for r in facts.find("ip", "route", where=where) if _is_dump(r, version)]


@derived
def _sizes(facts: Facts, version: int, where: str) -> list[tuple[str, int | None]]:
    return [
        (_table_of(facts, result), _count(result))
        for result in _dumps(facts, version, where)
    ]


def _count(result: Result) -> int | None:
    """How many routes a dump has; None where it cannot be read."""
    try:
        rows = _rows(result)
    except Unread:
        return None
    return len(rows) if isinstance(rows, list) else None


def _take(
    facts: Facts,
    result: Result,
    version: int,
    found: dict[str, dict[Route, None]],
) -> None:
    table = _table_of(facts, result)
    rows = _rows(result)
    if table != "all":
        found.setdefault(table, {})
    names = canonical_table(facts)
    default = "main" if table == "all" else table
    for route in parse_routes(
        rows, result.line, version=version, table=default, names=names
    ):
        found.setdefault(route.table, {})[route] = None


def _rows(result: Result) -> Any:
    """The rows of a dump; a table that does not exist has none."""
    if result.ended().rc == 2 and NO_TABLE in result.stderr:
        return []
    return result.json()


def _is_dump(result: Result, version: int) -> bool:
    words = result.reading.words
    if "get" in words:
        return False
    return (result.reading.family or 4) == version


def _is_of_all(line: str) -> bool:
    return line.split()[-2:] == ["table", "all"]


def _table_of(facts: Facts, result: Result) -> str:
    words = result.reading.words
    if "table" in words[:-1]:
        named = words[words.index("table") + 1]
        return canonical_table(facts).get(named, named)
    return "main"


def _route(
    row: Any, what: str, version: int, table: str, names: Mapping[str, str]
) -> Route:
    if not isinstance(row, Mapping) or "dst" not in row:
        raise Garbled(what, "a route without a destination")
    named = str(row.get("table", table))
    metrics = {k: v for each in row.get("metrics") or () for k, v in each.items()}
    return Route(
        dst=_network(row["dst"], what, version),
        table=names.get(named, named),
        type=str(row.get("type", "unicast")),
        hops=_hops(row),
        prefsrc=str(row.get("prefsrc", "")),
        source=_network(row["from"], what, version) if "from" in row else None,
        scope=str(row.get("scope", "global")),
        protocol=str(row.get("protocol", "")),
        metric=int(row.get("metric", 0)),
        tos=type_of_service(str(row.get("tos", 0)), what),
        mtu=int(metrics["mtu"]) if "mtu" in metrics else None,
        flags=frozenset(row.get("flags") or ()),
    )


def _hops(row: Mapping[str, Any]) -> tuple[Hop, ...]:
    flags = frozenset(row.get("flags") or ())
    if "nexthops" in row:
        return tuple(
            _hop(each, frozenset(each.get("flags") or ())) for each in row["nexthops"]
        )
    return (_hop(row, flags),) if "dev" in row else ()


def _hop(row: Mapping[str, Any], flags: frozenset[str]) -> Hop:
    via = row.get("via") or {}
    return Hop(
        dev=str(row.get("dev", "")),
        gateway=str(row.get("gateway", via.get("host", ""))),
        weight=int(row.get("weight", 1)),
        flags=flags,
    )


def _network(text: str, what: str, version: int) -> Network:
    if text in {"default", "all"}:
        text = "0.0.0.0/0" if version == 4 else "::/0"
    try:
        return _parsed(text)
    except ValueError as error:
        raise Garbled(what, str(error)) from None


@lru_cache(maxsize=1 << 17)
def _parsed(text: str) -> Network:
    """Routes of a thousand nodes name the same networks again and again."""
    return ip_network(text, strict=False)
